"""The folders that `headwater deploy init` writes: their content, file modes, and keys that belong together."""

from __future__ import annotations

import json
import os
import socket
import ssl
import stat
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import numpy as np
import pytest

from headwater.config import Config
from headwater.core import serialization
from headwater.deploy.folder import PartyFolder
from headwater.deploy.init import WrittenFederation, check, init
from headwater.errors import ConfigError, OutputError
from headwater.training.experiment import Experiment, prepare

pytest.importorskip("cryptography")
SETS = ["partition.clients=6", "partition.sectors=2", "partition.alpha=0.3", "partition.local_test=0.2", "rounds=2"]


def experiment(*sets: str, source: str = "fedhead") -> Experiment:
    return prepare(Config.load(source, [*SETS, *sets]))


def parties(out: Path) -> list[Path]:
    return sorted(path for path in out.iterdir() if (path / "party.toml").exists())


@pytest.fixture(scope="module")
def made() -> Experiment:
    return experiment()


@pytest.fixture(scope="module")
def out(made: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("init") / "federation"
    old = os.umask(0o002)  # a wide umask must not open anything
    try:
        init(made, path)
    finally:
        os.umask(old)
    return path


def test_every_party_has_a_folder_with_its_files(out: Path) -> None:
    common = {"party.toml", "federation.json", "config.toml", "keys", "README.md", "compose.yaml"}
    more = {"server": {"public.value"}, "s0": set(), "s1": set()} | {f"c{n}": {"data.npz"} for n in range(6)}
    assert {path.name for path in out.iterdir()} == {*more, "ca"}
    for name, files in more.items():
        found = {path.name for path in (out / name).iterdir()}
        assert found == common | files | {f"headwater-{name}.service"}


def test_federation_json_is_the_same_in_all_folders(out: Path, made: Experiment) -> None:
    contents = {(folder / "federation.json").read_bytes() for folder in parties(out)}
    assert len(contents) == 1
    told = json.loads(contents.pop())
    assert list(told) == ["version", "config", "shape", "classes", "words", "class_names", "sectors", "public"]
    assert Config.from_toml(told["config"]) == made.config
    assert (tuple(told["shape"]), told["classes"], told["words"]) == (made.split.shape, 10, None)
    assert told["class_names"] == list(made.class_names)
    for sector, clients in told["sectors"].items():
        assert clients == [c for c in (f"c{n}" for n in range(6)) if made.tree.sector_of[c] == sector]


def test_each_client_has_its_rows_of_the_split_and_no_other_party_has_them(out: Path, made: Experiment) -> None:
    train, seen = made.split.train, []
    for number in range(6):
        rows = made.partition.indices[number]
        with np.load(out / f"c{number}" / "data.npz", allow_pickle=False) as held:
            assert sorted(held) == ["x", "y"]
            assert (held["x"].dtype, held["y"].dtype) == (np.float32, np.int64)
            assert np.array_equal(held["x"], train.x.numpy()[rows])
            assert np.array_equal(held["y"], train.y.numpy()[rows])
        seen += rows.tolist()
    assert sorted(seen) == list(range(len(train)))
    assert sorted(path.parent.name for path in out.rglob("*.npz")) == [f"c{number}" for number in range(6)]


def test_the_server_has_the_public_parts(out: Path, made: Experiment) -> None:
    held = serialization.read(out / "server" / "public.value")
    assert list(held) == ["validation", "reference", "reference_labels", "test"]
    assert held["validation"].x.equal(made.split.validation.x)
    assert held["test"].y.equal(made.split.test.y)
    assert held["reference"].equal(made.split.reference)
    assert made.split.reference_labels is not None
    assert held["reference_labels"].equal(made.split.reference_labels)
    assert [path.parent.name for path in out.rglob("public.value")] == ["server"]


def test_only_the_owner_can_read(out: Path) -> None:
    for path in (out, *out.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.is_dir():
            assert mode == 0o700, path
        elif path.suffix == ".key" or path.name == "data.npz":
            assert mode == 0o600, path
        else:
            assert mode == 0o644, path


def test_a_private_key_is_in_one_folder_only(out: Path) -> None:
    private = [path.read_bytes() for path in out.rglob("*.key")]
    assert len(private) == len(set(private)) == 1 + 3 + 8  # the authority, three links, eight members
    for folder in parties(out):
        own = {path.name for path in folder.rglob("*.key")}
        joins, runs = {"node.key"}, {"link.key"}
        assert (
            own
            == {"server": runs, "s": joins | runs, "c": joins}["server" if folder.name == "server" else folder.name[0]]
        )
    everything = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    for key in private:
        assert everything.count(key) == 1


def test_a_link_knows_the_public_keys_of_its_members(out: Path) -> None:
    for folder in parties(out):
        members = tomllib.loads((folder / "party.toml").read_text()).get("link", {}).get("members", [])
        held = {path.stem: path.read_bytes() for path in (folder / "keys").glob("members/*.pub")}
        assert sorted(held) == sorted(members)
        for member, key in held.items():
            assert key == (out / member / "keys" / "node.pub").read_bytes()
            assert key.startswith(b"ecdsa-sha2-nistp384 ")


def shake_hands(link: Path, ca: Path, host: str) -> str:
    """A real TLS connection over loopback to a link's certificate; the reason if it was not trusted."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(link / "link.crt", link / "link.key")
    client = ssl.create_default_context(cafile=str(ca))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            try:
                with server.wrap_socket(listening.accept()[0], server_side=True) as inner:
                    inner.recv(1)
            except (ssl.SSLError, OSError):
                pass  # the client side has the reason

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with (
                socket.create_connection(listening.getsockname(), timeout=300) as outer,
                client.wrap_socket(outer, server_hostname=host) as inner,
            ):
                inner.send(b"x")
            return ""
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        finally:
            thread.join()


def test_a_members_ca_trusts_its_link_at_its_host_and_no_other(tmp_path: Path) -> None:
    addresses = "deploy.sector_addresses=['north.example.org:9101', '10.1.2.3:9101']"
    init(experiment(addresses, "deploy.server_address=fl.example.org:9100"), tmp_path / "f")
    init(experiment(), tmp_path / "other")
    f = tmp_path / "f"
    cases = {"server": ("fl.example.org", "s0"), "s0": ("north.example.org", "c0"), "s1": ("10.1.2.3", "c1")}
    for name, (host, member) in cases.items():
        keys, ca = f / name / "keys", f / member / "keys" / "ca.crt"
        for good in (host, "localhost", "127.0.0.1"):
            assert shake_hands(keys, ca, good) == ""
        assert "mismatch" in shake_hands(keys, ca, "elsewhere.example.org")
    assert "unable to get local issuer" in shake_hands(
        f / "s0" / "keys", tmp_path / "other" / "ca" / "ca.crt", "localhost"
    )


def test_certificates_run_out_after_825_days_and_the_authority_signs_nothing_deeper(out: Path) -> None:
    from cryptography import x509

    link = x509.load_pem_x509_certificate((out / "server" / "keys" / "link.crt").read_bytes())
    assert 825 <= (link.not_valid_after_utc - link.not_valid_before_utc).days <= 826
    ca = x509.load_pem_x509_certificate((out / "ca" / "ca.crt").read_bytes())
    assert ca.not_valid_after_utc > link.not_valid_after_utc
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(True, 0)
    assert not link.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_flower_takes_the_node_keys(out: Path) -> None:
    pytest.importorskip("flwr")
    program = (
        "import sys; from pathlib import Path; from argparse import Namespace\n"
        "from flwr.supernode.cli.flower_supernode import _try_setup_client_authentication as private\n"
        "from flwr.cli.supernode.register import try_load_public_key as public\n"
        "from flwr.supercore.primitives.asymmetric import public_key_to_bytes\n"
        "key = private(Namespace(auth_supernode_private_key=sys.argv[1], auth_supernode_public_key=None))\n"
        "assert public_key_to_bytes(key[1]) == public(Path(sys.argv[2]))\n"
    )
    files = [out / "c0" / "keys" / "node.key", out / "c0" / "keys" / "node.pub"]
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"FLWR_TELEMETRY_ENABLED": "0"},
    )
    assert done.returncode == 0, done.stderr


def test_addresses_follow_the_configuration(tmp_path: Path) -> None:
    out = tmp_path / "f"
    init(experiment("deploy.server_address='fl.example.org:7000'"), out)
    told = {name: tomllib.loads((out / name / "party.toml").read_text()) for name in ("server", "s0", "s1", "c0")}
    assert told["server"]["link"] == {
        "address": "0.0.0.0:7000",
        "reach": "fl.example.org:7000",
        "members": ["s0", "s1"],
    }
    assert told["s0"]["above"]["address"] == "fl.example.org:7000"
    assert (told["s0"]["link"]["reach"], told["s1"]["link"]["reach"]) == ("fl.example.org:7001", "fl.example.org:7002")
    sector = next(s for s in ("s0", "s1") if "c0" in told[s]["link"]["members"])
    assert told["c0"]["above"]["address"] == told[sector]["link"]["reach"]
    assert told["c0"]["data"] == {"name": "data.npz"}


def test_loopback_stays_loopback(out: Path) -> None:
    assert tomllib.loads((out / "s1" / "party.toml").read_text())["link"]["address"] == "127.0.0.1:9102"


def visits(path: Path) -> Path:
    """A table with columns for client and sector."""
    rows = ["a,label,who,where,part"]
    for n in range(60):
        who = ("Ann", "Bob", "Cleo")[n % 3]
        rows.append(f"{n % 7},{'yes' if n % 2 else 'no'},{who},{'near' if who != 'Cleo' else 'far'},train")
    rows += ["1,yes,Ann,near,test"] * 5
    path.write_text("\n".join(rows) + "\n")
    return path


def test_names_of_the_data_are_kept_beside_the_ids(tmp_path: Path) -> None:
    file = visits(tmp_path / "visits.csv")
    sets = [f"data.name={file}", "data.client=who", "data.sector=where", "data.test=part", "data.reference_size=5"]
    written = init(prepare(Config.load("fedavg", sets)), tmp_path / "f")
    told = json.loads((tmp_path / "f" / "c0" / "federation.json").read_text())
    names = told["names"]
    assert sorted(names.values()) == ["Ann", "Bob", "Cleo", "far", "near"]
    for sector, clients in written.sectors.items():
        assert {names[client] for client in clients} == ({"Cleo"} if names[sector] == "far" else {"Ann", "Bob"})


def lopsided(made: Experiment, keep: tuple[int, ...]) -> Experiment:
    """The same experiment with all rows at a few clients."""
    from dataclasses import replace

    from headwater.partition.partition import Partition

    parts = np.array_split(np.arange(len(made.split.train)), len(keep))
    indices = [parts[keep.index(n)] if n in keep else np.arange(0) for n in range(6)]
    return replace(made, partition=Partition(tuple(indices), (0, 0, 1, 1, 2, 2)))


def test_clients_without_rows_are_left_out_and_ids_stay(made: Experiment, tmp_path: Path) -> None:
    written = init(lopsided(made, (1, 4, 5)), tmp_path / "f")
    assert written.left_out == ("c0", "c2", "c3", "s1")
    assert written.sectors == {"s0": ("c1",), "s2": ("c4", "c5")}
    assert {path.name for path in parties(tmp_path / "f")} == {"server", "s0", "s2", "c1", "c4", "c5"}
    folder = PartyFolder.open(tmp_path / "f" / "s2")
    assert folder.link is not None
    assert folder.link.address == "127.0.0.1:9103"
    assert PartyFolder.open(tmp_path / "f" / "server").federation.sectors == written.sectors


def test_the_path_of_a_data_folder_is_not_in_the_agreement(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "mine").mkdir()
    for name in ("north", "south"):
        x, y = rng.normal(size=(30, 4)).astype(np.float32), np.arange(30) % 3
        np.savez(tmp_path / "mine" / f"{name}.npz", x=x, y=y)
    config = Config.load("fedavg", [f"data.name={tmp_path / 'mine'}", f"data.dir={tmp_path}"])
    init(prepare(config), tmp_path / "f")
    (tmp_path / "mine").rename(tmp_path / "gone")
    federation = PartyFolder.open(tmp_path / "f" / "c0").federation
    assert (federation.config.data.name, federation.config.data.dir) == ("arrays", "")
    assert federation.names["c0"] == "north"


def refused(kind: type[Exception], config: Config, out: Path, force: bool = False) -> str:
    with pytest.raises(kind) as caught:
        check(config, out, force=force)
    return str(caught.value)


def test_what_cannot_be_deployed_is_refused_before_data_is_read(tmp_path: Path) -> None:
    out = tmp_path / "f"
    told = refused(ConfigError, Config.load("centralized"), out)
    assert told.startswith("method 'centralized' cannot be deployed: it pools every client's rows")
    many = Config.load(None, ["partition.scheme=drawn", "partition.clients=100000"])
    assert "100000 are too many (at most 1000)" in refused(ConfigError, many, out)
    drawn = Config.load(None, ["partition.local_test=0.2", "partition.local_test_source=test"])
    assert "the common test set, which only the server has" in refused(ConfigError, drawn, out)
    for address in (
        "nowhere",
        "host:",
        "host:0",
        "host:70000",
        ":9100",
        "1.2.3:9100",
        "::1:9100",
        "a b:9100",
        "host:９１",
    ):
        told = refused(ConfigError, Config.load(None, [f"deploy.server_address='{address}'"]), out)
        assert told.startswith("deploy.server_address must be a host and a port")
        assert repr(address) in told
    told = refused(ConfigError, Config.load(None, ["deploy.server_address='0.0.0.0:9100'"]), out)
    assert "0.0.0.0:9100 cannot be dialled" in told
    assert not out.exists()


def test_addresses_must_be_enough_and_differ(made: Experiment, tmp_path: Path) -> None:
    cases = {
        "deploy.sector_addresses=['a:1']": "names 1 addresses for 2 sectors (s0 to s1)",
        "deploy.sector_addresses=['a:1', 'a:1']": "two links cannot be at a:1",
        "deploy.sector_addresses=['127.0.0.1:9100', 'a:1']": "two links cannot be at 127.0.0.1:9100",
        "deploy.server_address='h:65534'": "lower the port of deploy.server_address",
    }
    for setting, sentence in cases.items():
        with pytest.raises(ConfigError) as caught:
            init(experiment(setting), tmp_path / "f")
        assert sentence in str(caught.value)
    assert [*tmp_path.iterdir()] == []  # nor a draft


def test_a_directory_is_taken_only_if_it_is_free_or_forced(made: Experiment, tmp_path: Path) -> None:
    out = tmp_path / "f"
    out.mkdir()
    init(made, out)  # an empty directory is fine
    before = (out / "ca" / "ca.crt").read_bytes()
    assert "already holds a federation" in refused(OutputError, made.config, out)
    (out / "c0" / "notes.txt").write_text("mine")
    (out / "c0" / "state").mkdir()
    init(made, out, force=True)
    assert (out / "ca" / "ca.crt").read_bytes() != before
    assert (out / "c0" / "keys" / "ca.crt").read_bytes() == (out / "ca" / "ca.crt").read_bytes()
    assert (out / "c0" / "notes.txt").read_text() == "mine"
    assert not (out / "c0" / "state").exists()
    PartyFolder.open(out / "c0")
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("x")
    for force in (False, True):
        assert "is not empty and holds no federation" in refused(OutputError, made.config, other, force)
    assert "is a file" in refused(OutputError, made.config, other / "thesis.tex" / "f")


def test_a_running_federation_is_not_replaced(made: Experiment, tmp_path: Path) -> None:
    from headwater.deploy.status import Status

    out = tmp_path / "f"
    init(made, out)
    running = Status(PartyFolder.open(out / "s0"))
    try:
        assert "s0 of" in (told := refused(OutputError, made.config, out, True))
        assert "is running" in told
    finally:
        running.close()
    check(made.config, out, force=True)


def test_a_users_own_model_is_named_in_every_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mynets.py").write_text(
        "from torch import nn\ndef small():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    written = init(experiment("model.name=mynets:small", source="fedavg"), tmp_path / "f")
    assert written.packages == ("mynets",)
    for folder in parties(tmp_path / "f"):
        assert "`mynets:small`" in (folder / "README.md").read_text(encoding="utf-8")
    monkeypatch.undo()
    sys.modules.pop("mynets")
    with pytest.raises(ConfigError, match=r"'mynets:small' could not be imported .* install at this party"):
        PartyFolder.open(tmp_path / "f" / "c0")


def test_the_current_directory_as_out(made: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    init(made, Path())
    assert {path.name for path in tmp_path.iterdir()} == {"here"}
    assert PartyFolder.open(Path("c0")).name == "c0"
    assert (tmp_path / "here").stat().st_mode & 0o777 == 0o700


def test_readme_has_five_lines(out: Path) -> None:
    for folder in parties(out):
        lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
        assert len(lines) == 5
        assert all(line.strip() for line in lines)
    assert "the server" in (out / "server" / "README.md").read_text(encoding="utf-8").splitlines()[0]
    assert "listens at 127.0.0.1:9101 for" in (out / "s0" / "README.md").read_text(encoding="utf-8")


def test_unit_and_compose_start_this_party(out: Path) -> None:
    yaml = pytest.importorskip("yaml")
    for folder in parties(out):
        role = tomllib.loads((folder / "party.toml").read_text())["role"]
        service = yaml.safe_load((folder / "compose.yaml").read_text())["services"][folder.name]
        assert service["command"] == ["headwater", "deploy", role, "/party"]
        assert service["volumes"] == [".:/party"]
        lines = (folder / f"headwater-{folder.name}.service").read_text().splitlines()
        assert f"ExecStart=/usr/bin/env headwater deploy {role} ." in lines
        assert f"WorkingDirectory=%h/headwater/{folder.name}" in lines
        assert "Restart=on-failure" in lines


def test_what_init_returns(made: Experiment, tmp_path: Path) -> None:
    written: WrittenFederation = init(made, tmp_path / "f")
    assert sum(party.rows for party in written.parties) == len(made.split.train)
    assert [party.name for party in written.parties[:3]] == ["server", "s0", "s1"]
    assert written.sha256 == PartyFolder.open(tmp_path / "f" / "c5").federation.sha256
