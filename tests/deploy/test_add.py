"""A new client is added to a federation that exists: the agreement is amended, and nothing else in it is changed."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headwater.cli.app import main
from headwater.config import Config
from headwater.core.membership import Newcomer
from headwater.deploy import init
from headwater.deploy.adding import add
from headwater.deploy.agreement import Agreement
from headwater.deploy.amendment import amended, followed
from headwater.deploy.answering import Answering
from headwater.deploy.folder import PartyFolder
from headwater.deploy.keys import fingerprint
from headwater.deploy.observation import Observation
from headwater.deploy.party_log import LogStyle, PartyLog
from headwater.deploy.party_process import PartyProcess
from headwater.deploy.payload import Refused
from headwater.deploy.refusals import RefusedLog
from headwater.deploy.sent_log import SentLog
from headwater.deploy.status import Status
from headwater.deploy.transport import Message
from headwater.errors import ConfigError
from headwater.training.experiment import Experiment, prepare
from headwater.training.loop import train
from headwater.training.opening import Arrivals
from loopback import Loopback, small

TINY = ("data.fraction=0.15", "partition.alpha=1.0", "partition.clients=3", "partition.sectors=2", "engine.name=inline")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    init.init(prepare(Config.load(None, [*TINY, "rounds=3"])), tmp_path / "federation")
    return tmp_path / "federation"


def sector_without(out: Path, client: str) -> str:
    sectors = json.loads((out / "server/federation.json").read_text())["sectors"]
    return next(sector for sector, team in sectors.items() if client not in team)


class TestAdd:
    def test_every_folder_gets_the_same_amendment_and_the_client_its_own(self, out: Path) -> None:
        before = (out / "server/federation.json").read_bytes()
        added = add(out, "c3", "s1")
        content = (out / "server/federation.json").read_bytes()
        assert hashlib.sha256(content).hexdigest() == added.sha256
        for party in ("server", "s0", "s1", "c0", "c1", "c2"):
            assert (out / party / "federation.json").read_bytes() == content
            assert (out / party / "federation-0.json").read_bytes() == before
        old, new = json.loads(before), json.loads(content)
        (record,) = new.pop("amendments")
        assert record == {
            "client": "c3",
            "sector": "s1",
            "key": added.key,
            "before": hashlib.sha256(before).hexdigest(),
        }
        assert new["sectors"]["s1"] == [*old["sectors"]["s1"], "c3"]
        new["sectors"]["s1"].pop()
        assert new == old
        host, client = PartyFolder.open(out / "s1"), out / "c3"
        assert host.members[-1] == "c3"
        assert '    "c3",\n]' in (out / "s1/party.toml").read_text()
        public = (client / "keys/node.pub").read_bytes()
        assert (out / "s1/keys/members/c3.pub").read_bytes() == public
        assert fingerprint(public) == added.key
        assert (client / "keys/node.key").stat().st_mode & 0o777 == 0o600
        assert client.stat().st_mode & 0o777 == 0o700
        with pytest.raises(ConfigError, match=r"data\.name is 'data\.npz', but there is no"):
            PartyFolder.open(client)
        assert add(out, "c4", "s0").sha256 != added.sha256
        (client / "data.npz").write_bytes((out / "c0/data.npz").read_bytes())
        assert PartyFolder.open(client).above == PartyFolder.open(out / host.members[0]).above
        assert (out / "s0/federation-1.json").read_bytes() == content

    def test_operators_who_give_it_apart_come_to_the_same_agreement(self, out: Path, tmp_path: Path) -> None:
        """The client has made its key itself."""
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(tmp_path / "node")], check=True
        )
        here = add(out / "server", "c3", "s0", tmp_path / "node.pub")
        there = add(out / "s0", "c3", "s0", tmp_path / "node.pub")
        assert here.sha256 == there.sha256
        assert (here.host, there.host) == (False, True)
        assert (here.folder, there.folder) == (out / "c3", None)
        assert not (out / "c3/keys/node.key").exists()
        assert PartyFolder.open(out / "s0").members[-1] == "c3"

    def test_what_cannot_be_is_refused_and_changes_nothing(
        self, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
        (tmp_path / "bad.pub").write_text("ssh-ed25519 AAAA me\n")
        for words, sentence in (
            ((out, "c0", "--sector", "s0"), "c0 is in this federation already"),
            ((out, "c7", "--sector", "s0"), "the next one of this federation is c3, got 'c7'"),
            ((out, "s2", "--sector", "s0"), "the next one of this federation is c3, got 's2'"),
            ((out, "c3", "--sector", "s7"), "there is no sector 's7'"),
            ((out, "c3", "--sector", "s0", "--request", tmp_path / "no.pub"), "there is no file"),
            ((out, "c3", "--sector", "s0", "--request", tmp_path / "bad.pub"), "no public key on the curve P-384"),
            ((out / "s0", "c3", "--sector", "s0"), "give the public key of c3"),
            ((out / "c0", "c3", "--sector", "s0"), "has neither a server nor a sector's host"),
            ((tmp_path / "nowhere", "c3", "--sector", "s0"), "there is no directory"),
        ):
            assert main(["deploy", "add", *map(str, words)]) == 2
            assert sentence in capsys.readouterr().err.replace("\n", " ")
        after = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
        assert {file: text for file, text in after.items() if file in before} == before
        assert main(["deploy", "add", str(out), "c3", "--sector", "s0", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["host"] is True


def process(folder: PartyFolder) -> PartyProcess:
    log, sent = PartyLog(folder, LogStyle(quiet=True)), SentLog(folder)
    return PartyProcess(folder, log, Status(folder), sent, RefusedLog(folder), Observation(log, sent))


class TestFollow:
    """A party takes over an amendment that a message names if it adds clients and does nothing else."""

    def head(self, content: bytes) -> dict[str, Any]:
        fields = json.loads(content)
        return {"federation": hashlib.sha256(content).hexdigest(), "amendments": fields["amendments"]}

    def test_a_client_follows_and_answers_the_same_message(self, out: Path) -> None:
        folder = PartyFolder.open(out / "c0")
        before = (out / "c0/federation.json").read_bytes()
        content = amended(amended(before, "c3", "s0", ""), "c4", "s1", "")
        with closing(process(folder)) as running:
            answering = Answering(running, lambda head: Message({"size": 5}), lambda run, members: None)  # type: ignore[arg-type,return-value]
            assert answering.answer(Message({"do": "hello", **self.head(content)})).head == {"size": 5}
            assert running.folder.federation.sectors["s1"][-1] == "c4"
            refused = answering.answer(Message({"do": "hello", "federation": folder.federation.sha256}))
            assert "another one" in refused.head["failed"], "the old agreement is over"
        assert (out / "c0/federation.json").read_bytes() == content
        assert (out / "c0/federation-0.json").read_bytes() == before

    def test_the_host_that_would_admit_it_does_not(self, out: Path) -> None:
        """A server could else bring in clients of its own that see the models of a sector as its leaders."""
        content = amended((out / "s0/federation.json").read_bytes(), "c3", "s0", "")
        with closing(process(PartyFolder.open(out / "s0"))) as running:
            with pytest.raises(Refused, match="whose operator has to admit its key"):
                running.follow(self.head(content))
            add(out, "c3", "s0")
            with pytest.raises(Refused, match="has to be started again"):
                running.follow(self.head((out / "s0/federation.json").read_bytes()))
        with closing(process(PartyFolder.open(out / "s1"))) as running:
            assert "c3" in running.folder.federation.sectors["s0"]

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda fields: fields.update(shape=[9]),
            lambda fields: fields.update(config=fields["config"].replace("rounds = 3", "rounds = 9")),
            lambda fields: fields["sectors"]["s1"].pop(),
            lambda fields: fields["sectors"]["s0"].insert(0, "c9"),
            lambda fields: fields["amendments"].append(fields["amendments"][0]),
            lambda fields: fields["amendments"][0].update(client="c0"),
            lambda fields: fields["amendments"][0].update(sector="s9"),
            lambda fields: fields["amendments"][0].update(key="x" * 9),
            lambda fields: fields["amendments"][0].update(more="1"),
            lambda fields: fields["amendments"][0].update(client=7),
            lambda fields: fields.update(amendments=["c3"]),
            lambda fields: fields.update(amendments=[]),
            lambda fields: fields.update(amendments=7),
        ],
    )
    def test_any_other_change_is_refused(self, spoil: Callable[[dict[str, Any]], object], out: Path) -> None:
        content = (out / "c0/federation.json").read_bytes()
        fields = json.loads(amended(content, "c3", "s0", ""))
        assert followed(content, self.head(json.dumps(fields).encode()) | {"federation": _sha(fields)}, "c0", 3)
        spoil(fields)
        with pytest.raises(Refused, match="another one"):
            followed(content, {"federation": _sha(fields), "amendments": fields["amendments"]}, "c0", 3)


def _sha(fields: dict[str, Any]) -> str:
    return hashlib.sha256((json.dumps(fields, indent=1, ensure_ascii=False) + "\n").encode()).hexdigest()


def without_last(made: Experiment, agreement: Agreement) -> Agreement:
    """The agreement before the client with the highest number was added."""
    last = f"c{made.config.partition.clients - 1}"
    sectors = {sector: tuple(c for c in team if c != last) for sector, team in agreement.sectors.items()}
    fewer = agreement.config.merged({"partition": {"clients": made.config.partition.clients - 1}})
    return replace(agreement, config=fewer, sectors=sectors)


def test_a_run_goes_on_with_the_new_client(tmp_path: Path) -> None:
    """It was stopped before round 2; the client that was added meanwhile joins with that round."""
    made = small("scaffold", data__fraction=0.15, partition__alpha=1.0, local__epochs=1, rounds=3)
    last = f"c{made.config.partition.clients - 1}"

    def stop(round: int) -> None:
        if round == 2:
            raise KeyboardInterrupt

    with closing(Loopback(made, tmp_path, change=lambda agreed: without_last(made, agreed))) as federation:
        assert last not in federation.census
        with pytest.raises(KeyboardInterrupt):
            federation.train(tmp_path / "run", stop)

    def grown(agreed: Agreement) -> Agreement:
        few = without_last(made, agreed)
        sector = agreed.sector_of[last]
        sectors = {name: (*team, last) if name == sector else team for name, team in few.sectors.items()}
        return replace(few, sectors=sectors, amendments=({"client": last, "sector": sector, "key": ""},))

    with closing(Loopback(made, tmp_path, change=grown, late={last: 2})) as federation:
        run = federation.train(tmp_path / "run")
        assert federation.refusals == []
    joined = [Newcomer(2, last, made.tree.sizes[last])]
    expected = train(replace(made, tree=made.tree.with_sizes({last: 0})), arrivals=Arrivals(joined))
    assert run.result["model_sha256"] == expected.result["model_sha256"]
    assert run.result["clients"] == made.config.partition.clients
    run.report(tmp_path / "report.html")
    assert last in (tmp_path / "report.html").read_text(encoding="utf-8")
