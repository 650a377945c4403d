"""The served report: who may read it, and that it follows the files."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headwater.errors import ConfigError
from headwater.report.live import RunsPage, state_of


@pytest.fixture
def served(fake, tmp_path: Path) -> Iterator[RunsPage]:
    fake(stop=2).write(tmp_path / "runs" / "a")
    server = RunsPage(tmp_path / "runs")
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield server
    server.close()
    thread.join()


def asked(server: RunsPage, path: str, host: str = "") -> tuple[int, str, str]:
    parts = urlsplit(server.address)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    connection.request("GET", path, headers={"Host": host} if host else {})
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, text, reply.getheader("Content-Security-Policy") or ""


def test_only_the_printed_address_answers_and_only_on_loopback(served):
    parts = urlsplit(served.address)
    assert parts.hostname == "127.0.0.1"
    assert len(parts.path.strip("/")) >= 20
    assert asked(served, "/")[0] == 404
    assert "open the address that `headwater watch` printed" in asked(served, "/")[1]
    assert asked(served, "/guessed/")[0] == 404
    assert asked(served, parts.path, host=f"evil.example:{parts.port}")[0] == 404
    assert asked(served, parts.path + "../etc/passwd")[0] == 404
    status, text, policy = asked(served, parts.path)
    assert (status, "2 of 8, unfinished" in text) == (200, True)
    nonce = policy.split("'nonce-")[1].split("'")[0]
    assert f'<script nonce="{nonce}">' in text
    assert "connect-src 'self'" in policy
    assert "unsafe-eval" not in policy


def test_the_state_changes_with_the_files_of_any_run(served, fake, tmp_path):
    path = urlsplit(served.address).path
    before = asked(served, path + "state")[1]
    assert asked(served, path + "state")[1] == before
    assert f'data-live="{before}"' in asked(served, path)[1]
    fake(method="b", stop=1).write(tmp_path / "runs" / "b")
    after = asked(served, path + "state")[1]
    assert after != before
    assert "<h1>2 methods" in asked(served, path)[1]
    (tmp_path / "runs" / "b" / "notes.txt").write_text("mine")
    assert state_of(tmp_path / "runs") == after, "other files are not those of a run"


def test_a_damaged_run_is_told_in_a_sentence(served, tmp_path):
    (tmp_path / "runs" / "a" / "config.toml").write_text("seed = ")
    status, text, _ = asked(served, urlsplit(served.address).path)
    assert status == 500
    assert "is not valid TOML" in text


def test_a_port_in_use_is_refused(tmp_path):
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(ConfigError, match=r"cannot be served at 127\.0\.0\.1.*--port, or 0"):
        RunsPage(tmp_path, taken.getsockname()[1])
    with pytest.raises(ConfigError, match="ports go up to 65535"):
        RunsPage(tmp_path, 70_000)
