"""Reading a party's folder, and the error message for every mistake in it."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.config import Config
from headwater.deploy import authority, key_check, sent_log, status
from headwater.deploy.folder import LinkSettings, PartyFolder
from headwater.deploy.init import init
from headwater.deploy.transport import Address
from headwater.errors import ConfigError
from headwater.training.experiment import prepare

pytest.importorskip("cryptography")
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("folder") / "federation"
    sets = ["partition.clients=4", "partition.sectors=2", "partition.alpha=1.0", "partition.assign=[0, 1, 1, 0]"]
    init(prepare(Config.load("fedhead", [*sets, "rounds=3"])), out)
    return out


@pytest.fixture
def out(federation: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(federation, tmp_path / "federation"))


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        key_check.check(PartyFolder.open(path))
    return str(caught.value)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_fields_of_each_role(out: Path) -> None:
    server, sector, client = (PartyFolder.open(out / name) for name in ("server", "s1", "c2"))
    assert (server.role, server.name, server.above, server.data) == ("server", "server", None, None)
    assert server.link == LinkSettings("127.0.0.1:9100", ("s0", "s1"))
    assert (sector.role, sector.above) == ("sector", "127.0.0.1:9100")
    assert sector.link == LinkSettings("127.0.0.1:9102", ("c1", "c2"))
    assert (client.role, client.above, client.link) == ("client", "127.0.0.1:9102", None)
    assert client.data == str(out / "c2" / "data.npz")
    assert (client.path, client.state, client.keys) == (out / "c2", out / "c2" / "state", out / "c2" / "keys")
    assert not client.insecure
    told = client.federation
    assert told == server.federation
    assert told.config.rounds == 3
    assert (told.shape, told.classes, told.words, len(told.class_names)) == ((1, 8, 8), 10, None, 10)
    assert told.sectors == {"s0": ("c0", "c3"), "s1": ("c1", "c2")}
    assert told.sha256 == hashlib.sha256((out / "c0" / "federation.json").read_bytes()).hexdigest()
    for folder in (server, sector, client):
        assert key_check.check(folder) == []


def test_a_party_chooses_its_own_device(out: Path) -> None:
    assert PartyFolder.open(out / "c2").device == "auto"
    edit(out / "c2" / "party.toml", "role =", 'device = "cuda:1"\nrole =')
    assert PartyFolder.open(out / "c2").device == "cuda:1"
    edit(out / "c2" / "party.toml", 'device = "cuda:1"', "device = 1")
    assert "device must be a text" in refused(out / "c2")


def test_state_is_made_for_the_owner_alone(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(out)
    state = PartyFolder.open(Path("c0")).state
    assert state.is_absolute()
    assert state.stat().st_mode & 0o777 == 0o700
    state.chmod(0o755)
    PartyFolder.open(out / "c0")
    assert state.stat().st_mode & 0o777 == 0o700


PARTY = {
    'role = "client"|role = "clinet"': "role must be server, sector or client, got 'clinet'; did you mean 'client'?",
    'role = "client"|': "has no role; it begins with a role",
    'name = "c0"|': "has no name; it begins with a role",
    'name = "c0"|name = ""': "name must be a text, got ''",
    'name = "c0"|name = "c9"': "there is no client 'c9' in this federation",
    'name = "c0"|name = "../c1"': "there is no client '../c1' in this federation",
    'name = "c0"|name = "s0"': "there is no client 's0' in this federation",
    'name = "c0"|nane = "c0"': "has an unknown key 'nane'; did you mean 'name'? (accepted in the top level: role,",
    'name = "c0"|name = 3': "name must be a text, got 3",
    "insecure = false|insecure = 1": "insecure must be true or false, got 1",
    "[above]|[abvoe]": "has an unknown key 'abvoe'; did you mean 'above'?",
    "[data]|[link]": "[link] is not for a client; remove it",
    'address = "127.0.0.1:9101"|': "has no above.address; a client needs it",
    'address = "127.0.0.1:9101"|adress = "a:1"': "has an unknown key 'above.adress'; did you mean 'address'?",
    'address = "127.0.0.1:9101"|address = "127.0.0.1"': "above.address must be a host and a port",
    'address = "127.0.0.1:9101"|address = "0.0.0.0:9101"': "cannot be dialled",
    'name = "data.npz"|name = "mine.csv"': "data.name is 'mine.csv', but there is no",
    '[data]\nname = "data.npz"|': "has no [data], which a client needs (keys: name)",
    'role = "client"|role = client': "is not valid TOML",
}


@pytest.mark.parametrize("change", PARTY)
def test_a_wrong_party_file_is_refused_with_its_path(out: Path, change: str) -> None:
    old, _, new = change.partition("|")
    file = out / "c0" / "party.toml"
    edit(file, old, new)
    told = refused(out / "c0")
    assert str(file) in told
    assert PARTY[change] in told


LINK = {
    '"c0"|"c1"': "names 'c1', which is not below s0 in this federation; did you mean",
    '"c3"|"c0"': "must name parties, each once",
    '"c3"|3': "must name parties, each once",
    '[link]|[link]\nreach = "0.0.0.0:9101"': "link.reach 0.0.0.0:9101 cannot be dialled",
    '[link]|[link]\nreach = "north"': "link.reach must be a host and a port",
    "[link]|[links]": "has an unknown key 'links'; did you mean 'link'?",
}


@pytest.mark.parametrize("change", LINK)
def test_a_wrong_link_is_refused_with_the_path_of_its_file(out: Path, change: str) -> None:
    old, _, new = change.partition("|")
    edit(out / "s0" / "party.toml", old, new)
    told = refused(out / "s0")
    assert str(out / "s0" / "party.toml") in told
    assert LINK[change] in told


def test_a_member_may_be_removed(out: Path) -> None:
    edit(out / "s0" / "party.toml", '    "c3",\n', "")
    (out / "s0" / "keys" / "members" / "c3.pub").unlink()
    folder = PartyFolder.open(out / "s0")
    assert folder.link is not None
    assert folder.link.members == ("c0",)


def test_a_clients_own_data_may_be_anywhere(out: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    for name, found in (
        (str(tmp_path / "own"), str(tmp_path / "own")),
        ("../../own", f"{out}/c0/../../own"),
        ("my.package:rows", "my.package:rows"),
    ):
        shutil.copy(out / "c3" / "party.toml", out / "c0" / "party.toml")
        edit(out / "c0" / "party.toml", '"c3"', '"c0"')
        edit(out / "c0" / "party.toml", '"data.npz"', json.dumps(name))
        assert PartyFolder.open(out / "c0").data == found


FEDERATION: dict[str, tuple[Change, str]] = {
    "missing": (lambda file: file.unlink(), "there is no {}"),
    "cut short": (lambda file: file.write_text(file.read_text()[:100]), "{} is not what `headwater deploy init` wrote"),
    "a list": (lambda file: file.write_text("[]"), "{} is not what `headwater deploy init` wrote"),
    "of tomorrow": (lambda file: edit(file, '"version": 1', '"version": 2'), "{}: {} is of version 2"),
    "a bad key": (lambda file: edit(file, "rounds = ", "ronds = "), "{}: there is no setting called 'ronds'"),
    "endless classes": (lambda file: edit(file, '"classes": ', '"classes": 1e400, "was": '), "(OverflowError: "),
    "without classes": (lambda file: edit(file, '"classes"', '"klasses"'), "(KeyError: 'classes')"),
}


@pytest.mark.parametrize("case", FEDERATION)
def test_a_wrong_agreement_is_refused(out: Path, case: str) -> None:
    change, sentence = FEDERATION[case]
    file = out / "c0" / "federation.json"
    change(file)
    assert sentence.replace("{}", str(file)) in refused(out / "c0")


def test_a_changed_copy_of_the_configuration_is_refused(out: Path) -> None:
    edit(out / "c0" / "config.toml", "rounds = 3", "rounds = 30")
    told = refused(out / "c0")
    assert f"{out / 'c0' / 'config.toml'} was changed" in told
    (out / "c0" / "config.toml").unlink()
    assert PartyFolder.open(out / "c0").federation.config.rounds == 3


def test_a_directory_that_is_no_party_folder_is_refused(out: Path) -> None:
    assert "is not a party's folder, since it has no party.toml" in refused(out)
    assert "there is no directory" in refused(out / "c99")
    (out / "server" / "public.value").unlink()
    assert "public.value, which the server needs" in refused(out / "server")


def test_keys_that_other_users_can_read_are_refused(out: Path) -> None:
    for key in (out / "s0" / "keys" / "link.key", out / "s0" / "keys" / "node.key"):
        for mode in (0o640, 0o604, 0o620):
            key.chmod(mode)
            assert refused(out / "s0").endswith(f"do: chmod 600 {shlex.quote(str(key))}")
        key.chmod(0o600)
    folder = out / "s0" / "keys"
    folder.chmod(0o755)
    assert refused(out / "s0").endswith(f"do: chmod 700 {shlex.quote(str(folder))}")


@pytest.mark.parametrize("name", ["ca.crt", "link.crt", "link.key", "node.key", "node.pub", "members/c0.pub"])
def test_a_missing_key_is_named(out: Path, name: str) -> None:
    (out / "s0" / "keys" / name).unlink()
    assert f"there is no {out / 's0' / 'keys' / name}, which sector s0 needs" in refused(out / "s0")


def copied(source: str, target: str) -> Change:
    return lambda out: shutil.copy(out / source, out / target)


WRONG: dict[str, tuple[Change, str]] = {
    "certificate of another": (copied("s1/keys/link.crt", "s0/keys/link.crt"), "is the certificate of another key"),
    "key of another": (copied("s1/keys/link.key", "s0/keys/link.key"), "is the certificate of another key"),
    "authority of nobody": (copied("s0/keys/link.crt", "s0/keys/ca.crt"), "was not signed by"),
    "no certificate": (lambda out: (out / "s0/keys/link.crt").write_text("hello"), "holds no certificate"),
    "no key": (lambda out: (out / "s0/keys/link.key").write_text("hello"), "holds no private key"),
    "node of another": (copied("s1/keys/node.pub", "s0/keys/node.pub"), "is not the public half of"),
    "node in another form": (copied("s0/keys/link.key", "s0/keys/node.key"), "holds no key that Flower takes"),
    "member without a key": (
        lambda out: (out / "s0/keys/members/c3.pub").write_text("ssh-rsa x"),
        "c3.pub holds no public",
    ),
    "another host": (
        lambda out: edit(out / "s0/party.toml", '"127.0.0.1:9101"', '"0.0.0.0:9101"\nreach = "new.example.org:9101"'),
        "is for 127.0.0.1, localhost, but members reach this link at new.example.org",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_keys_that_do_not_belong_together_are_refused(out: Path, case: str) -> None:
    change, sentence = WRONG[case]
    change(out)
    assert sentence in refused(out / "s0")


def test_a_certificate_that_expires_soon_gives_a_warning(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for days, sentence in ((20, "runs out on"), (0, "ran out on")):
        monkeypatch.setattr(authority, "LINK_DAYS", days)
        made = authority.Authority()
        pair = made.link("s0", Address("127.0.0.1", 9101))
        for name, content in (("ca.crt", made.pair.public), ("link.crt", pair.public), ("link.key", pair.private)):
            (out / "s0" / "keys" / name).write_bytes(content)
        if days > 0:
            [told] = key_check.check(PartyFolder.open(out / "s0"))
        else:
            told = refused(out / "s0")
        assert sentence in told


def test_insecure_links_are_on_loopback_only(out: Path) -> None:
    shutil.rmtree(out / "s0" / "keys")
    file = out / "s0" / "party.toml"
    edit(file, "insecure = false", "insecure = true")
    folder = PartyFolder.open(out / "s0")
    assert folder.insecure
    assert key_check.check(folder) == []
    edit(file, '"127.0.0.1:9101"', '"0.0.0.0:9101"')
    assert "insecure = true leaves out encryption and keys, so it is for 127.0.0.1 only" in refused(out / "s0")


@pytest.mark.parametrize("text", ["fl.example.org:9100", "127.0.0.1:1", "[2001:db8::1]:65535", "localhost:9100"])
def test_an_address_is_printed_as_it_was_parsed(text: str) -> None:
    assert str(Address.parse(text, "key")) == text


def test_listen_address() -> None:
    cases = {"127.0.0.1:1": "127.0.0.1:1", "[::1]:1": "[::1]:1", "localhost:1": "localhost:1"}
    cases |= {"fl.example.org:1": "0.0.0.0:1", "10.0.0.1:1": "0.0.0.0:1", "[2001:db8::1]:1": "[::]:1"}
    assert {text: str(Address.parse(text, "").listen_address) for text in cases} == cases


# Status and audit.


def test_status_is_written_at_once_and_the_last_update_always(out: Path) -> None:
    folder = PartyFolder.open(out / "s0")
    told = status.Status(folder)
    try:
        first = status.read(folder.state)
        assert first["up"]
        assert (first["pid"], first["party"], first["role"]) == (os.getpid(), "s0", "sector")
        assert (first["round"], first["rounds"], first["members"]) == (0, 3, ["c0", "c3"])
        for round in range(1, 200):
            told.update(round=round, present=frozenset({"c3", "c0"}))
        until = time.monotonic() + 300
        while status.read(folder.state)["round"] < 199 and time.monotonic() < until:
            time.sleep(0.05)
        assert status.read(folder.state)["round"] == 199
        assert status.read(folder.state)["present"] == ["c0", "c3"]
        told.update(phase="done", accuracy=float("nan"))
    finally:
        told.close()
    last = status.read(folder.state)
    assert (last["phase"], last["accuracy"], last["up"]) == ("done", None, False)
    assert last["since"] <= last["updated"]
    told.update(phase="too late")
    assert status.read(folder.state)["phase"] == "done"
    with pytest.raises(TypeError, match="no field fase"):
        told.update(fase="x")


def test_status_is_written_twice_a_second_at_most(out: Path) -> None:
    now, writes = [100.0], []
    folder = PartyFolder.open(out / "c0")
    told = status.Status(folder, clock=lambda: now[0])
    before = folder.state / status.FILE
    for step in range(100):
        now[0] = 100.0 + step * 0.1
        seen = before.stat().st_ino
        told.update(round=step)
        writes.append(before.stat().st_ino != seen)
    told.close()
    assert 15 <= sum(writes) <= 21


HOLD = """
import sys
from pathlib import Path
from headwater.deploy.folder import PartyFolder
from headwater.deploy.status import Status
told = Status(PartyFolder.open(Path(sys.argv[1])))
told.update(phase="training", round=2)
print("here", flush=True)
sys.stdin.read()  # until it is killed
"""


@pytest.mark.thorough
def test_a_party_runs_once_and_a_killed_one_is_not_up(out: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(out / "c0")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        found = status.read(out / "c0" / "state")
        assert (found["up"], found["pid"]) == (True, process.pid)
        with pytest.raises(ConfigError, match="client c0 is already running from"):
            status.Status(PartyFolder.open(out / "c0"))
    finally:
        process.kill()
        process.communicate()
    assert status.read(out / "c0" / "state")["up"] is False
    status.Status(PartyFolder.open(out / "c0")).close()  # and can be started again


def test_without_a_lock_the_process_id_tells_whether_it_is_up(tmp_path: Path) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    for pid, up in (
        (os.getpid(), True),
        (int(gone.stdout), False),
        (0, False),
        (-1, False),
        ("x", False),
        (10**30, False),
    ):
        (tmp_path / "status.json").write_text(json.dumps({"pid": pid}))
        assert status.read(tmp_path)["up"] is up
    (tmp_path / "status.json").write_text("{cut")
    assert status.read(tmp_path) == {"up": False}


def test_audit_sums_over_restarts_and_kills(out: Path) -> None:
    folder = PartyFolder.open(out / "c0")
    sent = sent_log.SentLog(folder)
    for round in (1, 2):
        sent.add(round, "s0", "model", "sector_client", "up", 1000, f"r{round}.local")
    sent.add(1, "s0", "control", "sector_client", "up", 0, "sizes")
    sent.close()
    with (folder.state / "sent.jsonl").open("a") as file:
        file.write('{"round": 3, "to": "s0", "ki')  # killed here
    again = sent_log.SentLog(folder)
    assert again.bytes == {("sector_client", "up"): 2000}
    again.add(3, "s0", "model", "sector_client", "up", 1000, "r3.local")
    assert again.bytes == {("sector_client", "up"): 3000}
    again.add(3, "s0", "array", "sector_client", "up", 80, "r3.counts")
    found = sent_log.sums(folder.state)  # every line is there before `close`
    again.close()
    model = sent_log.SentKind("sector_client", "up", "s0", "model", "")
    assert found[model] == sent_log.SentSum(messages=3, bytes=3000, first=1, last=3)
    assert found[model._replace(kind="array")] == sent_log.SentSum(1, 80, 3, 3)
    assert found[model._replace(kind="control", what="sizes")] == sent_log.SentSum(1, 0, 1, 1)
    assert len(found) == 3
    assert (folder.state / "sent.jsonl").stat().st_mode & 0o777 == 0o600
