"""Teachers are asked in jobs of their own where that pays. That changes who works when, and nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

import chosen
import toys
from headwater.algorithms.base import State
from headwater.core import submission
from headwater.core.federation import CLIENTS, SERVER, Located
from headwater.core.submission import PARTS, Precompute
from headwater.engines.base import Engine
from headwater.engines.pool import Pool
from headwater.models.base import ModelSpec
from headwater.specs import DistillSpec, LocalSpec
from headwater.tasks.average import initial
from headwater.tasks.distill import distill
from headwater.tasks.local import local_train
from headwater.training.experiment import prepare
from headwater.training.loop import train
from headwater.training.result import Run

ALL = 0.0  # multiplications from which on it pays
NONE = float("inf")
SMALL = ModelSpec("linear", (3, 32, 32), 10)
METHODS: dict[str, dict[str, Any]] = {
    "feddf": {},
    "feddf without the filter": {"algorithm": {"drop_worst": False}},
    "feddf with every rule": {"algorithm": {"outlier_rule": True, "swag": 2}, "server": {"weights": "learned"}},
    "feddf by labels": {"algorithm": {"drop_worst": False}, "server": {"weights": "labels", "mix": "probs"}},
    "feddf unlike": {"algorithm": {"drop_worst": False}},
    "fedhead": {},
    "fedhead own validation": {"algorithm": {"val_source": "leader"}, "sector": {"weights": "learned"}},
    "fedhead+": {},
    "fedeed": {"algorithm": {"cohorts": 2, "kept": 2}},
    "fedbe": {"algorithm": {"samples": 2}},
    "frame": {"algorithm": {"ensemble": "sector", "consolidate": "leaders+server"}},
    "fed-ensemble": {"algorithm": {"cohorts": 2}},
}
QUICK = ("feddf with every rule", "feddf unlike", "fedhead own validation", "fedeed", "fedbe")


def played(what: str, least: float, monkeypatch: pytest.MonkeyPatch, engine: Engine | None = None, **more: Any) -> Run:
    monkeypatch.setattr(submission, "LEAST", least)
    sections = {key: {**value, **more.pop(key, {})} for key, value in METHODS[what].items()}
    made = toys.tiny(what.split()[0], **sections, **more)
    if "unlike" in what:
        made = prepare(made.config.merged({"model": {"also": ["linear"]}}), data=toys.tiny_data())
    return train(made, engine=engine)


def told(run: Run) -> list[dict[str, Any]]:
    """All that a run says of its rounds but for how long they took."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in run.history]


def tasks(run: Run) -> Counter[str]:
    return Counter(span["task"] for span in run.spans)


def same(one: Run, two: Run) -> None:
    assert one.result["model_sha256"] == two.result["model_sha256"]
    assert told(one) == told(two)
    assert one.ledger.summary() == two.ledger.summary()


@pytest.mark.parametrize("what", chosen.first(METHODS, QUICK))
def test_the_same_either_way(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    apart, alone = (played(what, least, monkeypatch) for least in (ALL, NONE))
    same(apart, alone)
    asked = {"answer", "score", "on_test"}
    assert not asked & set(tasks(alone))
    assert asked & set(tasks(apart))
    assert {task: n for task, n in tasks(apart).items() if task not in asked} == tasks(alone)


@pytest.fixture
def pool(two_workers: Pool) -> Pool:
    return two_workers


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["feddf", "feddf unlike", "fedhead own validation", "fedeed"])
def test_the_same_on_the_pool(what: str, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (played(what, ALL, monkeypatch, engine, eval_every=2) for engine in (None, pool))
    same(one, two)
    assert tasks(one) == tasks(two)


@pytest.mark.parametrize("what", ["fedhead", "feddf without the filter", "feddf"])
@pytest.mark.parametrize("seed", chosen.first([0, 1, 2], [0]))
def test_the_same_whoever_is_lost(what: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The losses are those that there would have been without answers, and nobody asks for a job that is lost."""
    lossy = {"faults": {"dropout": 0.3}, "seed": seed, "rounds": 3}
    apart, alone = (played(what, least, monkeypatch, **lossy) for least in (ALL, NONE))
    same(apart, alone)
    assert apart.ledger.summary() != played(what, NONE, monkeypatch, rounds=3, seed=seed).ledger.summary()


def test_asked_the_same_a_teacher_answers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two students of unlike architecture, each taught by all five clients in each of two rounds."""
    run = played("feddf unlike", ALL, monkeypatch)
    assert tasks(run)["distill"] == 2 * 2
    assert tasks(run)["answer"] == 2 * 5


def test_a_mapping_that_is_one_value_is_asked_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whom the filter leaves is not known when jobs are submitted; the scores it needs are one a client."""
    run = played("feddf", ALL, monkeypatch)
    assert tasks(run)["answer"] == 2 * PARTS
    assert tasks(run)["score"] == 2 * 5


def test_answers_belong_to_the_phase_of_their_task(monkeypatch: pytest.MonkeyPatch) -> None:
    run = played("fedeed", ALL, monkeypatch)
    assert {(s["task"], s["phase"]) for s in run.spans if s["task"] in ("answer", "on_test")} == {
        ("answer", "distill"),
        ("on_test", "evaluate"),
    }


def test_nobody_is_asked_where_nothing_is_taught(monkeypatch: pytest.MonkeyPatch) -> None:
    run = played("fedhead", ALL, monkeypatch, sector={"epochs": 0, "patience": None, "restore": "last"})
    assert tasks(run)["distill"] == 2 * 2
    assert not tasks(run)["answer"]


class Taught:
    """One round in which the clients' models, as handles of their own in a dict, teach a model at the server."""

    def init(self, fed: Any, model: Located) -> Any:
        return State(model)

    def round(self, fed: Any, state: Any) -> Any:
        spec = LocalSpec(epochs=1, batch=4, lr=0.1)
        local = fed.run(local_train, at=CLIENTS, start=fed.down(state.model, to=CLIENTS), spec=spec)
        team = fed.up(local, to=SERVER)
        teachers = {child: Located(SERVER, {"server": ref}) for child, ref in team.nodes["server"].refs.items()}
        teachers["drawn"] = fed.run(initial, at=SERVER, arch=toys.ARCH, number=3)
        lesson = DistillSpec(epochs=2, batch=4, weights="uniform")
        return State(fed.run(distill, at=SERVER, start=state.model, teachers=teachers, spec=lesson))


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_dict_of_handles(dropout: float) -> None:
    """If one of them is lost there is no lesson, as without answers."""
    rows, found = [toys.blobs(6, seed=i) for i in range(3)], []
    for least in (ALL, NONE):
        options = {"dropout": dropout, "classes": 3, "reference": toys.blobs(7).x, "seed": 1}
        with toys.lab(Taught(), rows, (0, 0, 0), toys.net, **options) as made:
            made.fed.session.precompute = Precompute(least=least)
            made.fed = made.fed.begin(1, made.tree.holders)
            state = made.method.round(made.fed, made.state)
            found.append(made.fed.read(state.model))
            assert Counter(done.title for done in made.done)["answer"] == (4 if least == ALL else 0)
    if dropout:
        assert found == [None, None]
    else:
        assert torch.equal(found[0].vector, found[1].vector)


class TestRule:
    def test_small_models_are_asked_by_the_task(self) -> None:
        assert not Precompute.of(toys.tiny("feddf").context()).pays(5000, 10)

    def test_large_ones_are_not(self) -> None:
        """Sixty-four images through the residual net take some milliseconds; one does not."""
        spec = ModelSpec("resnet8", (3, 32, 32), 10)
        rows = toys.blobs(4)
        made = Precompute.of(replace(toys.context([rows], toys.net), models={"small": SMALL, "large": spec}))
        assert made.pays(64, 10)
        assert not made.pays(1, 10)

    def test_one_teacher_has_nobody_to_share_with(self) -> None:
        assert Precompute(work=1e9).pays(100, 2)
        assert not Precompute(work=1e9).pays(100, 1)

    def test_answers_must_find_room_together(self) -> None:
        wide = Precompute(work=1e9, wide=4000)
        assert wide.pays(10_000, 20)
        assert not wide.pays(10_000, 30)
