"""`headwater deploy`: its commands, and their messages for mistakes."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.cli.app import main
from headwater.deploy.folder import PartyFolder
from headwater.deploy.sent_log import SentLog
from headwater.deploy.status import Status, read

pytest.importorskip("cryptography")
Call = Callable[..., Any]
SETS = ("--set", "partition.clients=4", "--set", "partition.sectors=2", "--set", "partition.assign=[0, 1, 1, 0]")
PARTIES = ["server", "s0", "s1", "c0", "c1", "c2", "c3"]
PATIENCE = 600  # seconds; processes start slowly on a busy machine
# A background job inherits that SIGINT is ignored; a command at a terminal does not.
HEED = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
CODE = f"{HEED}; from headwater.cli.app import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def whole(npz: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deploy") / "f"
    words = ("deploy", "init", "fedavg", "--set", f"data.name={npz}", "--set", "partition.alpha=1.0", *SETS, "--quiet")
    assert main([*words, "--rounds", "5", "--out", str(path), "--json"]) == 0
    return path


@pytest.fixture
def out(whole: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(whole, tmp_path / "f"))


def test_init_prints_the_folders_and_the_next_steps(call: Call, npz: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'data.name = "{npz}"\nalgorithm.name = "fedavg"\npartition.alpha = 1.0\n')
    told = call("deploy", "init", file, *SETS, "--out", tmp_path / "f")
    assert told.status == 0
    lines = [line.split() for line in told.out.splitlines()]
    assert ["server", "server", "127.0.0.1:9100"] in lines
    assert ["s1", "sector", "127.0.0.1:9102", "127.0.0.1:9100"] in lines
    assert ["c1,", "c2", "client", "127.0.0.1:9102"] in [line[:4] for line in lines]
    assert f"headwater deploy sector {shlex.quote(str(tmp_path / 'f' / 's0'))}" in told.out
    assert "keep it to yourself" in told.out
    assert (tmp_path / "f" / "c3" / "data.npz").exists()


def test_init_as_json(call: Call, npz: Path, tmp_path: Path) -> None:
    told = call("deploy", "init", "--set", f"data.name={npz}", *SETS, "--out", tmp_path / "f", "--json")
    facts = json.loads(told.out)
    assert [party["name"] for party in facts["parties"]][:3] == ["server", "s0", "s1"]
    assert facts["sectors"] == {"s0": ["c0", "c3"], "s1": ["c1", "c2"]}
    held = PartyFolder.open(tmp_path / "f" / "server").federation
    assert facts["federation_sha256"] == held.sha256
    assert sum(party["rows"] for party in facts["parties"]) > 0


def test_clients_without_rows_are_told_in_one_sentence(call: Call, npz: Path, tmp_path: Path) -> None:
    words = ("--set", "partition.clients=40", "--set", "partition.alpha=0.01", "--set", f"data.name={npz}", "--quiet")
    told = call("deploy", "init", "fedavg", *words, "--out", tmp_path / "f", "--json")
    left = json.loads(told.out)["left_out"]
    assert left
    assert told.err == f"headwater: left out, since there is no data for it: {', '.join(left)}\n"
    assert not any((tmp_path / "f" / name).exists() for name in left)


def test_init_refuses_with_a_sentence(call: Call, npz: Path, tmp_path: Path) -> None:
    small = ("--set", f"data.name={npz}", *SETS, "--out", tmp_path / "g", "--quiet")
    cases = [
        (("centralized", *small), "method 'centralized' cannot be deployed: it pools every client's rows"),
        (("fedavgg", *small), "did you mean"),
        (("nothing.toml", *small), "nothing.toml"),
        (("fedavg", *small, "--set", "deploy.server_address=here"), "deploy.server_address must be a host and a port"),
        (("fedavg", *small, "--set", "deploy.sector_addresses=['a:1']"), "names 1 addresses for 2 sectors"),
        (("fedavg", *small, "--set", "deploy.quorum=2"), "deploy.quorum must be"),
        (("fedavg", "--out", npz), "is a file, so folders cannot go to"),
        (("fedavg", "--outt", "x"), "no such option: --outt"),
    ]
    for words, sentence in cases:
        told = call("deploy", "init", *words)
        assert told.status == 2, words
        assert sentence in told.err
        assert told.err.count("\n") == 1
        assert told.out == ""
    assert not (tmp_path / "g").exists()


def test_init_leaves_a_federation_alone_unless_forced(call: Call, npz: Path, out: Path) -> None:
    words = ("deploy", "init", "fedavg", "--set", f"data.name={npz}", *SETS, "--out", out, "--quiet")
    told = call(*words)
    assert told.status == 2
    assert "already holds a federation" in told.err
    before = (out / "c0" / "keys" / "node.pub").read_bytes()
    assert call(*words, "--force").status == 0
    assert (out / "c0" / "keys" / "node.pub").read_bytes() != before


@pytest.mark.thorough
def test_a_missing_part_is_named_with_its_install_command(npz: Path, out: Path, tmp_path: Path) -> None:
    """In a process that cannot import it."""
    code = "import sys; sys.modules[{!r}] = None; from headwater.cli.app import main; sys.exit(main(sys.argv[1:]))"
    for module, words in (
        ("cryptography", ("init", "--out", str(tmp_path / "g"))),
        ("flwr", ("client", str(out / "c0"))),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code.format(module), "deploy", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done.stderr
        assert "install it with: pip install 'headwater[flower]'" in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_party_is_started_only_as_what_it_is(call: Call, out: Path) -> None:
    cases = [
        (
            ("client", out / "s0"),
            f"{out / 's0'} is the folder of sector s0, not of a client; start it with: headwater deploy sector",
        ),
        (("server", out / "c0"), "is the folder of client c0, not of a server"),
        (("sector", out), f"{out} holds the folders of several parties; name one, such as {out / 's0'}"),
        (("client", out / "c9"), f"there is no directory {out / 'c9'}"),
        (("client", out / "ca"), "is no party's folder and holds none"),
        (("client",), "missing argument 'DIR'"),
        (("klient", out / "c0"), "there is no command 'klient' in headwater deploy; did you mean 'client'?"),
    ]
    for words, sentence in cases:
        told = call("deploy", *words)
        assert told.status == 2, words
        assert sentence in told.err
        assert told.err.count("\n") == 1


def test_options_of_a_party_are_checked_before_anything_starts(call: Call, out: Path) -> None:
    pytest.importorskip("flwr")
    for words, sentence in (
        (("--log-format", "jsn"), "--log-format must be one of text, json, got 'jsn'; did you mean 'json'?"),
        (("--log-level", "all"), "--log-level must be one of debug, info, warning, error, got 'all'"),
        (("--metrics", "9200"), "--metrics must be a host and a port"),
    ):
        told = call("deploy", "client", out / "c0", *words)
        assert (told.status, told.err.count("\n")) == (2, 1)
        assert sentence in told.err


def test_keys_are_checked_before_anything_starts(call: Call, out: Path) -> None:
    pytest.importorskip("flwr")
    key = out / "c0" / "keys" / "node.key"
    key.chmod(0o644)
    told = call("deploy", "client", out / "c0")
    assert told.status == 2
    assert told.err.endswith(f"do: chmod 600 {shlex.quote(str(key))}\n")
    key.chmod(0o600)
    key.write_bytes((out / "c1" / "keys" / "node.key").read_bytes())
    assert "is not the public half of" in call("deploy", "client", out / "c0").err


@pytest.mark.parametrize("ending", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)])
def test_a_stopped_party_prints_how_to_continue(out: Path, ending: signal.Signals) -> None:
    """A client whose sector is not up waits; after a signal it ends with one line."""
    pytest.importorskip("flwr")
    pytest.importorskip("headwater.deploy.party_process")
    words = ("deploy", "client", str(out / "c0"), "--quiet")
    with (out / "told").open("w") as told:
        process = subprocess.Popen(
            [sys.executable, "-c", CODE, *words], stderr=told, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        try:
            until = time.monotonic() + PATIENCE
            while (
                not (out / "c0" / "state" / "status.json").exists()
                and process.poll() is None
                and time.monotonic() < until
            ):
                time.sleep(0.1)
            process.send_signal(ending)
            assert process.wait(PATIENCE) == 130
        finally:
            process.kill()
            process.wait()
    last = (out / "told").read_text(encoding="utf-8").splitlines()[-1]
    assert last.startswith("headwater: client c0 was ended; what it has is kept, and it carries on with: ")
    assert last.endswith(f"headwater deploy client {shlex.quote(str(out / 'c0'))}")


HOLD = """
import sys, time
from pathlib import Path
from headwater.deploy.folder import PartyFolder
from headwater.deploy.status import Status, read
folder = PartyFolder.open(Path(sys.argv[1]))
told = Status(folder)
told.update(phase="training", round=4, message="40 of 90 steps")
while read(folder.state)["phase"] != "training":
    time.sleep(0.05)
print("here", flush=True)
sys.stdin.read()  # until it is killed
"""


def said(folder: Path, phase: str, **fields: Any) -> Status:
    """The status of a running party, once it is on disk."""
    told = Status(PartyFolder.open(folder))
    told.update(phase=phase, **fields)
    while read(folder / "state")["phase"] != phase:
        time.sleep(0.05)
    return told


@pytest.fixture(scope="module")
def states(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A server and a sector that run, a client that was killed, and others that were never started."""
    out = Path(shutil.copytree(whole, tmp_path_factory.mktemp("states") / "f"))
    words = [sys.executable, "-c", HOLD, str(out / "c0")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "here\n"
        killed.kill()
    server = said(out / "server", "waiting for sectors", round=4, accuracy=0.8125, present={"s1"})
    sector = said(out / "s1", "asking clients", round=4, present=["c1", "c2"])
    yield out
    server.close()
    sector.close()


def row_of(text: str, party: str) -> str:
    [line] = [line for line in text.splitlines() if line.split()[:1] == [party]]
    return " ".join(line.split())


def test_status_of_a_federation_is_a_table(call: Call, states: Path) -> None:
    told = call("deploy", "status", states)
    assert told.status == 0
    assert row_of(told.out, "server").startswith(
        "server server yes 4 of 5 waiting for sectors 81.2 % 1 of 2 present, without s0"
    )
    assert row_of(told.out, "s1").startswith("s1 sector yes 4 of 5 asking clients 2 of 2 present")
    assert row_of(told.out, "c0").startswith("c0 client no 4 of 5 training")
    assert row_of(told.out, "c0").endswith("ago")
    assert row_of(told.out, "s0") == "s0 sector no not started yet"


def test_status_of_one_party_and_as_json(call: Call, states: Path) -> None:
    [row] = json.loads(call("deploy", "status", states / "c0", "--json").out)
    assert (row["party"], row["up"], row["phase"], row["message"]) == ("c0", False, "training", "40 of 90 steps")
    assert row["seconds"] >= 0
    rows = json.loads(call("deploy", "status", states, "--json").out)
    assert [row["party"] for row in rows] == PARTIES
    assert [row["up"] for row in rows] == [True, False, True, False, False, False, False]
    assert rows[1]["seconds"] is None
    assert rows[0]["present"] == ["s1"]


@pytest.mark.parametrize("key", ["present", "members", "below", "late"])
@pytest.mark.parametrize("value", [3, [["c0"], 5, "c1"], {"c1": 4}, None, "c1"])
def test_a_damaged_status_is_shown_all_the_same(call: Call, whole: Path, tmp_path: Path, key: str, value: Any) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "f"))
    said(out / "s0", "asking clients", present=["c0"]).close()
    file = out / "s0" / "state" / "status.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    told = call("deploy", "status", out)
    assert told.status == 0, told.err
    assert row_of(told.out, "s0").startswith("s0 sector no")


def test_status_loads_neither_torch_nor_pydantic(states: Path) -> None:
    heavy = "print(sorted({'torch', 'numpy', 'pydantic', 'flwr'} & set(sys.modules)), file=sys.stderr)"
    for command in ("status", "audit"):
        code = f"import sys; from headwater.cli.app import main; main(['deploy', '{command}', sys.argv[1]]); {heavy}"
        done = subprocess.run([sys.executable, "-c", code, str(states)], capture_output=True, text=True, check=True)
        assert done.stderr == "[]\n"


def test_status_refuses_with_a_sentence(call: Call, out: Path, tmp_path: Path) -> None:
    assert "there is no directory" in call("deploy", "status", tmp_path / "nowhere").err
    assert "is no party's folder and holds none" in call("deploy", "status", out / "ca").err
    told = call("deploy", "status", out, "--watch", "--json")
    assert told.status == 2
    assert "use one of them" in told.err
    (out / "c0" / "party.toml").write_text("role = ")
    assert "is not valid TOML" in call("deploy", "status", out).err
    (out / "c0" / "party.toml").write_text('role = "boss"')
    assert "needs a role (server, sector, client) and a name" in call("deploy", "status", out).err


def test_ctrl_c_ends_watching_with_status_0(states: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, "deploy", "status", str(states / "s1"), "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "140"},  # so that no cell is broken
    )
    assert process.stdout is not None
    try:
        seen = ""
        while "asking clients" not in seen:
            line = process.stdout.readline()
            assert line, "it ended"
            seen += line
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, err) == (0, "")
    finally:
        process.kill()
        process.wait()


def test_audit_sums_what_was_sent(call: Call, out: Path) -> None:
    sent = SentLog(PartyFolder.open(out / "s1"))
    for round in (1, 2, 3):
        sent.add(round, "server", "model", "server_sector", "up", 1_000_000, f"r{round}.mean")
        for client in ("c1", "c2"):
            sent.add(round, client, "model", "sector_client", "down", 500_000, f"r{round}.start")
        sent.add(round, "server", "control", "server_sector", "up", 0, "sizes")
        sent.add(round, "server", "control", "server_sector", "up", 0, "losses")
    sent.add(2, "c1", "models", "relay", "down", 700, "r2.team")
    sent.close()
    told = call("deploy", "audit", out / "s1")
    lines = [" ".join(line.split()) for line in told.out.splitlines()]
    assert "s1 server model server – sectors up 3 3.00 MB 1 to 3" in lines
    assert "s1 c2 model sectors – clients down 3 1.50 MB 1 to 3" in lines
    assert "s1 c1 models relayed inside a sector down 1 700 B 2" in lines
    assert "s1 also sent to server, as control: losses (3 times), sizes (3 times)." in lines
    [facts] = json.loads(call("deploy", "audit", out / "s1", "--json").out)
    assert facts["bytes"] == {
        "relay": {"down": 700},
        "sector_client": {"down": 3_000_000},
        "server_sector": {"up": 3_000_000},
    }
    assert sum(row["bytes"] for row in facts["payload"]) == 6_000_700
    assert {row["what"] for row in facts["control"]} == {"sizes", "losses"}
    everybody = json.loads(call("deploy", "audit", out, "--json").out)
    assert [party["party"] for party in everybody] == PARTIES
    assert everybody[2] == facts
    assert "Nothing was sent yet by server, s0, c0, c1 and 2 more." in call("deploy", "audit", out).out
    assert call("deploy", "audit", out / "c3").out == "Nothing was sent yet by c3.\n"


def test_help_of_all_commands(call: Call) -> None:
    assert call("deploy").out == call("deploy", "--help").out
    for command in ("init", "server", "sector", "client", "status", "watch", "audit"):
        told = call("deploy", command, "--help")
        assert told.status == 0
        assert f"headwater deploy {command}" in told.out
