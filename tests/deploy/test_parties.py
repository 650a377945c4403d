"""A whole federation in one process: the bits of the simulation, the bytes of the ledger, few exchanges; lost parties
are left out, and invalid messages are refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import chosen
from headwater.core import serialization
from headwater.core.params import Params
from headwater.deploy import dispatch, steps
from headwater.deploy.payload import CARGO, PayloadReader, Refused, pack
from headwater.deploy.transport import Message, RawArray, Unanswered
from headwater.engines.jobs import Job, Ref
from headwater.training.experiment import Experiment
from headwater.training.loop import train
from loopback import SIX, Clock, loopback, small

BRIEF = {"data__fraction": 0.15, "partition__alpha": 1.0, "local__epochs": 1, "rounds": 2}
TIERS = [(tier, way) for tier in ("server_sector", "sector_client") for way in ("up", "down")]


def sha(run: Any) -> str:
    return str(run.result["model_sha256"])


@pytest.mark.parametrize("method", chosen.methods(chosen.FEW, pooled=False))
def test_every_method_gives_the_bits_of_the_simulation_and_the_bytes_of_the_ledger(method: str, tmp_path: Path) -> None:
    made = small(method, **BRIEF)
    simulated = train(made)
    with loopback(made, tmp_path) as federation:
        run = federation.train()
        assert sha(run) == sha(simulated)
        assert federation.said == []
        for tier, way in TIERS:
            charged = sum(run.ledger.bytes(tier, way, purpose=p) for p in ("train", "setup", "evaluate", "export"))
            assert federation.bytes(tier, way) == charged
            for purpose in ("train", "setup"):
                assert run.ledger.bytes(tier, way, purpose=purpose) == simulated.ledger.bytes(
                    tier, way, purpose=purpose
                )


@pytest.mark.parametrize("method", chosen.first(["fedavg", "scaffold", "fedhead"], ["fedhead"]))
def test_a_client_trained_alone_gives_the_bits_of_batched_training(method: str, tmp_path: Path) -> None:
    """The simulation trains clients with this model in a batch, if the machine supports it."""
    made = small(method, **BRIEF, model__name="mlp")
    with loopback(made, tmp_path) as federation:
        assert sha(federation.train()) == sha(train(made))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("feddf", {"local__low_bit": "feedback"}),
        ("fedeed", {"algorithm__cohorts": 2, "algorithm__by_cohort": [{"mu": 0.1}, {"epochs": 1}]}),
    ],
)
def test_packed_models_and_members_are_those_of_the_simulation(
    method: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    made = small(method, **BRIEF | settings, model__name="mlp")
    simulated = train(made)
    with loopback(made, tmp_path) as federation:
        run = federation.train()
        assert sha(run) == sha(simulated)
        assert run.result.get("members_sha256") == simulated.result.get("members_sha256")
        sent = [each.ledger.bytes("server_sector", "up", purpose="train") for each in (run, simulated)]
        later = sum(run.ledger.bytes("server_sector", "up", purpose=p) for p in ("setup", "evaluate", "export"))
        assert sent[0] == sent[1] == federation.bytes("server_sector", "up") - later


class TestExchanges:
    """Number of exchanges in two rounds, and one at the end for the counts of labels."""

    def asked(self, method: str, place: Path, **settings: Any) -> dict[str, dict[str, int]]:
        with loopback(small(method, **BRIEF, **settings), place) as federation:
            federation.train()
            return {name: dict(link.exchanges) for name, link in federation.links.items()}

    @pytest.mark.parametrize("method", chosen.first(["fedavg", "feddf", "scaffold", "fedeed"], ["feddf"]))
    def test_a_flat_method_takes_one_exchange_per_client_and_round(self, method: str, tmp_path: Path) -> None:
        for counts in self.asked(method, tmp_path).values():
            assert set(counts.values()) == {2 + 1}

    def test_fedhead_takes_two_exchanges_per_leader_and_one_per_other_client(self, tmp_path: Path) -> None:
        """And one before the first round, for the validation set."""
        found = self.asked("fedhead", tmp_path, algorithm__leader="fixed", **SIX)
        for sector in ("s0", "s1"):
            assert sorted(found[sector].values()) == [1 + 2 + 1, 1 + 2 + 1, 1 + 4 + 1]
        assert set(found["server"].values()) == {1 + 4 + 1}

    @pytest.mark.thorough
    def test_mtgc_does_its_sector_rounds_without_the_server(self, tmp_path: Path) -> None:
        """The server takes as many exchanges for four sector rounds as for one; clients correct z with the next one."""
        few, many = (
            self.asked("mtgc", tmp_path / str(n), algorithm__leader="none", algorithm__sector_rounds=n) for n in (1, 4)
        )
        assert few["server"] == many["server"]
        assert set(few["s0"].values()) == {2 * 2 + 1}
        assert set(many["s0"].values()) == {2 * 5 + 1}


class TestLoss:
    def test_a_lost_client_is_left_out_and_weights_follow(self, tmp_path: Path) -> None:
        """The mean is that of the other clients, and the loss is logged once."""
        made = small("fedavg", **BRIEF | {"rounds": 1, "eval_every": 1})
        lost = made.tree.holders[0]

        def meddle(to: str, message: Message) -> Message:
            if to == lost:
                raise Unanswered("was killed")
            return message

        with loopback(made, tmp_path / "a", meddle=meddle) as federation:
            found = federation.train()
            assert federation.said == [f"round 1: {lost} was killed and is left out of this round"]
        others = [c for c in made.tree.holders if c != lost]
        sizes = {c: made.tree.sizes[c] for c in others}
        trained = {}
        for client in others:  # each alone, from the same start
            rest = {c for c in made.tree.holders if c != client}

            def only(to: str, message: Message, rest: set[str] = rest) -> Message:
                if to in rest:
                    raise Unanswered("is kept out")
                return message

            with loopback(made, tmp_path / client, meddle=only, quorum=0.01) as federation:
                trained[client] = next(iter(federation.train().params.values())).vector
        mean = sum(trained[c].double() * sizes[c] for c in others) / sum(sizes.values())
        torch.testing.assert_close(next(iter(found.params.values())).vector.double(), mean, rtol=1e-5, atol=1e-6)

    @pytest.mark.thorough
    def test_a_lost_client_keeps_its_state(self, tmp_path: Path) -> None:
        """A client that misses round 2 of SCAFFOLD continues in round 3 with its control variate of round 1.

        It tells by how much its variate changed, so what it told adds up to the one that it has in the end.
        """
        made = small("scaffold", **BRIEF | {"rounds": 3})
        lost, told = made.tree.holders[0], []

        def meddle(to: str, message: Message) -> Message:
            rounds = {name.partition(".")[0] for name in message.head.get("infos", {})}
            if to == lost and "2" in rounds:
                raise Unanswered("was killed")
            values = PayloadReader(made.models, 1 << 30).unpack(message)
            models = [value for value in values.values() if isinstance(value, Params)]
            if to == lost and models:
                told.append(models[-1].vector)  # the model itself comes first
            return message

        with loopback(made, tmp_path, meddle=meddle) as federation:
            federation.train()
            assert [line.partition(":")[0] for line in federation.said] == ["round 2"]
        held = [v for path in (tmp_path / lost).rglob("*.value") if isinstance(v := serialization.read(path), Params)]
        assert len(told) == 2
        assert any(torch.allclose(model.vector, told[0] + told[1], atol=1e-6) for model in held)
        assert not any(torch.allclose(model.vector, told[1], atol=1e-6) for model in held)

    def test_a_leader_lost_while_it_distils_is_replaced(self, tmp_path: Path) -> None:
        made = small("fedhead", **BRIEF | SIX | {"algorithm__leader": "fixed", "rounds": 1})
        team = [c for c in made.tree.holders if made.tree.sector_of[c] == "s0"]
        taught: list[str] = []

        def meddle(to: str, message: Message) -> Message:
            distilled = [name for name in message.head.get("infos", {}) if "distill@s0" in name]
            if distilled and to == team[0]:
                raise Unanswered("was killed")
            if distilled and to in team:
                taught.append(to)
            return message

        with loopback(made, tmp_path, meddle=meddle) as federation:
            run = federation.train()
            assert len(federation.said) == 1
            assert federation.said[0].startswith(f"round 1: {team[0]}")
        assert len(taught) == 1
        assert taught[0] in team[1:]
        assert math.isfinite(run.result["loss"])

    @pytest.mark.thorough
    def test_an_absent_sector_is_skipped_and_rejoins(self, tmp_path: Path) -> None:
        made = small("mtgc", **BRIEF | {"rounds": 3, "algorithm__leader": "none"})
        answered: list[int] = []

        with loopback(made, tmp_path) as federation:
            top = federation.links["server"]

            def meddle(to: str, message: Message) -> Message:
                rounds = {int(name.partition(".")[0]) for name in message.head.get("infos", {})}
                if to == "s1" and 2 in rounds:
                    raise Unanswered("cannot be reached")
                answered.extend(rounds if to == "s1" else ())
                return message

            top._meddle = meddle
            federation.train()
            assert [line.partition(",")[0] for line in federation.said] == [
                "round 2: s1 cannot be reached and is left out of this round"
            ]
        assert {1, 3} <= set(answered)
        assert 2 not in answered

    def test_a_round_below_the_quorum_is_void(self, tmp_path: Path) -> None:
        """The model is then as it was before the round."""
        made = small("fedavg", **BRIEF | SIX | {"rounds": 1})
        gone = list(made.tree.holders)[:-1]

        def meddle(to: str, message: Message) -> Message:
            if to in gone:
                raise Unanswered("was killed")
            return message

        with loopback(made, tmp_path, meddle=meddle) as federation:
            run = federation.train()
            assert any("deploy.quorum" in line for line in federation.said)
            first = made.context().initial(made.model.name, 0)
        assert torch.equal(next(iter(run.params.values())).vector, first.vector)

    def test_a_client_that_is_too_slow_is_left_out(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made, clock = small("fedavg", **BRIEF | {"rounds": 1}), Clock()
        slow = made.tree.holders[0]
        monkeypatch.setattr(dispatch, "time", clock)

        def meddle(to: str, message: Message) -> Message:
            if to == slow:
                federation.outwait(slow, clock)
            return message

        with loopback(made, tmp_path, meddle=meddle, deadline=3.0) as federation:
            federation.train()
            assert federation.said == [f"round 1: {slow} did not answer within 3 s and is left out of this round"]

    @pytest.mark.parametrize(
        "method", ["mtgc", *(pytest.param(m, marks=pytest.mark.thorough) for m in ("scaffold", "fedmd"))]
    )
    @pytest.mark.thorough
    def test_a_restarted_server_continues(self, method: str, tmp_path: Path) -> None:
        """With the same bits as without a restart, although the state of clients is at the clients."""
        made = small(method, **BRIEF | {"rounds": 4})
        with loopback(made, tmp_path / "whole") as federation:
            wanted = sha(federation.train(tmp_path / "undisturbed"))
        with loopback(made, tmp_path / "parts") as federation:
            top = federation.links["server"]
            usual, heard = top.replies, 0

            def stopping(seconds: float) -> list[tuple[int, Message | Unanswered]]:
                nonlocal heard
                found = usual(seconds)
                names = [name for _, m in found if isinstance(m, Message) for name in m.head.get("infos", {})]
                heard += any(name.startswith("3.") for name in names)
                if heard == 2:  # one sector's answer was taken, the other's is lost with the server
                    raise KeyboardInterrupt
                return found

            top.replies = stopping  # type: ignore[method-assign]
            with pytest.raises(KeyboardInterrupt):
                federation.train(tmp_path / "run")
            top.replies = usual  # type: ignore[method-assign]
            assert sha(federation.train(tmp_path / "run")) == wanted


@pytest.fixture(scope="module")
def made() -> Experiment:
    return small("fedavg", **BRIEF)


@pytest.fixture
def model(made: Experiment) -> Params:
    return made.context().initial(made.model.name, 0)


class TestChecks:
    """Values and steps that a party refuses, without any effect."""

    def reader(self, made: Experiment, most: int = 1 << 30) -> PayloadReader:
        return PayloadReader(made.models, most)

    def test_packed_values_are_unpacked_unchanged(self, made: Experiment, model: Params) -> None:
        values = {
            "a": model,
            "b": (1, 2.5, True, None, "x"),
            "c": {3: torch.arange(6).view(2, 3)},
            "d": torch.zeros(0, 4),
        }
        message = pack({"do": "work"}, values)
        found = self.reader(made).unpack(Message(json.loads(json.dumps(message.head)), message.parts))
        assert torch.equal(found["a"].vector, model.vector)
        assert found["a"].layout == model.layout
        assert found["b"] == (1, 2.5, True, None, "x")
        assert [type(x) for x in found["b"]] == [int, float, bool, type(None), str]
        assert torch.equal(found["c"][3], values["c"][3])
        assert found["d"].shape == (0, 4)
        assert message.payload == model.nbytes + 3 * 8 + 6 * 8

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            (lambda m: replace(m, vector=m.vector[:-1]), "layout asks for"),
            (lambda m: replace(m, vector=m.vector.double()), "type torch.float64"),
            (lambda m: replace(m, vector=m.vector * math.nan), "not finite"),
            (lambda m: replace(m, weight=math.inf), "weight"),
            (lambda m: replace(m, weight=-1.0), "weight"),
            (lambda m: replace(m, layout=replace(m.layout, arch="other")), "none of this federation's"),
            (lambda m: replace(m, layout=replace(m.layout, trainable=m.layout.trainable[:-1])), "laid out unlike"),
        ],
    )
    def test_a_model_unlike_the_configuration_is_refused(
        self, change: Callable[[Params], Params], told: str, made: Experiment, model: Params
    ) -> None:
        with pytest.raises(Refused, match=told):
            self.reader(made).unpack(pack({}, {"x": change(model)}))

    @pytest.mark.parametrize(
        ("part", "told"),
        [
            (RawArray("float32", (3,), b"\0" * 8), "has 8 bytes"),
            (RawArray("object", (1,), b"\0" * 8), "type 'object'"),
            (RawArray("float32", (-1,), b"\0" * 4), "has 4 bytes"),
            (RawArray("float32", (2,), b"\x00\x00\xc0\x7f" * 2), "not finite"),
        ],
    )
    def test_an_invalid_array_is_refused(self, part: RawArray, told: str, made: Experiment) -> None:
        message = pack({}, {"x": torch.zeros(2)})
        with pytest.raises(Refused, match=told):
            self.reader(made).unpack(replace(message, parts=(part, *message.parts[1:])))

    def test_a_message_that_is_too_large_is_refused(self, made: Experiment, model: Params) -> None:
        with pytest.raises(Refused, match="larger than deploy"):
            self.reader(made, most=1000).unpack(pack({}, {"x": model}))

    @pytest.mark.parametrize(
        "row",
        [
            ["x", {"v": {"$": "Popen", "v": {"args": "true"}}}, 0],
            ["x", {"v": {"$": "tensor", "n": 5}}, 0],
            ["x", {"v": {"$": "Params", "v": {}}}, 0],
            ["x", {"v": {"$": "int"}}, 0],
            ["x", 7, 0],
            [],
            ["x", {"v": None}, 9],
        ],
    )
    def test_an_invalid_skeleton_is_refused(self, row: Any, made: Experiment) -> None:
        empty = RawArray("int64", (0,), b"")
        with pytest.raises(Refused):
            self.reader(made).unpack(Message({CARGO: [row]}, (empty, replace_dtype(empty))))

    @pytest.mark.parametrize(
        "where",
        [
            "os:system",
            "subprocess:run",
            "builtins:eval",
            "headwater.core.serialization:read",
            "headwater.core.params:Params",
            "nowhere:x",
        ],
    )
    def test_only_tasks_are_called(self, where: str) -> None:
        from headwater.tasks.average import average

        row = steps.encode(Job("1.1.x", average, "c0", "c0", {"models": Ref("a", "c0")}, (1, "average", 0, "c0")))
        assert steps.decode(row, steps.trust()).name == "1.1.x"
        with pytest.raises(Refused):
            steps.decode(row | {"task": where}, steps.trust())

    def test_a_record_of_another_package_is_refused(self) -> None:
        from headwater.tasks.average import average

        row = steps.encode(Job("1.1.x", average, "c0", "c0", {"by": "uniform"}, (1, "average", 0, "c0")))
        bad = {"$": "record", "class": "pathlib:Path", "fields": {}}
        row["inputs"] = {"$": "dict", "items": [["by", bad]]}
        with pytest.raises(Refused, match="not part of this federation"):
            steps.decode(row, steps.trust())

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda m: replace(m, parts=(replace_data(m.parts[0], b"\x00\x00\xc0\x7f"), *m.parts[1:])),
            lambda m: replace(m, head=m.head | {CARGO: "cos\nsystem\n(S'true'\ntR."}),
            *(
                pytest.param(spoil, marks=pytest.mark.thorough)
                for spoil in (
                    lambda m: replace(m, parts=(RawArray("float32", (4,), b"\0" * 16), *m.parts[1:])),
                    lambda m: replace(m, parts=(RawArray("object", m.parts[0].shape, m.parts[0].data), *m.parts[1:])),
                    lambda m: replace(m, parts=m.parts[1:]),
                    lambda m: replace(m, head=m.head | {"infos": 3}),
                    lambda m: Message({}),
                )
            ),
        ],
    )
    def test_a_refused_reply_affects_only_its_sender(
        self, spoil: Callable[[Message], Message], made: Experiment, tmp_path: Path
    ) -> None:
        bad = made.tree.holders[0]

        def meddle(to: str, message: Message) -> Message:
            return spoil(message) if to == bad and message.parts else message

        def lost(to: str, message: Message) -> Message:
            if to == bad and message.parts:
                raise Unanswered("was killed")
            return message

        with loopback(made, tmp_path / "a", meddle=meddle) as federation:
            found = sha(federation.train())
            lines = [line for line in federation.said if "refused" in line]
            assert lines
            assert all(line.startswith("round ") and bad in line for line in lines)
        with loopback(made, tmp_path / "b", meddle=lost) as federation:
            assert sha(federation.train()) == found

    def test_a_message_of_another_federation_or_run_changes_nothing(self, made: Experiment, tmp_path: Path) -> None:
        with loopback(made, tmp_path) as federation:
            client = federation.client(made.tree.holders[0])
            head = {"do": "work", "federation": "same", "run": "one", "round": 1, "keep": {}, "steps": []}
            head["census"] = federation.census
            assert "failed" not in client.answer(Message(head)).head
            for change in ({"federation": "other"}, {"run": "two"}, {"census": {"c0": 1}}):
                assert "of another" in client.answer(Message(head | change)).head["failed"]
            assert not list((tmp_path / made.tree.holders[0]).rglob("*.value"))


def replace_dtype(part: RawArray) -> RawArray:
    return RawArray("float64", part.shape, part.data)


def replace_data(part: RawArray, start: bytes) -> RawArray:
    return RawArray(part.dtype, part.shape, start + part.data[len(start) :])
