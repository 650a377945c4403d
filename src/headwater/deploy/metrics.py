"""/healthz and /metrics of a running party, for a monitoring system. Nothing listens unless the operator says where."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from headwater import __version__
from headwater.core.records import to_json
from headwater.deploy.observation import Observation
from headwater.deploy.status import Status
from headwater.deploy.transport import Address
from headwater.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

SECONDS = 10.0  # for a caller to send its request


class PartyCollector:
    """A collector of `prometheus_client`: the status of a party as metrics, at the moment of a request.

    Args:
        fields: returns the fields of the status.
    """

    def __init__(self, fields: Callable[[], dict[str, Any]]) -> None:
        self._fields = fields

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        fields, now = self._fields(), time.time()
        about = {"name": str(fields["party"]), "role": str(fields["role"]), "version": __version__}
        yield InfoMetricFamily("headwater_party", "Which party this is.", about)
        for key, what in (
            ("round", "The current round."),
            ("rounds", "Rounds of the run."),
            ("accuracy", "Test accuracy after the last round that was measured."),
        ):
            if fields.get(key) is not None:
                yield GaugeMetricFamily(f"headwater_{key}", what, fields[key])
        start = GaugeMetricFamily("headwater_status_timestamp_seconds", "When the status last changed.")
        start.add_metric([], fields["updated"])
        yield start
        for key in ("refusals", "faults"):
            what = f"{key.capitalize()} since this process was started."
            yield CounterMetricFamily(f"headwater_{key}", what, fields.get(key, 0))
        sent = CounterMetricFamily(
            "headwater_sent_bytes", "Payload sent, over all starts.", labels=["tier", "direction"]
        )
        for tier, ways in fields.get("sent", {}).items():
            for direction, total in ways.items():
                sent.add_metric([tier, direction], total)
        yield sent
        yield from self._members(fields.get("below", {}), now)
        visitors = CounterMetricFamily(
            "headwater_refused_joins", "Attempts to join this link, by strangers and by twins.", labels=["kind"]
        )
        known = fields.get("visitors", [])
        twins = sum(visitor["attempts"] for visitor in known if visitor["name"])
        visitors.add_metric(["twin"], twins)
        others = fields.get("other_visitors", 0)
        visitors.add_metric(["stranger"], sum(visitor["attempts"] for visitor in known) - twins + others)
        yield visitors

    def _members(self, below: dict[str, dict[str, Any]], now: float) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        connected = GaugeMetricFamily("headwater_member_connected", "1 if it is connected.", labels=["member"])
        waiting = GaugeMetricFamily(
            "headwater_member_waiting_seconds",
            "How long it has owed an answer; 0 for none.",
            labels=["member"],
        )
        answered = GaugeMetricFamily(
            "headwater_member_answer_timestamp_seconds", "When it last answered.", labels=["member"]
        )
        for name, member in below.items():
            if member.get("revoked"):
                continue
            connected.add_metric([name], float(member["connected"]))
            waiting.add_metric([name], 0.0 if member["asked"] is None else max(0.0, now - member["asked"]))
            if member["answered"] is not None:
                answered.add_metric([name], member["answered"])
        yield from (connected, waiting, answered)


def need_prometheus() -> None:
    """Raise MissingExtra unless `prometheus_client` is installed."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise MissingExtra("--metrics", "metrics") from None


class MetricsServer:
    """Answers GET /healthz and GET /metrics until it is closed.

    Args:
        address: where to listen.
        status: of the party.
        seen: what can be observed of it.
    """

    def __init__(self, address: Address, status: Status, seen: Observation) -> None:
        need_prometheus()
        from prometheus_client import CollectorRegistry, ProcessCollector

        registry = CollectorRegistry()
        registry.register(PartyCollector(lambda: status.fields))
        ProcessCollector(registry=registry)  # memory, open files and processor time
        handler = type("Handler", (_MetricsHandler,), {"registry": registry, "status": status, "seen": seen})
        try:
            self._server = ThreadingHTTPServer((address.host, address.port), handler)
        except OSError as error:
            raise ConfigError(
                f"--metrics {address} cannot be opened ({error.strerror or error}); choose another address or port"
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_metrics(address: Address, status: Status, seen: Observation, log: Callable[[str], None]) -> MetricsServer:
    """Start a `MetricsServer`, and log where it is and who can read it.

    Args:
        address: where to listen.
        status: of the party.
        seen: what can be observed of it.
        log: takes a sentence.
    """
    server = MetricsServer(address, status, seen)
    open_to = "" if address.loopback else "; whoever reaches this address can read it, without encryption or password"
    log(f"/healthz and /metrics are served at http://{address}{open_to}")
    return server


class _MetricsHandler(BaseHTTPRequestHandler):
    """One request."""

    registry: CollectorRegistry
    status: Status
    seen: Observation
    timeout = SECONDS
    server_version, sys_version = "headwater", ""

    def do_GET(self) -> None:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._reply(200, CONTENT_TYPE_LATEST, generate_latest(self.registry))
        elif path == "/healthz":
            problems = self.seen.problems()
            fields = self.status.fields
            about = {key: fields[key] for key in ("party", "role", "phase", "round", "rounds")}
            text = to_json({"healthy": not problems, "problems": problems, **about})
            self._reply(503 if problems else 200, "application/json", text.encode())
        else:
            self._reply(404, "text/plain; charset=utf-8", b"there are /healthz and /metrics here\n")

    def _reply(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a monitoring system asks every few seconds."""
