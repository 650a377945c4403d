"""A party carries out the steps that the agreed method makes at its place, and no others; honest rounds pass."""

from __future__ import annotations

import copy
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import chosen
from attacks import means, peep, random_steps, rows_seen
from headwater.algorithms import ALGORITHMS
from headwater.core import serialization
from headwater.deploy.payload import PayloadReader, pack
from headwater.deploy.transport import Message, RawArray, Unanswered
from headwater.tasks.knowledge import Release
from headwater.training.experiment import Experiment
from headwater.training.loop import train
from loopback import SIX, Loopback, small

BRIEF = {"data__fraction": 0.15, "partition__alpha": 1.0, "local__epochs": 1, "rounds": 2}
ADAPTED = {
    "model__name": "mlp",
    "privacy__clip": 0.01,
    "privacy__noise": 0.05,
    "privacy__at": "server",
    "privacy__quantile": 0.5,
    "deploy__secret_noise": False,
}
METHODS = [name for name, part in ALGORITHMS.items() if not part.info.pooled]


def loopback(made: Experiment, place: Path, **options: Any) -> closing[Loopback]:
    return closing(Loopback(made, place, **options))


def head(federation: Loopback, **more: Any) -> dict[str, Any]:
    known = {"do": "work", "federation": "same", "run": "one", "census": federation.census}
    return known | {"round": 1, "keep": {}, "steps": [], "attempt": "a"} | more


def recorded(federation: Loopback, sector: str, client: str) -> list[Message]:
    """Train, and return the requests that a client got."""
    link, found = federation.links[sector], []
    usual = link.send

    def send(to: str, message: Message, seconds: float | None = None) -> int:
        if to == client:
            found.append(message)
        return usual(to, message)

    link.send = send  # type: ignore[method-assign]
    federation.train()
    return found


def with_bound(asked: Message, bound: Any, attempt: str) -> Message:
    """A request whose training has another bound on updates."""
    steps = copy.deepcopy(asked.head["steps"])
    (inputs,) = [step["inputs"]["items"] for step in steps if step["do"] == "job"]
    (given,) = [pair for pair in inputs if pair[0] == "bound"]
    given[1] = bound
    return Message(asked.head | {"steps": steps, "attempt": attempt}, asked.parts)


class TestHostile:
    def test_models_whose_logits_are_columns_show_no_rows(self, tmp_path: Path) -> None:
        made = small("fedavg", **BRIEF, model__name="mlp")
        client = made.tree.holders[0]
        with loopback(made, tmp_path) as federation:
            reply = federation.client(client).answer(peep(made, client, head(federation), "server"))
            assert rows_seen(reply, made) is None
            assert "answer" in reply.head["failed"]
            (refusal,) = federation.refusals
            assert refusal[:3] == (client, 1, made.tree.sector_of[client])

    def test_a_host_refuses_what_the_server_asks_of_its_client(self, tmp_path: Path) -> None:
        made = small("fedavg", **BRIEF, model__name="mlp")
        client = made.tree.holders[0]
        sector = made.tree.sector_of[client]
        with loopback(made, tmp_path) as federation:
            host = federation.links["server"]._answers[sector]
            reply = host(peep(made, client, head(federation, deadline=9.0), "server"))
            assert "answer" in reply.head["failed"]
            assert [refusal[0] for refusal in federation.refusals] == [sector]
            assert federation.refusals[0][2] == "server"
            assert not federation.links[sector].exchanges

    def test_class_means_without_noise_are_refused(self, tmp_path: Path) -> None:
        made = small("fedhkd", **BRIEF)
        client, model = made.tree.holders[0], made.context().initial(made.model.name, 0)
        with loopback(made, tmp_path) as federation:
            worker = federation.client(client)
            for release in (Release(0.0, 1.0, 0.0, 1.0, False, 1.0, "scaled"), made.method.release):  # type: ignore[attr-defined]
                reply = worker.answer(means(made, client, head(federation), model, release))
                assert "knowledge" in reply.head["failed"]
                assert not reply.parts

    def test_a_release_is_drawn_once_a_round(self, tmp_path: Path) -> None:
        """Forty repeats, in other attempts and from other models, give one value: its noise cannot be averaged away."""
        made = small("fedhkd", **BRIEF, algorithm__sigma=1.0, algorithm__nu=0.01)
        client = made.tree.holders[0]
        with loopback(made, tmp_path) as federation:
            (asked,) = [m for m in recorded(federation, made.tree.sector_of[client], client) if m.head["round"] == 1]
            worker, seen = federation.client(client), set()
            reader, refused = PayloadReader(made.models, 1 << 30), 0
            for number in range(40):
                values = reader.unpack(asked)
                if number % 2:
                    values = {name: value * (1.0 + number) for name, value in values.items()}
                rest = {key: item for key, item in asked.head.items() if key != "cargo"}
                reply = worker.answer(pack(rest | {"attempt": f"again {number}"}, values))
                refused += "failed" in reply.head
                released = [v for v in reader.unpack(reply).values() if isinstance(v, dict) and "loss" not in v]
                seen |= {str(serialization.flatten(value)) for value in released if value}
            assert len(seen) == 1
            assert 15 <= refused < 40  # the same inputs are accepted again, and few others

    def test_a_bound_is_positive_and_finite_and_there_only_if_it_was_agreed_that_it_adapts(
        self, tmp_path: Path
    ) -> None:
        adapts = small("fedavg", **BRIEF, **ADAPTED)
        client = adapts.tree.holders[0]
        with loopback(adapts, tmp_path / "adapts") as federation:
            asked = recorded(federation, adapts.tree.sector_of[client], client)[0]
            worker = federation.client(client)
            for number, bound in enumerate((0.0, -1.0, math.inf, math.nan, 1, "1")):
                assert "failed" in worker.answer(with_bound(asked, bound, f"bad {number}")).head
            assert "failed" not in worker.answer(with_bound(asked, 0.5, "good")).head
        fixed = small("fedavg", **BRIEF, **ADAPTED | {"privacy__quantile": 0.0})
        with loopback(fixed, tmp_path / "fixed") as federation:
            worker = federation.client(client)
            assert "failed" in worker.answer(with_bound(asked, 0.01, "not agreed")).head

    def test_a_step_is_not_carried_out_twice(self, tmp_path: Path) -> None:
        made = small("fedavg", **BRIEF)
        client = made.tree.holders[0]
        with loopback(made, tmp_path) as federation:
            asked = recorded(federation, made.tree.sector_of[client], client)[0]
            worker = federation.client(client)
            assert "failed" not in worker.answer(Message(asked.head | {"attempt": "b"}, asked.parts)).head
            again = worker.answer(Message(asked.head | {"attempt": "b"}, asked.parts))
            assert "more often" in again.head["failed"]

    def test_two_hundred_random_steps_are_refused(self, tmp_path: Path) -> None:
        """Tasks, inputs, repeats and destinations are drawn from the library's own and from the method's."""
        draw = random.Random(16)
        made = small("fedhkd", **BRIEF, algorithm__sigma=1.0)
        client, model = made.tree.holders[0], made.context().initial(made.model.name, 0)
        with loopback(made, tmp_path) as federation:
            sector = made.tree.sector_of[client]
            own = [row for m in recorded(federation, sector, client) if m.head["round"] == 1 for row in m.head["steps"]]
            worker, carried_out = federation.client(client), []
            before = sorted(path.name for path in (tmp_path / client).rglob("*.value"))
            for number in range(200):
                asked = random_steps(made, client, own, draw)
                refs = {"1.1.m", "1.1.n"} if "ref" in str(asked) else set()
                values = dict.fromkeys(sorted(refs), model) if draw.random() < 0.7 else {}
                reply = worker.answer(pack(head(federation, attempt=str(number % 7), steps=asked), values))
                if reply.head.get("done") or reply.parts:
                    carried_out.append(asked)
            assert carried_out == []
            assert sorted(path.name for path in (tmp_path / client).rglob("*.value")) == before
            assert len(federation.refusals) > 190  # the others would send a value that is not there

    def test_a_reply_larger_than_expected_is_refused(self, tmp_path: Path) -> None:
        made = small("fedavg", **BRIEF | {"rounds": 1})
        bad = made.tree.holders[0]

        def meddle(to: str, message: Message) -> Message:
            much = RawArray("float32", (1 << 20,), bytes(4 << 20))
            return Message(message.head, (*message.parts, much)) if to == bad and message.parts else message

        with loopback(made, tmp_path, meddle=meddle) as federation:
            federation.train()
            assert any(bad in line and "were to be expected" in line for line in federation.said)


class TestHonest:
    """Nothing that the method does is refused, whoever is lost."""

    @pytest.mark.parametrize("method", chosen.methods(["scaffold"], pooled=False))
    def test_losses_and_partial_participation_are_allowed(self, method: str, tmp_path: Path) -> None:
        made = small(method, **BRIEF | {"rounds": 4, "eval_every": 4, "partition__participation": 0.7})
        lost = made.tree.holders[0]

        def meddle(to: str, message: Message) -> Message:
            if to == lost and {name.partition(".")[0] for name in message.head.get("infos", {})} & {"1", "3"}:
                raise Unanswered("was killed")
            return message

        with loopback(made, tmp_path, meddle=meddle, quorum=0.1) as federation:
            federation.train()
            assert federation.refusals == []

    @pytest.mark.thorough
    @pytest.mark.parametrize("when", chosen.first(["average", "distill"], ["distill"]))
    @pytest.mark.parametrize("method", ["fedhead", pytest.param("fedhead+", marks=pytest.mark.thorough)])
    def test_leaders_drawn_anew_are_allowed(self, method: str, when: str, tmp_path: Path) -> None:
        """All clients of a sector but one are lost when they lead."""
        made = small(method, **BRIEF | SIX | {"rounds": 2})
        team = [c for c in made.tree.holders if made.tree.sector_of[c] == "s0"]
        led: list[str] = []

        def meddle(to: str, message: Message) -> Message:
            leads = any("distill@s0" in name for name in message.head.get("infos", {}))
            if when == "average" and to == team[0]:
                raise Unanswered("was killed")
            if leads and to in team:
                led.append(to)
                if len(set(led)) < len(team):
                    raise Unanswered("was killed")
            return message

        with loopback(made, tmp_path, meddle=meddle, quorum=0.01) as federation:
            federation.train()
            assert federation.refusals == []
            assert len(set(led)) > 1

    @pytest.mark.thorough
    def test_a_restarted_server_may_repeat_rounds(self, tmp_path: Path) -> None:
        made = small("fedhkd", **BRIEF | {"rounds": 3})
        with loopback(made, tmp_path / "whole") as federation:
            wanted = federation.train().result["model_sha256"]
        with loopback(made, tmp_path / "parts") as federation:
            link = federation.links["server"]
            usual = link.send

            def send(to: str, message: Message, seconds: float | None = None) -> int:
                if message.head["round"] == 3:
                    raise KeyboardInterrupt
                return usual(to, message)

            link.send = send  # type: ignore[method-assign]
            with pytest.raises(KeyboardInterrupt):
                federation.train(tmp_path / "run")
        for path in (tmp_path / "run" / "checkpoints").glob("*3*"):
            path.unlink() if path.is_file() else None
        with loopback(made, tmp_path / "parts") as federation:  # all parties were started again
            assert federation.train(tmp_path / "run").result["model_sha256"] == wanted
            assert federation.refusals == []

    def test_an_adapted_bound_is_that_of_the_simulation(self, tmp_path: Path) -> None:
        made = small("fedavg", **BRIEF | {"rounds": 3}, **ADAPTED)
        simulated = train(made)
        with loopback(made, tmp_path) as federation:
            run = federation.train()
            assert federation.refusals == []
        assert run.result["model_sha256"] == simulated.result["model_sha256"]
        clips = [[row["privacy"]["clip"] for row in each.history] for each in (run, simulated)]
        assert clips[0] == clips[1]
        assert len(set(clips[0])) == 3

    def test_secret_noise_differs_from_the_simulation_and_the_same_secret_repeats_it(self, tmp_path: Path) -> None:
        made = small("fedhkd", **BRIEF, algorithm__sigma=1.0)
        assert made.config.deploy.secret_noise
        assert not torch.equal(*[torch.tensor(draw) for draw in _draws(made)])


def _draws(made: Experiment) -> list[list[float]]:
    from dataclasses import replace

    from headwater.tasks.task import TaskContext

    context, key = made.context(), (1, "knowledge", 0, "c0")
    return [TaskContext(replace(context, secret=s), "c0", key).noise.normal(size=4).tolist() for s in ("", "own")]


def test_a_method_that_decides_by_trained_values_is_refused_with_a_way_out(tmp_path: Path) -> None:
    from headwater.errors import ConfigError

    made = small("fedavg", **BRIEF)
    with loopback(made, tmp_path) as federation:
        permissions = federation.client(made.tree.holders[0])._party.permissions
        real: Callable[..., Any] = type(made.method).round

        def reading(self: Any, fed: Any, state: Any) -> Any:
            after = real(self, fed, state)
            fed.read(after.model)
            return after

        object.__setattr__(permissions._rehearsed.experiment.method, "round", reading.__get__(made.method))
        with pytest.raises(ConfigError, match="decide inside a task at the server"):
            permissions.of_round(1)


REHEARSALS = """
import sys
from pathlib import Path
from headwater.deploy.rehearsed_rounds import RehearsedRun
from loopback import loopback, small

place = Path(sys.argv[1])
for method in sys.argv[2:]:
    made = small(method, data__fraction=0.15, partition__alpha=1.0, rounds=2)
    with loopback(made, place / method) as federation:
        run = RehearsedRun(federation.agreement, federation.members, "s0")
        for number in range(made.config.rounds + 2):
            run.round(number)
    if "torch._dynamo" in sys.modules:
        sys.exit(f"the rehearsal of {method} has loaded torch's compiler")
"""


@pytest.mark.thorough
def test_a_rehearsal_does_not_load_the_compiler(tmp_path: Path) -> None:
    """Some operations on outlines load it. That takes every party more than a second in the middle of a round."""
    words = [sys.executable, "-c", REHEARSALS, str(tmp_path), *METHODS]
    path = os.pathsep.join(sys.path)
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, check=False)
    assert done.returncode == 0, done.stderr


COUNTED = {"local__lr_schedule": "shared-counter", "local__lr_time_decay": 0.1}


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="plain", marks=pytest.mark.thorough),
        pytest.param({"local__lr_schedule": "step", "local__lr_every": 1}, id="schedule", marks=pytest.mark.thorough),
        pytest.param(COUNTED, id="counter"),
        pytest.param({"robust__server": "median"}, id="robust", marks=pytest.mark.thorough),
    ],
)
def test_simulation_and_deployment_agree_with_losses_of_none(more: dict[str, Any], tmp_path: Path) -> None:
    made = small("fedprox", **BRIEF | {"partition__participation": 0.5, "rounds": 3} | more)
    with loopback(made, tmp_path) as federation:
        assert federation.train().result["model_sha256"] == train(made).result["model_sha256"]
        assert federation.refusals == []
