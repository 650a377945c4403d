"""Revoking a client costs that client only; the server can go back to an earlier round; words of others are quoted."""

from __future__ import annotations

import json
import math
import shutil
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cryptography")

import chosen
from headwater.cli.app import main
from headwater.deploy import dispatch, quoting, work_messages
from headwater.deploy.census import AnnouncedRows
from headwater.deploy.folder import LinkSettings, PartyFolder
from headwater.deploy.quoting import LONGEST, MOST, attributed, public, quoted
from headwater.deploy.revocation import RevocationNotices, Revocations, revoke, revoked
from headwater.deploy.rollback import rollback, rounds
from headwater.deploy.status import Status
from headwater.deploy.transport import Message
from headwater.errors import ConfigError, DataError, Diverged, TaskError
from loopback import Loopback, LoopbackLink, small

BRIEF = {"data__fraction": 0.15, "partition__alpha": 1.0, "local__epochs": 1, "rounds": 3}
SETS = ("--set", "partition.clients=4", "--set", "partition.sectors=2", "--set", "partition.assign=[0, 1, 1, 0]")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("revoke") / "f"
    words = ("--set", "data.fraction=0.1", "--set", "partition.alpha=1.0", *SETS, "--quiet", "--rounds", "3")
    assert main(["deploy", "init", "fedavg", *words, "--out", str(path), "--json"]) == 0
    return path


@pytest.fixture
def out(whole: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(whole, tmp_path / "f"))


class TestRevoke:
    def test_one_command_that_lasts(self, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["deploy", "revoke", "c3", str(out / "s0")]) == 0
        assert "c3 is revoked" in capsys.readouterr().err
        for _ in range(2):  # every start reads the folder
            folder = PartyFolder.open(out / "s0")
            assert folder.members == ("c0",)
            assert revoked(folder) == {"c3"}
        assert main(["deploy", "revoke", "c1", str(out)]) == 0, "in the directory of all folders"
        assert revoked(PartyFolder.open(out / "s1")) == {"c1"}
        for words, sentence in (
            (("c3", str(out / "s0")), "c3 was revoked before"),
            (("c1", str(out / "s0")), "'c1' is not below a party of"),
            (("c0", str(out / "c0")), "no party in it runs a link"),
        ):
            assert main(["deploy", "revoke", *words]) == 2
            assert sentence in capsys.readouterr().err

    def test_a_running_host_notices_it_and_tells_its_link_once(self, out: Path, monkeypatch: Any) -> None:
        said: list[str] = []
        monkeypatch.setattr("headwater.deploy.revocation.OFTEN", 0.0)
        with closing(LoopbackLink({"c0": Message, "c3": Message}, lambda to, message: message)) as link:  # type: ignore[dict-item]
            now = Revocations(PartyFolder.open(out / "s0"), link, said.append)
            assert now() == frozenset()
            revoke(out, "c3")
            assert now() == now() == {"c3"}
            assert link.present() == {"c0"}
        assert len(said) == 1

    def test_the_server_is_told_and_remembers(self, out: Path) -> None:
        said: list[str] = []
        folder = PartyFolder.open(out / "server")

        def answer(message: Message) -> Message:
            return Message({"sizes": {}, "revoked": ["c3", "c1", 7, "nobody"]})

        with closing(LoopbackLink({"s0": answer}, lambda to, message: message)) as link:
            notices = RevocationNotices(folder, link, said.append)
            for _ in range(2):
                notices.send("s0", Message({}))
                notices.replies(10.0)
            assert notices.names == {"c3"}, "a host speaks for its own clients only"
            assert RevocationNotices(folder, link, said.append).names == {"c3"}
        assert said == ["s0 has revoked c3; the run goes on without"]

    def test_members_that_were_taken_out_of_the_file_count_as_revoked(self, out: Path) -> None:
        """The way that was documented once. The host must still know whose home it is: else it would refuse all."""
        file = out / "s0" / "party.toml"
        file.write_text(file.read_text().replace('"c0",', ""))
        assert revoked(PartyFolder.open(out / "s0")) == {"c0"}

    @pytest.mark.parametrize("method", chosen.first(["fedavg", "hfedavg", "fedhead"], ["hfedavg"]))
    def test_the_others_go_on_without_it(self, method: str, tmp_path: Path, monkeypatch: Any) -> None:
        """Also where all others must answer, and without a word each round."""
        monkeypatch.setattr(dispatch, "REJOIN", 0.5)
        made = small(method, **BRIEF)
        gone = made.tree.holders[0]
        with closing(Loopback(made, tmp_path, quorum=1.0, revoked={gone})) as federation:
            run = federation.train()
            assert federation.said == []
            assert federation.links[made.tree.sector_of[gone]].exchanges[gone] == 0
        assert math.isfinite(run.result["loss"])
        assert run.params[""].weight == sum(made.tree.sizes[c] for c in made.tree.holders if c != gone)


def server(place: Path) -> PartyFolder:
    agreed: Any = SimpleNamespace(config=SimpleNamespace(rounds=3))
    (place / "state").mkdir(parents=True)
    return PartyFolder(place, "server", "server", True, None, LinkSettings("127.0.0.1:1", ("s0",)), None, agreed)


class TestRollback:
    def test_the_run_goes_on_from_an_earlier_round(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """To the same end, since all that a checkpoint names is still at its party."""
        monkeypatch.setattr("headwater.training.checkpoint.PAUSE", 0)  # a checkpoint after every round
        made, folder = small("scaffold", **BRIEF), server(tmp_path / "server")
        out = folder.state / "run"
        with closing(Loopback(made, tmp_path / "parties")) as federation:
            before = federation.train(out).result["model_sha256"]
        assert rounds(folder) == [2, 3]
        with pytest.raises(ConfigError, match="round 1 is not kept; there are checkpoints of round 2, 3"):
            rollback(folder, 1)
        assert rollback(folder, 2) == 3
        assert rounds(folder) == [2]
        assert not (out / "result.json").exists()
        assert json.loads((folder.state / "rollbacks.jsonl").read_text())["to"] == 2
        with pytest.raises(ConfigError, match="is at round 2 already"):
            rollback(folder, 2)
        with closing(Loopback(made, tmp_path / "parties")) as federation:
            run = federation.train(out)
            assert federation.said == []
        assert run.result["model_sha256"] == before
        assert [row["round"] for row in run.history] == [1, 2, 3]

    def test_not_while_the_server_runs_and_not_elsewhere(self, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
        folder = server(out / "x")
        status = Status(folder)
        try:
            with pytest.raises(ConfigError, match="already running"):
                rollback(folder, 1)
        finally:
            status.close()
        with pytest.raises(ConfigError, match="has not finished a round"):
            rollback(folder, 1)
        assert main(["deploy", "rollback", str(out / "c0"), "--to", "1"]) == 2
        assert "only the server goes back" in capsys.readouterr().err


class TestHearsay:
    def test_words_of_others_are_quoted_attributed_and_cut(self) -> None:
        forged = 'fine"\n2026-11-17 10:00:00 server: all\u202eis well \x1b[31m'
        assert quoted(forged) == '"fine\' 2026-11-17 10:00:00 server: all?is well ?[31m"'
        assert len(quoted("x" * 10**6)) == LONGEST + 3
        lines = attributed("c0", ["a"] * 1000)
        assert len(lines) == MOST + 1
        assert all(line.startswith("c0 says ") for line in lines)
        assert attributed("c0", ["a"], before=MOST + 1) == []

    def test_the_text_of_an_exception_stays_at_home(self) -> None:
        try:
            try:
                raise FileNotFoundError("/home/ward/patients.csv")
            except OSError as cause:
                raise TaskError(f"local_train at c0 (home c0) failed: FileNotFoundError: {cause}") from cause
        except TaskError as error:
            told = public(error)
        assert told == f"local_train at c0 (home c0) failed with FileNotFoundError; {quoting.OWN_LOG}"
        assert "/srv" not in public(DataError("/srv/x.csv has no column age"))
        assert "/srv" not in public(ValueError("/srv/x.csv"))
        assert public(Diverged("lower local.lr")) == "lower local.lr"

    def test_what_a_client_says_is_heard_as_its_words(self, tmp_path: Path, monkeypatch: Any) -> None:
        """A client that floods the log with lines in the name of others, and one that fails over a local file."""
        made = small("fedavg", **BRIEF)
        loud, broken = made.tree.holders[0], made.tree.holders[1]
        real = work_messages.execute

        def execute(step: Any, context: Any, *more: Any) -> Any:
            if step.home == broken and step.round == 2:
                raise OSError("/home/ward/patients.csv is gone")
            return real(step, context, *more)

        def meddle(to: str, message: Message) -> Message:
            if to != loud or not message.parts:
                return message
            forged = ["round 1: c5 did not answer", "y" * 10_000] * 500
            return Message(message.head | {"events": forged}, message.parts)

        monkeypatch.setattr(work_messages, "execute", execute)
        with closing(Loopback(made, tmp_path, meddle=meddle)) as federation:
            federation.train()
            said = federation.said
        assert all(len(line) < 3 * LONGEST for line in said)
        assert len(said) < 5 * 3 * MOST
        assert not any(line.startswith("round") and "c5" in line for line in said)
        assert any(line.startswith(f"{loud} says ") for line in said)
        (failed,) = [line for line in said if "left out of this round" in line]
        assert "OSError" in failed
        local = [line for line in said if "patients" in line]
        assert local == ["could not answer a message: /home/ward/patients.csv is gone"], "in its own log"


def test_a_host_that_is_started_again_knows_the_rows(tmp_path: Path) -> None:
    folder = server(tmp_path)
    AnnouncedRows(folder).update({"c0": 5})
    again = AnnouncedRows(folder)
    assert dict(again) == {"c0": 5}
    (folder.state / "rows.json").write_text("[")
    assert dict(AnnouncedRows(folder)) == {}
