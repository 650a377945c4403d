"""/healthz and /metrics of a party."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

import pytest

pytest.importorskip("prometheus_client")
from headwater.deploy.metrics import serve_metrics
from headwater.deploy.transport import Address
from headwater.errors import ConfigError


class FakeStatus:
    fields = {  # noqa: RUF012
        "party": "s0",
        "role": "sector",
        "phase": "waiting",
        "round": 3,
        "rounds": 9,
        "accuracy": None,
        "updated": 5.0,
        "refusals": 2,
        "faults": 4,
        "sent": {"relay": {"down": 70}},
        "below": {'c"0\n': {"connected": True, "asked": None, "answered": 4.0}},
        "visitors": [{"name": "", "attempts": 3}, {"name": "c0", "attempts": 1}],
        "other_visitors": 5,
    }


class FakeObservation:
    found: list[str] = []  # noqa: RUF012

    def problems(self) -> list[str]:
        return self.found


def get(port: int, path: str) -> tuple[int, str]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    link.request("GET", path)
    reply = link.getresponse()
    return reply.status, reply.read().decode()


def test_health_and_metrics() -> None:
    status: Any = FakeStatus()
    seen: Any = FakeObservation()
    said: list[str] = []
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    server = serve_metrics(Address("127.0.0.1", port), status, seen, said.append)
    try:
        code, text = get(port, "/healthz")
        assert (code, json.loads(text)["healthy"], json.loads(text)["party"]) == (200, True, "s0")
        seen.found = ["the link to the party above is down"]
        code, text = get(port, "/healthz")
        assert (code, json.loads(text)["problems"]) == (503, seen.found)
        code, text = get(port, "/metrics")
        assert code == 200
        lines = text.splitlines()
        assert "headwater_round 3.0" in lines
        assert "headwater_refusals_total 2.0" in lines
        assert 'headwater_sent_bytes_total{direction="down",tier="relay"} 70.0' in lines
        assert 'headwater_member_connected{member="c\\"0\\n"} 1.0' in lines
        assert 'headwater_refused_joins_total{kind="stranger"} 8.0' in lines
        assert not any(line.startswith("headwater_accuracy") for line in lines)
        assert get(port, "/etc/passwd")[0] == 404
        with pytest.raises(ConfigError, match="choose another address or port"):
            serve_metrics(Address("127.0.0.1", port), status, seen, said.append)
    finally:
        server.close()
    assert said == [f"/healthz and /metrics are served at http://127.0.0.1:{port}"]
