"""The process of a link: Flower's SuperLink, and beside it the thread that passes messages to the party and back.

The SuperLink serves three interfaces on its one port, and only the one for nodes asks who is there. Through the other
two anybody who reaches the port could admit a key of their own, or have code run. So a guard stands before them all:
what is not for nodes needs a secret that never leaves this process.
"""

from __future__ import annotations

import hmac
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import flwr.superlink.main
import httpx
from cryptography.hazmat.primitives import serialization
from flwr.app import Message as FlowerMessage
from flwr.app import MessageType
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import ErrorCode
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    GetNodesRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
)
from flwr.supercore.constant import NodeStatus, TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.cli import flower_superlink
from starlette.types import ASGIApp, Receive, Scope, Send

from headwater.deploy.flower.frames import Pipe
from headwater.deploy.flower.wire import Headers, Task, fall, from_flower, leave_with, secret, to_flower
from headwater.deploy.message import Message, Unanswered

KEY = "x-headwater-key"
NODES = "/v1/fleet/"
TELLING = ("push-messages", "activate-node", "deactivate-node")  # after these there is something to see
REQUEST = 16 << 20  # bytes that are read before it is known who sends them; Flower cuts arrays into pieces of 5 MiB
LOOK = 1.0  # seconds between two looks when nothing stirs
START = 60.0  # seconds in which the SuperLink must be there

APP = """
[build-system]
requires = []
build-backend = "hatchling.build"

[project]
name = "headwater-link"
version = "1.0.0"
description = "Carries messages. It is never run: those who are asked have the code already."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "headwater"

[tool.flwr.app.components]
serverapp = "headwater.deploy.flower:none"
clientapp = "headwater.deploy.flower:none"

[tool.flwr.app.config]
"""


class Seat(NamedTuple):
    """A node from one of its starts to its end; it keeps its number when it comes back."""

    node: int
    since: str


class Guard:
    """Stands before all that the SuperLink serves. Nodes are asked to come again until it is known who is a member."""

    def __init__(self, app: ASGIApp, key: str, stir: threading.Event, admitted: threading.Event) -> None:
        self.app, self.key, self.stir, self.admitted = app, key.encode(), stir, admitted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif refusal := self._refusal(scope):
            await send({"type": "http.response.start", "status": refusal, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self.app(scope, receive, send)
            if scope["path"].removeprefix(NODES) in TELLING:
                self.stir.set()

    def _refusal(self, scope: Scope) -> int:
        """A status, or 0 for who may pass."""
        headers = dict(scope["headers"])
        if hmac.compare_digest(headers.get(KEY.encode(), b""), self.key):
            return 0
        length = headers.get(b"content-length", b"")
        if not scope["path"].startswith(NODES) or not length.isdigit() or int(length) > REQUEST:
            return int(httpx.codes.FORBIDDEN)
        return 0 if self.admitted.is_set() else int(httpx.codes.SERVICE_UNAVAILABLE)


class Bridge:
    """Between the SuperLink and the party's process."""

    def __init__(
        self, pipe: Pipe, facts: dict[str, Any], key: str, stir: threading.Event, admitted: threading.Event
    ) -> None:
        self.pipe, self.facts, self.stir, self.admitted = pipe, facts, stir, admitted
        self.key = Headers({KEY: key})
        self.root = Path(facts["ca"]).read_bytes() if facts["ca"] else None
        self.members: tuple[str, ...] = tuple(facts["members"])
        self.pool = ThreadPoolExecutor(8 + len(self.members))
        self.lock = threading.Lock()
        self.open: dict[str, tuple[int, Seat]] = {}  # Flower's number of a message → ours, and to whom it went
        self.there: dict[str, Seat] = {}  # by name
        self.names: dict[int, str] = {}  # of nodes without a key, as they say it themselves
        self.asked: dict[str, int] = {}  # Flower's number of the question → node
        self.task: Task

    def run(self) -> None:
        try:
            self._begin()
            self.admitted.set()
            self.pipe.write({"say": "ready"})
            threading.Thread(target=self._listen, daemon=True).start()
            while True:
                self._look()
                self.stir.wait(LOOK)
                self.stir.clear()
        except BaseException as error:
            fall(error)

    # What happens once

    def _begin(self) -> None:
        control = self._client(ControlHttpClient, "flwr")
        _wait_for(lambda: control.ListNodes(ListNodesRequest()))
        scheme = "http" if self.root is None else "https"
        verify: Any = self.facts["ca"] or False
        bare = httpx.post(f"{scheme}://{self.facts['dial']}/v1/control/list-nodes", verify=verify)
        if bare.status_code != httpx.codes.FORBIDDEN:
            raise RuntimeError("the guard before the SuperLink does not stand; this version of Flower cannot be used")
        if self.root is not None:
            self._admit(control)
        fab, _ = build_fab_from_files({"pyproject.toml": APP.encode()})
        mine = control.StartRun(StartRunRequest(fab=Fab(content=fab))).run_id
        self.task = self._take(mine)

    def _admit(self, control: ControlHttpClient) -> None:
        """The keys of the members and no others. The name goes with the key: a node cannot choose it."""
        for name, path in self.facts["members"].items():
            control.RegisterNode(RegisterNodeRequest(public_key=_pem(Path(path)), name=name))

    def _take(self, run_id: int) -> Task:
        """The task of the run, which in Flower's terms is its ServerApp."""
        runtime = self._client(RuntimeHttpClient, "SuperExec")
        end = time.monotonic() + START
        while time.monotonic() < end:
            given = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
            if given.HasField("task") and given.task.run_id == run_id:
                runtime.close()
                break
            time.sleep(0.1)
        else:
            raise RuntimeError("the SuperLink does not start the run")
        task = Task(
            self.facts["dial"],
            self.root,
            given.token,
            "flwr-serverapp",
            self.facts["max_bytes"],
            [self.key],
            lambda: fall(RuntimeError("the SuperLink has given up the run")),
        )
        start = task.client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id = start.task_id
        TaskIdentity.run_id = run_id
        TaskIdentity.node_id = start.context.node_id
        task.of(run_id, start.context.node_id)
        return task

    def _client(self, kind: Any, component: str) -> Any:
        return kind.from_server_address(
            self.facts["dial"],
            insecure=self.root is None,
            root_certificates=self.root,
            interceptors=[RuntimeVersionHttpInterceptor(component), self.key],
        )

    # What goes down

    def _listen(self) -> None:
        try:
            while True:
                frame, message = self.pipe.read()
                if message is not None:
                    self.pool.submit(self._send, frame["number"], frame["to"], message)
                else:
                    self._forget(frame["forget"])
        except EOFError:
            os._exit(0)  # the party has ended, and nothing here is worth keeping
        except BaseException as error:
            fall(error)

    def _send(self, number: int, to: str, message: Message) -> None:
        try:
            seat = self.there.get(to)
            if seat is None:
                return self._unanswered(number, f"{to} is not there")
            known = self.task.push(FlowerMessage(to_flower(message), seat.node, MessageType.TRAIN))
            if not known:
                return self._unanswered(number, f"{to} is not there")
            with self.lock:
                self.open[known] = number, seat
            self.stir.set()  # the answer may have come meanwhile
        except (httpx.HTTPError, Unanswered) as error:
            self._unanswered(number, f"the message did not get to the link ({error})")
        except BaseException as error:
            fall(error)

    def _forget(self, number: int) -> None:
        with self.lock:
            self.open = {known: entry for known, entry in self.open.items() if entry[0] != number}

    # What comes up

    def _look(self) -> None:
        self._see()
        with self.lock:
            waiting = [*self.open, *self.asked]
        if not waiting:
            return
        found = self.task.client.PullMessages(PullAppMessagesRequest(message_ids=waiting))
        for head, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            known = head.metadata.reply_to_message_id
            with self.lock:
                (number, _), node = self.open.pop(known, (None, None)), self.asked.pop(known, None)
            self.pool.submit(self._receive, tree, number, node)

    def _receive(self, tree: Any, number: int | None, node: int | None) -> None:
        reason = "what came is not a message of Headwater"
        try:
            message = self.task.fetch(tree)
            if message.has_error():
                raise Unanswered(_reason(message))
            answer = from_flower(message.content)
            if node is not None and (name := answer.head.get("name")) in self.members:
                self.names[node] = name
                self.stir.set()
            if number is not None:
                self.pipe.write({"say": "reply", "number": number}, answer)
            return
        except OSError:
            os._exit(0)
        except Unanswered as error:
            reason = str(error)
        except httpx.HTTPError as error:
            reason = f"the answer could not be fetched from the link ({error})"
        except Exception:  # whatever a member sends, the link goes on with the others
            traceback.print_exc()
        if number is not None:
            self._unanswered(number, reason)

    def _see(self) -> None:
        """Who is there, and who came back without the messages that it had."""
        try:
            found = self.task.client.GetNodes(GetNodesRequest()).nodes
        except httpx.TimeoutException:
            return  # the next look will do
        online = [node for node in found if node.status == NodeStatus.ONLINE]
        online.sort(key=lambda node: node.last_activated_at)
        names = self._named(online)
        there = {
            name: Seat(node.node_id, node.last_activated_at)
            for node in online
            if (name := names.get(node.node_id)) in self.members
        }
        if there.keys() != self.there.keys():
            self.pipe.write({"say": "present", "names": sorted(there)})
        self.there = there
        since = {node.node_id: node.last_activated_at for node in online}
        with self.lock:
            lost = {
                known: n for known, (n, seat) in self.open.items() if since.get(seat.node, seat.since) != seat.since
            }
            for known in lost:
                del self.open[known]
        for number in lost.values():
            self._unanswered(number, "it was started again meanwhile")

    def _named(self, online: list[NodeInfo]) -> dict[int, str]:
        if self.root is not None:
            return {node.node_id: node.name for node in online}
        for node in online:
            if node.node_id not in self.names and node.node_id not in self.asked.values():
                question = FlowerMessage(to_flower(Message({})), node.node_id, MessageType.QUERY)
                if known := self.task.push(question):
                    self.asked[known] = node.node_id
        return self.names

    def _unanswered(self, number: int, reason: str) -> None:
        self.pipe.write({"say": "unanswered", "number": number, "reason": reason})


def _reason(message: FlowerMessage) -> str:
    if message.error.code == ErrorCode.NODE_UNAVAILABLE:
        return "it is not there any more"
    return (message.error.reason or "").strip() or "it gave no reason"


def _pem(path: Path) -> bytes:
    """A public key as Flower compares it."""
    return serialization.load_ssh_public_key(path.read_bytes()).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _wait_for(call: Callable[[], object]) -> None:
    end = time.monotonic() + START
    while True:
        try:
            call()
            return
        except httpx.TransportError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def main() -> None:
    pipe = Pipe(socket.socket(fileno=int(sys.argv[1])))
    leave_with(os.getppid(), lambda: os._exit(0))
    facts, _ = pipe.read()
    key, stir, admitted = secret(), threading.Event(), threading.Event()
    plain = flwr.superlink.main.create_app

    def guarded(*args: Any, **more: Any) -> Any:
        app = plain(*args, **more)
        app.add_middleware(Guard, key=key, stir=stir, admitted=admitted)  # before all others
        return app

    flwr.superlink.main.create_app = guarded
    sys.argv = ["flower-superlink", *facts["words"]]
    threading.Thread(target=Bridge(pipe, facts, key, stir, admitted).run, daemon=True).start()
    flower_superlink()


if __name__ == "__main__":
    main()
