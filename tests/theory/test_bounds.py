"""The bounds (24), (6), (26) and (32) against processes that meet their conditions, and these against the library.

A sample of `experiments/theory_bounds`, which does twenty settings.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import chosen
import headwater as hw
from headwater.theory import convergence
from headwater.theory.softmax import squared

FOLDER = Path(__file__).parent.parent.parent / "experiments" / "theory_bounds"
METHODS = ("fedavg", "fedhead", "fedhead+", "feddf")
SAMPLE = (6, 13)


@pytest.fixture(scope="module")
def process() -> Iterator[ModuleType]:
    """The experiment's own code, with its `problem` in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        import process

        yield process
        for name in ("process", "problem"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def federations(process: ModuleType) -> dict[int, Any]:
    from problem import Federation, Setting

    return {number: Federation(Setting.draw(number)) for number in SAMPLE}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("number", chosen.first(SAMPLE, SAMPLE[:1]))
def test_the_mean_gap_lies_under_the_bound_in_every_round(
    process: ModuleType, federations: dict[int, Any], number: int, method: str
) -> None:
    federation = federations[number]
    trace = process.Process(federation, method, seeds=10).run()
    p, mean = trace.constants(federation.constants), trace.gaps.mean(axis=0)
    over = [trace.bound(p, federation.setting, t) for t in range(len(mean))]
    assert len(mean) == federation.setting.rounds + 1
    assert (trace.gaps >= -1e-12).all()
    assert (mean < over).all()
    assert mean[-1] < 0.01 * mean[0]  # it got somewhere, so that there was something to bound
    lowest = replace(p, delta=1.0, epsilon=0.0)  # no reading of δ, ε and mean lengths gives a lower bound
    assert (mean < [trace.bound(lowest, federation.setting, t, whole=True) for t in range(len(mean))]).all()


class TestConditions:
    """The settings meet what the theorems ask for, and the measured constants what they stand for."""

    def test_steps_are_short_and_halve_slowly(self, federations: dict[int, Any]) -> None:
        for federation in federations.values():
            p, s = federation.constants, federation.setting
            gamma = convergence.offset(p, s.local, s.sector)
            assert convergence.step_size(p, 1, gamma) <= (1 + 1e-12) / (4 * p.smoothness)
            for length in (s.local, s.sector):
                assert convergence.step_size(p, 1, gamma) <= 2 * convergence.step_size(p, 1 + length, gamma)

    def test_the_optimum_is_known_and_sectors_are_less_unlike(self, federations: dict[int, Any]) -> None:
        for federation in federations.values():
            best, p = federation.optima.weights, federation.constants
            whole = sum(w * part.gradient(best) for w, part in zip(federation.shares, federation.parts, strict=True))
            assert np.abs(whole).max() < 1e-7
            assert 0 <= p.sector_gap <= p.client_gap

    def test_batches_are_unbiased_and_their_variance_is_as_said(
        self, process: ModuleType, federations: dict[int, Any]
    ) -> None:
        federation = federations[6]
        steps = process.Process(federation, "fedavg", seeds=4000)
        now = np.repeat(federation.start[None, None], 4000, axis=0).repeat(federation.setting.clients, axis=1)
        seen, there = process.Seen(), np.ones(now.shape[:2], dtype=bool)
        rows = federation.padded
        drawn = steps._draw(rows, now, federation.sizes, seen, there)
        mean, spread = rows.gradient(now[0]), rows.spread(now[0]) / federation.setting.batch
        error = np.sqrt(spread / 4000)
        assert (np.sqrt(squared(drawn.mean(axis=0) - mean)) < 4 * error).all()
        assert squared(drawn - mean).mean(axis=0) == pytest.approx(spread, rel=0.15)
        assert seen.variance == pytest.approx(spread.max())
        assert seen.second == pytest.approx((squared(mean) + spread).max())

    def test_leaders_are_drawn_by_their_shares(self, process: ModuleType, federations: dict[int, Any]) -> None:
        federation = federations[13]
        drawn = process.Process(federation, "fedhead", seeds=5000)._leaders()
        for sector, members in enumerate(federation.members):
            found = np.bincount(drawn[:, sector], minlength=len(members)) / 5000
            assert (found[members == 0] == 0).all()
            assert np.abs(found - members).max() < 0.03

    def test_a_student_never_steps_once_its_loss_is_the_optimums(
        self, process: ModuleType, federations: dict[int, Any]
    ) -> None:
        """From the optimum itself nobody takes a step, whatever the teachers say."""
        federation = federations[6]
        steps = process.Process(federation, "fedhead+", seeds=3)
        best = np.repeat(federation.optima.weights[None], 3, axis=0)
        away = best[:, None] + np.random.default_rng(0).normal(size=(3, federation.setting.clients, *best.shape[1:]))
        assert steps._at_leaders(away, best) == pytest.approx(np.repeat(best[:, None], federation.setting.sectors, 1))
        assert steps._at_server(away[:, : federation.setting.sectors], best) == pytest.approx(best)
        assert steps.tau.tolist() == [1, 1, 1]


class Weights(nn.Module):
    """The process's model as the library may be given one: in double precision, from given weights."""

    def __init__(self, start: np.ndarray) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(start))

    def forward(self, x: Tensor) -> Tensor:
        return x.double() @ self.weights


@pytest.fixture(scope="module")
def single(process: ModuleType) -> Any:
    """A federation as the library takes it: rows of single precision, a reference set of a fifth of them at most."""
    from problem import Federation, Setting

    class Single(Federation):  # type: ignore[misc]
        def __init__(self, setting: Setting) -> None:
            super().__init__(setting)
            few, whole = self.sizes.sum() // 5, self.reference
            self.reference = replace(whole, x=whole.x[:few], target=whole.target[:few], share=np.full(few, 1 / few))

        def _rows(self, *given: Any) -> Any:
            made = super()._rows(*given)
            return replace(made, x=made.x.astype(np.float32).astype(np.float64))

    return Single(Setting.draw(6))


def as_data(federation: Any) -> hw.Data:
    parts = federation.parts
    x = np.concatenate([part.x for part in parts]).astype(np.float32)
    y = np.concatenate([part.target.argmax(axis=1) for part in parts])
    owner = np.repeat(np.arange(len(parts)), federation.sizes)
    names = [f"client {i}" for i in owner], [f"sector {federation.sector_of[i]}" for i in owner]
    classes = [str(c) for c in range(federation.setting.classes)]
    return hw.Data(x, y, x[:5], y[:5], client=names[0], sector=names[1], class_names=classes)


def by_library(federation: Any, start: np.ndarray, method: str, rounds: int, **given: Any) -> np.ndarray:
    common = {"optimizer": "sgd", "batch": 1000, "weight_decay": federation.setting.decay}
    local = {f"local__{key}": value for key, value in (common | {"steps": federation.setting.local}).items()}
    own = {"data": as_data(federation), "model": lambda: Weights(start), "engine": "inline"}
    shown = {"validation": 0, "rounds": rounds, "seed": 0}
    run = hw.run(method, **own, **shown, **local, **({"reference_size": 0} | given))
    found: np.ndarray = run.params[""].vector.numpy().reshape(start.shape)
    return found


def test_the_process_is_the_librarys_fedavg(process: ModuleType, single: Any) -> None:
    """Whole batches and the theorems' step sizes over three rounds; the library is given each round's own, since its
    step sizes begin anew every round."""
    p, setting = single.constants, single.setting
    gamma, tau, now = convergence.offset(p, setting.local), 1, single.start
    for _ in range(3):
        first, slower = convergence.step_size(p, tau, gamma), 1 / (tau + gamma - 1)
        now = by_library(single, now, "fedavg", 1, local__lr=first, local__lr_time_decay=slower)
        tau += setting.local
    trace = process.Process(single, "fedavg", 2, process.Way(whole=True)).run(rounds=3)
    assert trace.ends[0] == pytest.approx(now, abs=1e-10)
    assert np.abs(trace.ends[0] - single.start).max() > 0.1


@pytest.mark.parametrize("method", METHODS[1:])
def test_distillation_is_the_librarys_but_for_stopping(
    process: ModuleType, single: Any, method: str, tmp_path: Path
) -> None:
    """The library does not know the optimum, so both take all steps: of one size, in whole batches, at the largest
    client of a sector and on the same reference rows."""
    lr, setting, path = 0.05, single.setting, tmp_path / "reference.npz"
    x, y = single.reference.x.astype(np.float32), np.arange(len(single.reference.x)) % setting.classes
    np.savez(path, x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    common = {"optimizer": "sgd", "batch": 1000, "weight_decay": setting.decay, "lr": lr, "restore": "last"}
    given: dict[str, Any] = {"local__lr": lr}
    if method != "feddf":
        given |= {"leader": "fixed"} | {f"sector__{k}": v for k, v in (common | {"steps": setting.sector}).items()}
    if method != "fedhead":
        server = common | {"steps": setting.server, "mix": "probs", "weights": "samples"}
        given |= {f"server__{key}": value for key, value in server.items()}
        given |= {"reference": str(path), "reference_size": 5000}
    if method == "feddf":
        given |= {"drop_worst": False, "server__schedule": "constant", "server__clip": 1e9}
    found = by_library(single, single.start, method, 2, **given)
    way = process.Way(stop="never", leader="largest", whole=True, step_size=lambda tau: np.full_like(tau, lr))
    trace = process.Process(single, method, 1, way).run(rounds=2)
    assert trace.ends[0] == pytest.approx(found, abs=1e-10)
