"""F7 and F8: whom FedDF leaves out, and when its student stops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import toys
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.feddf import FedDf, drop_outliers, drop_worst
from headwater.data.base import Examples
from headwater.specs import DistillSpec, LocalSpec
from headwater.tasks.distill import distill

LOCAL = LocalSpec(steps=5, batch=8, lr=0.3)
NONE = DistillSpec(epochs=0)


class TestF7:
    """F7: drop-worst. Class 0 for positive x: a right model has w_0 > w_1, a wrong one the reverse."""

    VAL = toys.points(*[(1.0, 0)] * 10, *[(-1.0, 1)] * 10)
    RIGHT, WRONG = (1.0, -1.0), (-1.0, 1.0)

    def kept(self, *starts: tuple[float, float], val: Examples = VAL, outliers: bool = False) -> list[str]:
        around = toys.context([toys.points((1, 0))], toys.Slopes, validation=val)
        team = {f"c{i}": toys.params(toys.Slopes(start)) for i, start in enumerate(starts)}
        here = toys.ctx(around, "server")
        return list((drop_outliers if outliers else drop_worst)(here, team))

    def test_drops_those_below_chance(self) -> None:
        assert self.kept(self.RIGHT, self.WRONG, self.RIGHT) == ["c0", "c2"]

    def test_nothing_to_drop(self) -> None:
        assert self.kept(self.RIGHT, self.RIGHT) == ["c0", "c1"]

    def test_keeps_everybody_rather_than_nobody(self) -> None:
        assert self.kept(self.WRONG, self.WRONG) == ["c0", "c1"]

    @pytest.mark.parametrize(("hits", "kept"), [(12, ["c0"]), (11, ["c0", "c1"])])
    def test_the_floor_is_1_2_times_chance(self, hits: int, kept: list[str]) -> None:
        """Right on 12 of 20 is 0.6 = 1.2 · ½ and stays. With 11 of 20 both are below, so everybody is kept."""
        val = toys.points(*[(1.0, 0)] * hits, *[(1.0, 1)] * (20 - hits))
        assert self.kept(self.RIGHT, self.WRONG, val=val) == kept

    def test_outliers_only_when_asked(self) -> None:
        """Accuracies 1, 1, 1, 1, 1, 1 and 0.75: above the floor, but far below the rest."""
        val = toys.points(*[(1.0, 0)] * 15, *[(-1.0, 1)] * 5)
        team = [self.RIGHT] * 6 + [(1.0, 1.0)]  # a tie is class 0, right on 15 of 20
        assert self.kept(*team, val=val) == [f"c{i}" for i in range(7)]
        assert self.kept(*team, val=val, outliers=True) == [f"c{i}" for i in range(6)]

    def test_outliers_by_hand(self) -> None:
        """Accuracies 0.9, 0.9, 0.9, 0.9 and 0.5. Without the best the mean is 0.8 and the std of the four 0.173, so the
        limit is 0.54 and the last one goes; with the std of a sample, 0.2, the limit would be 0.5 and nobody would."""
        val = toys.points(*[(1.0, 0)] * 9, *[(-1.0, 1)] * 9, (-1.0, 0), (1.0, 1))
        team = [self.RIGHT] * 4 + [(1.0, 1.0)]  # a tie is class 0, right on 10 of 20
        assert self.kept(*team, val=val, outliers=True) == [f"c{i}" for i in range(4)]
        assert self.kept(*team[-2:], val=val, outliers=True) == ["c0", "c1"]

    @pytest.mark.parametrize("seed", range(6))
    def test_of_any_team(self, seed: int) -> None:
        """Nobody at or above 1.2 × chance goes, somebody stays, and where all pass nothing happens."""
        torch.manual_seed(seed)
        val = toys.blobs(30, seed=seed)
        here = toys.ctx(toys.context([val], toys.net, classes=3, validation=val), "server")
        team = {f"c{i}": toys.params(toys.net()) for i in range(5)}
        right = {
            name: float((here.flat_module(m).outputs(val.x).argmax(1) == val.y).double().mean())
            for name, m in team.items()
        }
        kept = drop_worst(here, team)
        passed = [name for name in team if right[name] >= 0.4]
        assert list(kept) == (passed or list(team))
        assert all(kept[name] is team[name] for name in kept)
        assert drop_worst(here, kept) == kept

    def test_left_out_of_the_start_as_well(self) -> None:
        """The dropped model takes no part in the average either: FedDF without steps is FedAvg of the others."""
        clients = [toys.points((1.0, 0), (-1.0, 1)), toys.points((1.0, 1), (-1.0, 0)), toys.points((2.0, 0))]
        method = FedDf(LOCAL, NONE)
        found = toys.play(method, clients, (0, 0, 1), toys.Slopes, validation=self.VAL)
        others = toys.play(FedAvg(LOCAL), [clients[0], clients[2]], (0, 1), toys.Slopes)
        assert toys.gap(found, others) <= 1e-10
        assert found.weight == 3

    def test_needs_a_validation_set(self) -> None:
        with pytest.raises(LookupError, match="validation"):
            self.kept(self.RIGHT, val=toys.points())


class TestF8:
    """F8: patience and evaluation in steps; the best evaluated checkpoint comes back."""

    VAL = toys.points((1, 1), (2, 1))
    SPEC = DistillSpec(steps=50, batch=2, optimizer="sgd", lr=0.1, patience=9, eval_every=3, restore="best")

    def taught(self, start: tuple[float, float] = (0.0, 0.0), **changes: object) -> tuple[Tensor, int]:
        reference = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)
        around = toys.context([toys.points((1, 0))], toys.Slopes, reference=reference, validation=self.VAL)
        here = toys.ctx(around, "server")
        team = {"c0": toys.params(toys.Slopes((2.0, -2.0)))}
        spec = replace(self.SPEC, **changes)
        found = distill(here, start=toys.params(toys.Slopes(start)), teachers=team, spec=spec)
        return found.vector, int(here.notes["distill_steps"])

    def test_patience_in_steps(self) -> None:
        """Validation loss only rises, so the first evaluation, at step 3, is the best; 9 steps later it is over."""
        found, steps = self.taught()
        assert steps == 12
        assert torch.equal(found, self.taught(steps=3, patience=None, restore="last")[0])

    def test_patience_between_evaluations(self) -> None:
        """Patience 10 is noticed at the next evaluation, at step 15."""
        assert self.taught(patience=10)[1] == 15

    def test_never_beyond_the_cap(self) -> None:
        assert self.taught(patience=1000)[1] == 50
        assert self.taught(steps=7)[1] == 7

    def test_the_start_is_not_a_checkpoint(self) -> None:
        """`best` never gives back the untouched start, though it was better; `best_or_init` does."""
        start = torch.zeros(2, dtype=torch.float64)
        assert toys.gap(self.taught()[0], start) > 0.01
        assert torch.equal(self.taught(restore="best_or_init")[0], start)

    def test_the_last_step_is_evaluated(self) -> None:
        """50 is no multiple of 3. From a poor start the student improves all the way, so the last one is the best."""
        around = toys.context(
            [toys.points((1, 0))],
            toys.Slopes,
            reference=torch.tensor([[1.0], [2.0]], dtype=torch.float64),
            validation=toys.points((1, 0), (2, 0)),
        )
        team = {"c0": toys.params(toys.Slopes((2.0, -2.0)))}
        found = [
            distill(
                toys.ctx(around, "server"),
                start=toys.params(toys.Slopes()),
                teachers=team,
                spec=replace(self.SPEC, patience=None, restore=restore),
            ).vector
            for restore in ("best", "last")
        ]
        assert torch.equal(*found)
