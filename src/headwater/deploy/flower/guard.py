"""Access control of a SuperLink: which calls it answers, and which nodes it admits.

The SuperLink serves three interfaces on its one port, and only the one for nodes (SuperNodes of members) authenticates
its callers. Through the other two, anybody who reaches the port could register a key or run code. So calls to these two
need a secret here, which never leaves this process.
"""

from __future__ import annotations

import hmac
import threading
from typing import Any

import flwr.superlink.main
import httpx
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from starlette.types import ASGIApp, Receive, Scope, Send

from headwater.deploy.flower.connections import OPEN, MemberKeys
from headwater.deploy.flower.visitors import VisitorBook

KEY = "x-headwater-key"
NODES = "/v1/fleet/"
JOIN = "activate-node"  # the call by which a node with a key asks to join
NEWS = ("push-messages", JOIN, "deactivate-node")  # calls of nodes after which the bridge should poll
MAX_REQUEST = 16 << 20  # bytes of one request; Flower cuts arrays into pieces of 5 MiB


def install(
    key: str, news: threading.Event, admitted: threading.Event, members: MemberKeys | None, visitors: VisitorBook
) -> None:
    """Put a `Guard` before every interface of the SuperLink that this process starts."""
    create_app = flwr.superlink.main.create_app

    def guarded(*args: Any, **more: Any) -> Any:
        app = create_app(*args, **more)
        # runs before all other middleware
        app.add_middleware(Guard, key=key, news=news, admitted=admitted, members=members, visitors=visitors)
        return app

    flwr.superlink.main.create_app = guarded


def check(address: str, ca: str | None) -> None:
    """Raise RuntimeError if the SuperLink answers a call that is not for nodes and has no key.

    Args:
        address: of the SuperLink.
        ca: file of the CA certificate; None without TLS.
    """
    verify: Any = ca or False
    bare = httpx.post(f"{'https' if ca else 'http'}://{address}/v1/control/list-nodes", verify=verify)
    if bare.status_code != httpx.codes.FORBIDDEN:
        raise RuntimeError("the SuperLink is not guarded; this version of Flower cannot be used")


def admit(control: ControlHttpClient, members: MemberKeys) -> None:
    """Register the keys of the members and no others. The name goes with the key, so a node cannot choose it."""
    for name, pem in members.pem.items():
        control.RegisterNode(RegisterNodeRequest(public_key=pem, name=name))


class Guard:
    """ASGI middleware that refuses calls to all but the interface for nodes, unless they carry the key.

    Args:
        key: the secret of this process.
        news: set when a node has sent a message, connected or disconnected.
        admitted: until it is set, nodes are told to try again later, since the members' keys are not registered yet.
        members: whose signature a request needs before its body is read; None without keys.
        visitors: takes note of those who asked to join with another key.
    """

    def __init__(
        self,
        app: ASGIApp,
        key: str,
        news: threading.Event,
        admitted: threading.Event,
        members: MemberKeys | None,
        visitors: VisitorBook,
    ) -> None:
        self.app, self.key, self.news, self.admitted = app, key.encode(), news, admitted
        self.members, self.visitors = members, visitors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif refusal := self._refusal(scope):
            await send({"type": "http.response.start", "status": refusal, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
        else:
            OPEN.know(scope.get("client"))
            await self.app(scope, receive, send)
            if scope["path"].removeprefix(NODES) in NEWS:
                self.news.set()

    def _refusal(self, scope: Scope) -> int:
        """The HTTP status of a refusal, or 0."""
        headers = dict(scope["headers"])
        if hmac.compare_digest(headers.get(KEY.encode(), b""), self.key):
            return 0
        length = headers.get(b"content-length", b"")
        if not scope["path"].startswith(NODES) or not length.isdigit() or int(length) > MAX_REQUEST:
            return int(httpx.codes.FORBIDDEN)
        if self.members is not None and not self.members.signed(headers):
            if scope["path"] == f"{NODES}{JOIN}" and self.visitors.may_check():
                self.visitors.note(self.members.stranger(headers))
            return int(httpx.codes.UNAUTHORIZED)
        return 0 if self.admitted.is_set() else int(httpx.codes.SERVICE_UNAVAILABLE)
