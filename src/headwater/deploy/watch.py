"""`headwater deploy watch`: serves the live page of the folders on this machine, to this machine only.

The address has a random part, since other users of the machine can reach its loopback too, but not read the folders. A
request for another host than loopback is refused, so that no web page can read this one by giving it a name of its own.
"""

from __future__ import annotations

import hmac
import secrets
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from headwater.deploy import live_page, overview
from headwater.errors import ConfigError, UserError

HOST = "127.0.0.1"
SECONDS = 10.0  # for a browser to send its request
PORT_WORDS = "choose another --port, or 0 for any free one"


class PageServer:
    """Serves the page of a directory on loopback.

    Args:
        directory: a party's folder, or a directory of several.
        port: to listen at; 0 for any free one.

    Raises:
        ConfigError: if the port cannot be used.
    """

    def __init__(self, directory: Path, port: int = 0) -> None:
        self._key = secrets.token_urlsafe(16)
        fields = {"directory": directory, "key": self._key}
        try:
            self._server = ThreadingHTTPServer((HOST, port), type("Handler", (_Handler,), fields))
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else "ports go up to 65535"
            raise ConfigError(f"the page cannot be served at {HOST}:{port} ({why}); {PORT_WORDS}") from error
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


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    directory: Path
    key: str
    timeout = SECONDS
    server_version, sys_version = "headwater", ""

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0]
        _, key, name = [*self.path.split("/", 2), "", ""][:3]
        if host not in (HOST, "localhost") or not hmac.compare_digest(key.encode(), self.key.encode()):
            self._reply(404, "text/plain", "there is nothing here; open the address that `deploy watch` printed\n")
            return
        nonce = secrets.token_urlsafe(16)
        try:
            if name == "":
                self._reply(200, "text/html", live_page.page(overview.read(self.directory), nonce), nonce)
            elif name == "content":
                self._reply(200, "text/html", live_page.content(overview.read(self.directory)), nonce)
            else:
                self._reply(404, "text/plain", "there is nothing here\n")
        except UserError as error:
            self._reply(500, "text/plain", f"{error}\n")

    def _reply(self, code: int, kind: str, text: str, nonce: str = "") -> None:
        body = text.encode(errors="replace")
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", live_page.policy(nonce) if nonce else "default-src 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a page asks every other second."""
