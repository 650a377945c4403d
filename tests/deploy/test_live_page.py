"""The page of `deploy watch`: what it tells, that it escapes, who may read it, and how it looks in a real browser."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from browser import chromium
from headwater.deploy import overview
from headwater.deploy.live_page import PageServer
from headwater.errors import ConfigError

EVIL = '"><script>document.title="caught"</script><img src=x onerror=\'document.title="caught"\'>\u202e'


def member(**fields: Any) -> dict[str, Any]:
    now = time.time()
    known = {"connected": True, "since": now - 900, "answered": now - 4, "asked": None, "until": None, "what": ""}
    return known | fields


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Folders of a server, a host and a client, as running parties leave them, with hostile texts in them."""
    now, root = time.time(), tmp_path / "f"
    agreed = {
        "config": '[algorithm]\nname = "fedhead"\n[data]\nname = "digits"\n',
        "sectors": {"s0": ["c0", "c3", "c4"], "s1": ["c1", "c2"]},
        "names": {"c0": EVIL},
    }
    below = {
        "server": {
            "s0": member(asked=now - 45, until=now + 555, what=f"work {EVIL}"),
            "s1": member(connected=False, since=now - 130),
        },
        "s0": {"c0": member(), "c3": member(asked=now - 45, until=now + 555, what="work of round 7"), "c4": member()},
        "c0": {},
    }
    visitor = {"key": f"SHA256:{EVIL}", "name": "", "attempts": 12, "first": now - 300, "last": now - 9}
    for name, role in (("server", "server"), ("s0", "sector"), ("c0", "client")):
        state = root / name / "state"
        (state / "logs").mkdir(parents=True)
        (root / name / "party.toml").write_text(f'role = "{role}"\nname = "{name}"\n')
        (root / name / "federation.json").write_text(json.dumps(agreed))
        fields = {"pid": os.getpid(), "updated": now, "round": 7, "rounds": 20, "phase": f"training {EVIL}"}
        fields |= {"accuracy": 0.8625, "below": below[name], "refusals": 1, "faults": 2, "other_visitors": 3}
        fields |= {"visitors": [visitor], "sent": {"server_sector": {"down": 5_640_000}}, "message": EVIL}
        (state / "status.json").write_text(json.dumps(fields))
        (state / "logs" / "party.log").write_text(f"2026-11-17 07:00:00 WARNING {name}: refused {EVIL}\n")
    run = root / "server" / "state" / "run"
    run.mkdir()
    rows = [{"round": at, "accuracy": 0.5 + 0.05 * at} for at in range(1, 7)]
    (run / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"round": 7, "acc')
    (run / "timeline.jsonl").write_text(
        json.dumps({"round": 6, "task": EVIL, "node": "c1", "start": 1, "end": 9}) + "\n"
    )
    return root


@pytest.fixture
def served(out: Path) -> Iterator[PageServer]:
    server = PageServer(out)
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield server
    server.close()
    thread.join()


def asked(address: str, path: str, host: str = "", method: str = "GET") -> tuple[int, str]:
    parts = urlsplit(address)
    link = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    link.request(method, path, headers={"Host": host or parts.netloc})
    reply = link.getresponse()
    return reply.status, reply.read().decode()


def test_the_tree_has_every_party_with_its_state_as_far_as_it_is_known(out: Path) -> None:
    found = overview.read(out)
    states = {node.name: node.state for node in found.nodes}
    assert states == {
        "server": "running",
        "s0": "running",
        "c0": "running",
        "c3": "waiting",
        "c4": "running",
        "s1": "away",
        "c1": "unknown",
        "c2": "unknown",
    }
    assert [node.depth for node in found.nodes] == [0, 1, 2, 2, 2, 1, 2, 2]
    assert (found.title, found.round, found.rounds, found.accuracy) == ("fedhead on digits", 7, 20, 0.8625)
    assert [at for at, _ in found.curve] == [1, 2, 3, 4, 5, 6]
    assert any(sentence.startswith("s0 has had no answer from c3 for 45 s") for sentence in found.stuck)
    assert any(sentence.startswith("s1 has not been connected to server for 2 min") for sentence in found.stuck)
    shutil.rmtree(out / "server")
    shutil.rmtree(out / "s0")
    alone = overview.read(out / "c0")
    assert {node.name: node.state for node in alone.nodes}["c0"] == "running"
    assert {node.state for node in alone.nodes if not node.here} == {"unknown"}


@pytest.mark.parametrize("content", ["{", "[]", "null", '{"below": 3, "visitors": {}, "sent": [1], "awaited": "x"}'])
def test_a_broken_status_does_not_break_the_page(out: Path, content: str) -> None:
    for name in ("server", "s0"):
        (out / name / "state" / "status.json").write_text(content)
        (out / name / "federation.json").write_text(content)
    assert overview.read(out).nodes


def test_only_who_was_told_the_address_can_read_it(served: PageServer) -> None:
    path = urlsplit(served.address).path
    assert urlsplit(served.address).hostname == "127.0.0.1"
    status, text = asked(served.address, path)
    assert (status, "fedhead on digits" in text) == (200, True)
    assert asked(served.address, f"{path}content")[0] == 200
    for other in ("/", "//", "/content", "/x/", f"{path}../../party.toml", f"{path}keys"):
        assert asked(served.address, other)[0] == 404, other
    assert asked(served.address, path, host="evil.example")[0] == 404
    assert asked(served.address, path, method="POST")[0] == 501


def test_texts_of_other_parties_are_escaped(served: PageServer) -> None:
    _, text = asked(served.address, urlsplit(served.address).path)
    assert "<script>document" not in text
    assert "<img" not in text
    assert "\u202e" not in text
    assert text.count("&lt;script&gt;document") > 5


def test_a_port_in_use_is_refused_with_a_sentence(out: Path, served: PageServer) -> None:
    for port in (urlsplit(served.address).port or 0, 70000):
        with pytest.raises(ConfigError, match="choose another --port"):
            PageServer(out, port)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from chromium(tmp_path_factory.mktemp("profile"))


@pytest.mark.parametrize(
    ("theme", "dark", "width"),
    [
        ("light", False, 420),
        pytest.param("dark", True, 1280, marks=pytest.mark.thorough),
        pytest.param("light", False, 1280, marks=pytest.mark.thorough),
        pytest.param("dark", True, 420, marks=pytest.mark.thorough),
    ],
)
def test_in_a_browser_it_fits_renews_itself_and_runs_no_foreign_script(
    browser: Any, served: PageServer, out: Path, width: int, theme: str, dark: bool
) -> None:
    browser.get_log("browser")
    scheme = {"name": "prefers-color-scheme", "value": theme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(served.address)
    root = "document.documentElement"
    wanted, room = browser.execute_script(f"return [{root}.scrollWidth, {root}.clientWidth]")
    assert wanted <= room <= width
    colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    parts = [int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    assert (sum(parts) < 3 * 128) == dark
    assert browser.execute_script("return document.querySelectorAll('.tree tbody tr').length") == 8
    browser.execute_script("document.getElementById('log-s0').open = true")
    state = out / "server" / "state" / "status.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"round": 13}))
    read = "return document.querySelector('.facts dd').textContent"
    end = time.monotonic() + 60
    while "13" not in browser.execute_script(read) and time.monotonic() < end:
        time.sleep(0.2)
    assert browser.execute_script(read) == "13 of 20"
    assert browser.execute_script("return document.getElementById('log-s0').open") is True
    assert browser.title == "fedhead on digits · Headwater"
    assert browser.get_log("browser") == []
