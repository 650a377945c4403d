"""Serves a page to this machine only, for `headwater watch` and `headwater deploy watch`.

The address has a random part, since other users of the machine can reach its loopback too, but not read the files. A
request for another host than loopback is refused, so that no other web page can read this one through a host name that
it controls (DNS rebinding).
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from headwater.errors import ConfigError, UserError

HOST = "127.0.0.1"
SECONDS = 10.0  # for a browser to send its request
FILES = ("config.toml", "rounds.jsonl", "result.json", "partition.json", "timeline.jsonl")
Part = Callable[[str], str]  # the text of a page, from the nonce that its scripts carry


class LivePage:
    """An HTTP server on loopback with a few parts of one page.

    Args:
        parts: the text of each part by its name in the address; "" is the page itself.
        policy: the content security policy, from the nonce.
        port: to listen at; 0 for any free one.
        command: that printed the address, for the message at other addresses.

    Raises:
        ConfigError: if the port cannot be used.
    """

    def __init__(self, parts: Mapping[str, Part], policy: Part, port: int, command: str) -> None:
        self._key = secrets.token_urlsafe(16)
        fields = {"parts": dict(parts), "policy": staticmethod(policy), "key": self._key, "printed_by": command}
        try:
            self._server = ThreadingHTTPServer((HOST, port), type("Handler", (_PageHandler,), fields))
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else "ports go up to 65535"
            raise ConfigError(
                f"the page cannot be served at {HOST}:{port} ({why}); choose another --port, or 0 for any free one"
            ) from error
        self._server.daemon_threads = True
        self._served = False

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self._server.server_address[1]}/{self._key}/"

    def serve(self) -> None:
        """Answer requests until `close` is called in another thread, or Ctrl-C."""
        self._served = True
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        if self._served:  # otherwise `shutdown` would wait for ever
            self._server.shutdown()
        self._server.server_close()


class RunsPage(LivePage):
    """The report of the runs in and below a directory, which renews itself while they go on.

    Args:
        directory: of a run, or of several.
        port: to listen at; 0 for any free one.
        target: accuracy to count rounds and bytes to; None for the highest that all methods reach.

    Raises:
        ConfigError: if the port cannot be used.
    """

    def __init__(self, directory: Path, port: int = 0, target: float | None = None) -> None:
        from headwater.report import page, runs

        def whole(nonce: str) -> str:
            state = state_of(directory)  # before the files are read: a change in between is shown next time
            return page.render(runs.find(directory), target=target, live=state, nonce=nonce)

        parts: dict[str, Part] = {"": whole, "state": lambda _: state_of(directory)}
        super().__init__(parts, page.live_policy, port, "headwater watch")


def state_of(directory: Path) -> str:
    """A text that changes when a file of a run in or below a directory does."""
    newest, total = 0, 0
    for name in FILES:
        for file in directory.rglob(name):
            try:
                found = file.stat()
            except OSError:  # replaced at this moment
                continue
            newest, total = max(newest, found.st_mtime_ns), total + found.st_size + 1
    return f"{newest}-{total}"


class _PageHandler(BaseHTTPRequestHandler):
    """One request."""

    parts: dict[str, Part]
    policy: Part
    key: str
    printed_by: str
    timeout = SECONDS
    server_version, sys_version = "headwater", ""

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0]
        _, key, name = [*self.path.split("/", 2), "", ""][:3]
        if host not in (HOST, "localhost") or not hmac.compare_digest(key.encode(), self.key.encode()):
            self._reply(
                404, "text/plain", f"there is nothing here; open the address that `{self.printed_by}` printed\n"
            )
            return
        if name not in self.parts:
            self._reply(404, "text/plain", "there is nothing here\n")
            return
        nonce = secrets.token_urlsafe(16)
        try:
            self._reply(200, "text/html", self.parts[name](nonce), nonce)
        except UserError as error:
            self._reply(500, "text/plain", f"{error}\n")

    def _reply(self, code: int, kind: str, text: str, nonce: str = "") -> None:
        body = text.encode(errors="replace")
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", self.policy(nonce) if nonce else "default-src 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """No log: the page sends a request every other second."""
