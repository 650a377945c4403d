"""Invalid and hostile messages, and what a loss or a restart must not change."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import chosen
from headwater.algorithms import fedhead
from headwater.algorithms.fedmd import public
from headwater.core import records
from headwater.deploy import dispatch, steps
from headwater.deploy.census import is_row_count
from headwater.deploy.deployed_engine import DeployedEngine
from headwater.deploy.party_run import ValueStore
from headwater.deploy.payload import PayloadReader, Refused, pack
from headwater.deploy.transport import Message, Unanswered
from headwater.engines.jobs import Job, Ref
from headwater.errors import TaskError
from headwater.tasks.local import label_counts, own_rows
from headwater.training.experiment import Experiment
from headwater.training.loop import train
from loopback import SIX, Clock, Loopback, small

BRIEF = {"data__fraction": 0.15, "partition__alpha": 1.0, "local__epochs": 1, "rounds": 2}
HEAD = {"do": "work", "federation": "same", "run": "one", "round": 1, "keep": {}, "steps": []}


def loopback(made: Experiment, place: Path, **options: Any) -> closing[Loopback]:
    return closing(Loopback(made, place, **options))


def sha(run: Any) -> str:
    return str(run.result["model_sha256"])


@pytest.fixture(scope="module")
def made() -> Experiment:
    return small("fedavg", **BRIEF)


def changed(**heads: Any) -> Callable[[Message], Message]:
    return lambda message: replace(message, head=message.head | heads)


class TestReplies:
    """A client that sends wrong replies is left out; other parties are not affected."""

    @pytest.mark.parametrize(
        "spoil",
        [
            changed(done=[["1.1.x", {"loss": 1.0}, 0.0, 1.0]]),
            pytest.param(
                changed(done=[["1.1.x", "local_train", "train", "nobody", 1, {"loss": 1.0}, 0.0, 1.0]]),
                marks=pytest.mark.thorough,
            ),
            pytest.param(changed(same=["1.1.initial@server"]), marks=pytest.mark.thorough),
            pytest.param(changed(same={"a": {"name": "b", "home": "server", "part": []}}), marks=pytest.mark.thorough),
            pytest.param(changed(infos={"a": [-5, 0, "model"]}), marks=pytest.mark.thorough),
            lambda message: pack(
                {key: message.head[key] for key in ("infos", "done", "same", "events")},
                {row[0]: torch.zeros(3) for row in message.head["cargo"]},
            ),
        ],
        ids=["report of another job", "report of nobody", "another name", "names in a ring", "size", "no model"],
    )
    def test_results_that_were_not_asked_for_are_refused(
        self, spoil: Callable[[Message], Message], made: Experiment, tmp_path: Path
    ) -> None:
        bad = made.tree.holders[0]

        def meddle(to: str, message: Message) -> Message:
            return spoil(message) if to == bad and message.parts else message

        with loopback(made, tmp_path, meddle=meddle) as federation:
            run = federation.train()
            assert all(bad in line and "refused" in line for line in federation.said)
            assert len(federation.said) >= BRIEF["rounds"]
        assert math.isfinite(run.result["loss"])

    @pytest.mark.parametrize("name", [7, None, "x" * 300, "\ud800", "/" * 80])
    def test_a_value_name_that_cannot_be_a_file_name_is_refused(self, name: Any, made: Experiment) -> None:
        message = pack({}, {"x": torch.zeros(2)})
        message.head["cargo"][0][0] = name
        with pytest.raises(Refused):
            PayloadReader(made.models, 1 << 30).unpack(message)

    def test_a_model_with_a_huge_weight_is_refused(self, made: Experiment) -> None:
        model = made.context().initial(made.model.name, 0)
        with pytest.raises(Refused, match="weight"):
            PayloadReader(made.models, 1 << 30).unpack(pack({}, {"x": replace(model, weight=1e300)}))
        other = replace(model, layout=replace(model.layout, buffers="first"))
        with pytest.raises(Refused, match="laid out unlike"):
            PayloadReader(made.models, 1 << 30).unpack(pack({}, {"x": other}))

    def test_a_number_of_rows(self) -> None:
        assert [size for size in (0, 5, -1, True, 2.0, "3", None, 10**30) if is_row_count(size)] == [0, 5]


class TestMessages:
    """What a client refuses to do for the party above it."""

    def steps(self, task: Any, client: str) -> list[dict[str, Any]]:
        job = Job("1.1.x", task, client, client, {}, (1, "x", 0, client))
        return [steps.encode(job), steps.encode(steps.Move(Ref("1.1.x", client), "server", "1.2.x"))]

    def test_a_client_never_sends_its_rows(self, made: Experiment, tmp_path: Path) -> None:
        name = made.tree.holders[0]
        with loopback(made, tmp_path) as federation:
            client, head = federation.client(name), HEAD | {"census": federation.census}
            for task in (own_rows, public, label_counts):
                reply = client.answer(Message(head | {"steps": self.steps(task, name)}))
                assert "is not a step of the method" in reply.head["failed"]
                assert not reply.parts
            data = federation.made.split.validation
            move = [steps.encode(steps.Move(Ref("val", name), "server", "1.2.x"))]
            reply = client.answer(pack(head | {"keep": {name: ["val"]}}, {"val": data}))
            assert "without a step that takes it" in reply.head["failed"]
            reply = client.answer(pack(head | {"keep": {name: ["val"]}, "steps": move}, {"val": data}))
            assert "is not a step of the method" in reply.head["failed"]
            assert not reply.parts

    @pytest.mark.parametrize(
        "change",
        [{"keep": 5}, {"keep": {"c0": "abc"}}, {"keep": {"c0": [3]}}, {"round": "x"}, {"round": True}, {"steps": 7}],
    )
    def test_a_malformed_message_changes_nothing(
        self, change: dict[str, Any], made: Experiment, tmp_path: Path
    ) -> None:
        with loopback(made, tmp_path) as federation:
            client, head = federation.client(made.tree.holders[0]), HEAD | {"census": federation.census}
            federation.stores[made.tree.holders[0]]["a"] = torch.ones(3)
            before = sorted(tmp_path.rglob("*.value"))
            assert len(before) == 1
            assert "failed" in client.answer(Message(head | change)).head
            assert sorted(tmp_path.rglob("*.value")) == before

    def test_imported_names_of_a_module_are_not_trusted(self) -> None:
        for where in (
            "headwater.core.serialization:os.system",
            "headwater.core.serialization:hashlib.sha256",
            "headwater.deploy.party_run:Path",
        ):
            with pytest.raises(ValueError, match="not part of this federation"):
                records.find(where, steps.trust())
        assert records.find("headwater.algorithms.centralized:own_rows", steps.trust()) is own_rows


class TestQuorum:
    @pytest.mark.parametrize("method", chosen.first(["fedavg", "fedhead"], ["fedavg"]))
    def test_after_three_rounds_without_clients_the_server_ends(self, method: str, tmp_path: Path) -> None:
        """Even if the hosts answer, and if a round has several parts."""
        made = small(method, **BRIEF | {"rounds": 6})

        def meddle(to: str, message: Message) -> Message:
            rounds = {name.partition(".")[0] for name in message.head.get("infos", {})}
            if to.startswith("c") and rounds != {"0"}:
                raise Unanswered("was killed")
            return message

        with loopback(made, tmp_path, meddle=meddle) as federation:
            with pytest.raises(TaskError, match="3 rounds in a row"):
                federation.train()
            assert {line.partition(":")[0] for line in federation.said} == {"round 1", "round 2", "round 3"}

    def test_a_slow_client_does_not_make_its_sector_late(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also where values are only fetched, as personal models at the end: the host has time to leave it out."""
        made, clock = small("local", **BRIEF | {"rounds": 1}), Clock()
        slow = made.tree.holders[0]
        monkeypatch.setattr(dispatch, "time", clock)

        def meddle(to: str, message: Message) -> Message:
            if to == slow and message.head["infos"] and all(">server" in name for name in message.head["infos"]):
                federation.outwait(slow, clock)
            return message

        with loopback(made, tmp_path, meddle=meddle) as federation:
            run = federation.train()
            assert [line.partition(" did")[0] for line in federation.said] == [f"round 1: {slow}"]
        assert set(run.params) == set(made.tree.holders) - {slow}

    @pytest.mark.thorough
    def test_the_record_of_values_at_clients_does_not_grow(self, tmp_path: Path) -> None:
        found = []
        for rounds in (2, 6):
            with loopback(small("fedavg", **BRIEF | {"rounds": rounds}), tmp_path / str(rounds)) as federation:
                federation.train()
                found.append([len(names) for names in held(federation, "s0").values()])
        assert found[0] == found[1]


def held(federation: Loopback, sector: str) -> dict[str, set[str]]:
    host: Any = federation.links["server"]._answers[sector].__self__  # type: ignore[attr-defined]
    return dict(host._dispatcher._held)


class TestLedger:
    @pytest.mark.parametrize("away", chosen.first(["client", "sector"], ["sector"]))
    def test_values_that_could_not_be_sent_are_not_charged(
        self, away: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = small("hfedavg", **BRIEF)
        client = made.tree.holders[0]
        monkeypatch.setattr(dispatch, "REJOIN", 0.5)  # absent parties do not come back

        with loopback(made, tmp_path) as federation:
            if away == "client":
                federation.links[made.tree.sector_of[client]].away.add(client)
            else:
                federation.links["server"].away.add("s1")
            run = federation.train()
            for tier in ("server_sector", "sector_client"):
                rows = [row for sent in federation.sent.values() for row in sent if row[2:5] == ("model", tier, "down")]
                assert run.ledger.bytes(tier, "down") == sum(row[5] for row in rows)
                assert rows


class TestLeaders:
    @pytest.mark.thorough
    def test_other_sectors_send_nothing_twice(self, tmp_path: Path) -> None:
        made = small("fedhead", **BRIEF | SIX | {"algorithm__leader": "fixed", "rounds": 1})
        team = [c for c in made.tree.holders if made.tree.sector_of[c] == "s0"]

        def meddle(to: str, message: Message) -> Message:
            if to == team[0] and any("distill@s0" in name for name in message.head.get("infos", {})):
                raise Unanswered("was killed")
            return message

        with loopback(made, tmp_path, meddle=meddle) as federation:
            federation.train()
            models = [row for row in federation.sent["s1"] if row[2:5] == ("model", "server_sector", "up")]
        assert len(models) == 2  # its mean and the distilled model of its leader

    def test_no_leader_is_drawn_for_a_lost_sector(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made = small("fedhead", **BRIEF | {"rounds": 1})
        drawn: list[str] = []

        with loopback(made, tmp_path) as federation:
            top = federation.links["server"]

            def meddle(to: str, message: Message) -> Message:
                if to == "s1" and any(name.startswith("1.") for name in message.head.get("infos", {})):
                    raise Unanswered("cannot be reached")
                return message

            top._meddle = meddle
            real = fedhead.reseat

            def reseat(fed: Any, lost: Any) -> Any:
                if isinstance(fed.session.engine, DeployedEngine):  # and not a party's rehearsal
                    drawn.extend(lost)
                return real(fed, lost)

            monkeypatch.setattr(fedhead, "reseat", reseat)
            federation.train()
        assert drawn == []


class TestRestart:
    def test_a_client_that_lost_its_values_reports_it(self, tmp_path: Path) -> None:
        """The values cannot be recomputed; host and server log why the client sends nothing."""
        made = small("fedmd", **BRIEF)
        name = made.tree.holders[0]

        def meddle(to: str, message: Message) -> Message:
            if to == name and any(value.startswith("0.") for value in message.head["infos"]):
                federation.stores[name].keep(())
            return message

        with loopback(made, tmp_path, meddle=meddle) as federation:
            run = federation.train()
            assert federation.said
            assert all(f"{name} does not have" in line for line in federation.said)
        assert set(run.params) == set(made.tree.holders) - {name}

    @pytest.mark.parametrize("method", ["local", pytest.param("fedmd", marks=pytest.mark.thorough)])
    def test_a_client_that_is_absent_before_the_first_round_still_gets_a_first_model(
        self, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = small(method, **BRIEF)
        late = made.tree.holders[0]
        monkeypatch.setattr(dispatch, "REJOIN", 0.5)  # it comes only after it was missed
        with loopback(made, tmp_path) as federation:
            away = federation.links[made.tree.sector_of[late]].away

            class Said(list[str]):
                def append(self, line: str) -> None:
                    super().append(line)
                    away.discard(late)  # it is back as soon as it was missed

            federation.said = Said()
            away.add(late)
            found = federation.train()
            assert federation.said == [f"round 0: {late} is not there and is left out of this round"]
        wanted = train(made)
        assert found.params.keys() == wanted.params.keys() == set(made.tree.holders)
        assert all(torch.equal(found.params[name].vector, wanted.params[name].vector) for name in wanted.params)

    @pytest.mark.thorough
    def test_a_lost_result_stays_lost_after_a_restart(self, tmp_path: Path) -> None:
        """A client computed a result and its reply was lost: the restarted server must not use that result."""
        made = small("scaffold", **BRIEF | {"rounds": 3})
        lost = made.tree.holders[0]

        def meddle(to: str, message: Message) -> Message:
            if to == lost and any(name.startswith("1.") for name in message.head.get("infos", {})):
                raise Unanswered("was killed")
            return message

        with loopback(made, tmp_path / "whole", meddle=meddle) as federation:
            wanted = sha(federation.train(tmp_path / "undisturbed"))
        with loopback(made, tmp_path / "parts", meddle=meddle) as federation:
            top = federation.links["server"]
            usual = top.send

            def stopping(to: str, message: Message, seconds: float | None = None) -> int:
                if message.head["round"] == 2:
                    raise KeyboardInterrupt
                return usual(to, message)

            top.send = stopping  # type: ignore[method-assign]
            with pytest.raises(KeyboardInterrupt):
                federation.train(tmp_path / "run")
        with loopback(made, tmp_path / "parts", meddle=meddle) as federation:  # the hosts are started again, too
            assert sha(federation.train(tmp_path / "run")) == wanted

    def test_half_written_values_are_removed(self, tmp_path: Path) -> None:
        store = ValueStore(tmp_path, "one")
        store["a"] = torch.ones(2)
        (tmp_path / "one" / "b.draft").write_bytes(b"half")
        assert "a" in ValueStore(tmp_path, "one")
        assert [path.name for path in (tmp_path / "one").iterdir()] == ["a.value"]

    def test_values_of_another_run_are_deleted_only_by_keep(self, tmp_path: Path) -> None:
        store = ValueStore(tmp_path, "one")
        store["a"] = torch.ones(2)
        other = ValueStore(tmp_path, "two")  # opened for a message that was not checked yet
        assert "a" in ValueStore(tmp_path, "one")
        other.keep(())
        assert "a" not in ValueStore(tmp_path, "one")
