"""Corrections beside a student: where they come to rest on quadratics, what the guard promises, what renews them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bowls
import toys
from headwater.algorithms.frame import Frame
from headwater.core.federation import CLIENTS, SECTORS, SERVER, each
from headwater.core.params import Params
from headwater.data.base import Examples
from headwater.errors import ConfigError
from headwater.specs import DistillSpec, LocalSpec
from headwater.tasks.between import STEPS

MAP = (0, 0, 0, 1, 1, 1)
DATA, LOSSES = bowls.bowls(6, 4)
BEST = bowls.optimum(LOSSES)
EVERYTHING = Examples(torch.cat([d.x for d in DATA]), torch.cat([d.y for d in DATA]))
STEPPED = LocalSpec(steps=3, batch=99, lr=0.1)
TAUGHT = DistillSpec(epochs=4, batch=99, optimizer="sgd", lr=0.1, mix="logits", weights="uniform")
LED = {"ensemble": "sector", "consolidate": "leaders"}
AT_SERVER = {"ensemble": "sector_means", "consolidate": "designated"}
TWICE = {"ensemble": "sector", "consolidate": "leaders+server"}


class Taught(toys.Bowl):
    """A bowl that can be taught: its loss at a row is the first of two logits."""

    def forward(self, x: Tensor) -> Tensor:
        value = super().forward(x)
        return torch.stack([value, torch.zeros_like(value)], dim=1)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs[:, 0].mean()


def frame(local: str, **options: Any) -> Frame:
    given = {"training": STEPPED, "sector": TAUGHT, "server": TAUGHT, "dyn_alpha": 0.7}
    return Frame(local=local, **(given | options))


def lab(method: Any) -> Any:
    """The validation set holds everybody's loss, so that the guard judges by the common objective."""
    return toys.lab(method, DATA, MAP, Taught, classes=2, reference=EVERYTHING.x, validation=EVERYTHING)


def error(method: Any, rounds: int) -> float:
    with lab(method) as made:
        for number in range(1, rounds + 1):
            made.round(number)
        return bowls.error(made.model, BEST)


# -- the corrections' fixed point


@pytest.mark.parametrize(
    ("local", "options", "rounds", "below"),
    [
        ("scaffold", LED | {"step": "validated"}, 20, 1e-3),
        ("mtgc", TWICE | {"step": "validated", "sector_rounds": 2}, 15, 1e-2),
        pytest.param(
            "feddyn", LED | {"step": "validated", "corrections": "shift"}, 30, 2e-2, marks=pytest.mark.thorough
        ),
        pytest.param(
            "scaffold", AT_SERVER | {"corrections": "renew", "step": 0.5}, 30, 1e-4, marks=pytest.mark.thorough
        ),
        pytest.param("mtgc", LED | {"corrections": "renew", "step": 0.5}, 40, 1e-4, marks=pytest.mark.thorough),
    ],
)
def test_corrected_and_taught_it_goes_to_the_optimum(
    local: str, options: dict[str, Any], rounds: int, below: float
) -> None:
    assert error(frame(local, **options), rounds) < below


def test_averages_do_not_go_there_with_the_same_teaching() -> None:
    assert error(frame("fedavg", **LED, step="validated"), 20) > 0.1


@pytest.mark.parametrize("local", ["scaffold", "feddyn", "mtgc"])
@pytest.mark.parametrize("step", [1.0, pytest.param("validated", marks=pytest.mark.thorough)])
def test_the_optimum_is_a_fixed_point(local: str, step: Any) -> None:
    """With its corrections, for a student that is taught by models that stay there."""
    own = [q.gradient(BEST) for q in LOSSES]
    ours = [np.mean([own[i] for i in range(6) if MAP[i] == j], axis=0) for j in range(2)]
    vectors: dict[str, tuple[Any, dict[str, Any]]] = {
        "own": (CLIENTS, {f"c{i}": tuple(own[i]) for i in range(6)}),
        "z": (CLIENTS, {f"c{i}": tuple(ours[MAP[i]] - own[i]) for i in range(6)}),
        "y": (SECTORS, {f"s{j}": tuple(-ours[j]) for j in range(2)}),
    }
    with lab(frame(local, **TWICE, step=step)) as made:
        fed, state = made.fed, made.state
        there = fed.run(bowls.placed, at=SERVER, like=state.model, numbers=tuple(BEST))
        like = {CLIENTS: fed.down(state.model, to=CLIENTS), SECTORS: fed.down(state.model)}
        memory = dict(state.memory)
        for name, (place, numbers) in vectors.items():
            if name in memory:
                memory[name] = {0: fed.run(bowls.placed, at=place, like=like[place], numbers=each(numbers))}
        made.state = replace(state, models={0: there}, memory=memory)
        made.round(1).round(2)
        assert float(np.abs(made.vector.numpy() - BEST).max()) <= 1e-10
        for name in vectors.keys() & memory.keys():
            found = bowls.values(made, made.state.memory[name][0])
            assert max(float(np.abs(v - vectors[name][1][node]).max()) for node, v in found.items()) <= 1e-9


def test_corrections_between_sectors_sum_to_zero_wherever_the_student_goes() -> None:
    with lab(frame("mtgc", **LED, sector=replace(TAUGHT, lr=1.0))) as made:
        made.round(1).round(2)
        y, z = (bowls.values(made, made.state.memory[name][0]) for name in ("y", "z"))
        assert np.abs(sum(y.values())).max() <= 1e-12
        assert np.abs(sum(z[f"c{i}"] for i in range(3))).max() <= 1e-12
        assert np.abs(y["s0"]).max() > 1e-2


def test_renewed_variates_are_gradients_at_the_model_of_the_round() -> None:
    with lab(frame("scaffold", **LED, corrections="renew")) as made:
        start = made.round(1).vector.numpy()
        made.round(2)
        found = bowls.values(made, made.state.memory["own"][0])
        assert max(np.abs(found[f"c{i}"] - q.gradient(start)).max() for i, q in enumerate(LOSSES)) <= 1e-12
        mean = bowls.values(made, made.state.memory["common"][0])["server"]
        assert np.abs(mean - sum(found.values()) / 6).max() <= 1e-12


def test_a_student_that_learnt_nothing_is_shifted_as_the_mean_is() -> None:
    idle = replace(TAUGHT, epochs=0)
    kept, shifted = (frame("feddyn", **LED, sector=idle, corrections=how) for how in ("keep", "shift"))
    found = [toys.play(method, DATA, MAP, Taught, 3, classes=2, validation=EVERYTHING) for method in (kept, shifted)]
    assert toys.gap(*found) == 0


# -- the step to the student, and the guard

ROWS = [toys.blobs(n, seed=i) for i, n in enumerate((12, 5, 9, 7, 3, 8))]
AROUND: dict[str, Any] = {"classes": 3, "reference": toys.blobs(20, seed=50).x, "validation": toys.blobs(15, seed=51)}
HARD = replace(TAUGHT, lr=2.0, mix="probs")  # students that are often worse


def after(rounds: int = 1, **options: Any) -> Params:
    return toys.play(
        frame("fedavg", **({"sector": HARD, "server": HARD} | options)), ROWS, MAP, toys.net, rounds, **AROUND
    )


def test_a_part_of_the_way() -> None:
    plain = after(ensemble="none", consolidate="none", through_sectors=True)
    student, part = after(**LED), after(**LED, step=0.25)
    assert toys.gap(part, plain + (student - plain) * 0.25) <= 1e-12
    assert toys.gap(student, plain) > 1e-3


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_the_guard_is_never_worse_than_the_average_by_validation(metric: Any) -> None:
    """In every round, wherever somebody is taught; by loss it decides one way and the other."""
    hard, sign = replace(HARD, metric=metric), -1 if metric == "loss" else 1
    plain, steps = after(ensemble="none", consolidate="none", through_sectors=True), []
    for slots in (LED, AT_SERVER, TWICE):
        method = frame("fedavg", **slots, step="validated", sector=hard, server=hard)
        with toys.lab(method, ROWS, MAP, toys.net, **AROUND) as made:
            for number in (1, 2, 3):
                made.done.clear()
                made.round(number)
                notes = [done.notes.get("server", {}) for done in made.done]
                decisions = [noted for noted in notes if "average_score" in noted]
                assert len(decisions) == (2 if slots is TWICE else 1)
                for noted in decisions:
                    assert sign * noted["chosen_score"] >= sign * noted["average_score"]
                    steps.append(noted["step"])
                assert scored(made.model, metric) == pytest.approx(decisions[-1]["chosen_score"], rel=1e-9)
                if number == 1:
                    assert scored(plain, metric) == pytest.approx(decisions[0]["average_score"], rel=1e-9)
    assert set(steps) <= set(STEPS)
    assert 0 in steps  # in a tie, too
    assert max(steps) > 0 or metric == "accuracy"


def scored(model: Params, metric: str) -> float:
    """Computed here, without the library's own evaluation."""
    rows: Examples = AROUND["validation"]
    with torch.no_grad():
        logits = model.load_into(toys.net())(rows.x)
    if metric == "accuracy":
        return float((logits.argmax(1) == rows.y).double().mean())
    return float(torch.nn.functional.cross_entropy(logits, rows.y))


def test_the_guard_needs_rows_to_validate_with() -> None:
    options = {"ensemble": "sector", "consolidate": "leaders", "step": "validated"}
    with pytest.raises(ConfigError, match=r"algorithm\.step needs a validation set"):
        toys.tiny("frame", algorithm=options, data={"validation": 0}, sector={"restore": "last", "patience": None})


# -- what goes together


@pytest.mark.parametrize(
    "options",
    [
        {"local": "mtgc", **TWICE, "terms": ["knowledge", "proximal"], "kept": 2, "sector_rounds": 2},
        {"local": "hfeddyn", **AT_SERVER, "terms": ["contrast"], "kept": 3, "step": "validated"},
        {"local": "scaffold", **LED, "terms": ["contrast", "knowledge"], "corrections": "renew", "step": 0.5},
        {"local": "feddyn", "cohorts": 2, "ensemble": "aggregated", "terms": ["knowledge"], "corrections": "shift"},
        {"local": "hfedavg", "ensemble": "aggregated_temporal", "kept": 2, "terms": ["contrast"]},
        {"local": "hscaffold", **LED, "terms": ["proximal"]},
    ],
    ids=lambda options: options["local"],
)
def test_trainers_terms_teachers_and_steps_go_together(options: dict[str, Any]) -> None:
    """A whole run through the configuration, with clients that get lost; twice with the same bits."""
    runs = [toys.tiny_run("frame", algorithm=options, faults={"dropout": 0.2}) for _ in range(2)]
    assert len(runs[0].history) == 2
    assert torch.isfinite(runs[0].params[""].vector).all()
    assert runs[0].result["model_sha256"] == runs[1].result["model_sha256"]
