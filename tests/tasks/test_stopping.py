from __future__ import annotations

import math

import pytest

from headwater.tasks.optimizers import EarlyStop


def fed(stop: EarlyStop[str], *values: float, every: int = 1) -> int | None:
    """Evaluations at every, 2·every, …: the index at which it says stop, if it does."""
    for number, value in enumerate(values, start=1):
        if stop.update(number * every, value, lambda number=number: f"after {number}"):
            return number * every
    return None


class TestWhenItStops:
    def test_as_soon_as_the_best_is_patience_ago(self) -> None:
        assert fed(EarlyStop("loss", patience=2), 5, 4, 3, 3.5, 3.2, 1) == 5

    def test_an_improvement_starts_the_count_anew(self) -> None:
        assert fed(EarlyStop("loss", patience=2), 5, 6, 4, 6, 3, 6, 6) == 7

    def test_accuracy_is_better_when_larger(self) -> None:
        assert fed(EarlyStop("accuracy", patience=2), 0.5, 0.6, 0.4, 0.4) == 4
        assert fed(EarlyStop("loss", patience=2), 0.5, 0.6, 0.4, 0.4) is None

    def test_a_tie_is_no_improvement(self) -> None:
        stop: EarlyStop[str] = EarlyStop("accuracy", patience=3, restore="best")
        assert fed(stop, 0.5, 0.5, 0.5, 0.5) == 4
        assert stop.chosen(lambda: "last") == "after 1"

    @pytest.mark.parametrize(("every", "patience", "at"), [(100, 1000, 1100), (100, 50, 200), (3, 10, 15), (1, 1, 2)])
    def test_in_steps(self, every: int, patience: int, at: int) -> None:
        """The first evaluation is the best; patience counts steps, not evaluations."""
        assert fed(EarlyStop("loss", patience=patience), *range(1, 20), every=every) == at

    def test_without_patience_it_never_does(self) -> None:
        assert fed(EarlyStop("loss"), *range(1000)) is None

    def test_small_gains_do_not_count_below_min_delta(self) -> None:
        assert fed(EarlyStop("loss", patience=2, min_delta=0.1), 1.0, 0.95, 0.91) == 3
        assert fed(EarlyStop("loss", patience=2, min_delta=0.1), 1.0, 0.95, 0.85) is None


class TestWhatIsRestored:
    VALUES = (3.0, 1.0, 2.0)

    @pytest.mark.parametrize(("restore", "given"), [("last", "last"), ("best", "after 2"), ("best_or_init", "after 2")])
    def test_a_better_start_is_not_there(self, restore: str, given: str) -> None:
        stop: EarlyStop[str] = EarlyStop("loss", restore=restore)
        stop.begin(4.0, lambda: "start")
        fed(stop, *self.VALUES)
        assert stop.chosen(lambda: "last") == given

    @pytest.mark.parametrize(("restore", "given"), [("last", "last"), ("best", "after 2"), ("best_or_init", "start")])
    def test_the_start_was_best(self, restore: str, given: str) -> None:
        stop: EarlyStop[str] = EarlyStop("loss", restore=restore)
        stop.begin(0.5, lambda: "start")
        fed(stop, *self.VALUES)
        assert stop.chosen(lambda: "last") == given

    def test_patience_counts_from_the_start_when_it_competes(self) -> None:
        stop: EarlyStop[str] = EarlyStop("loss", patience=2, restore="best_or_init")
        stop.begin(0.5, lambda: "start")
        assert fed(stop, *self.VALUES) == 2

    def test_the_start_wins_a_tie(self) -> None:
        stop: EarlyStop[str] = EarlyStop("accuracy", restore="best_or_init")
        stop.begin(0.5, lambda: "start")
        fed(stop, 0.5, 0.5)
        assert stop.chosen(lambda: "last") == "start"

    def test_last_takes_no_snapshots(self) -> None:
        def never() -> str:
            raise AssertionError("a copy nobody asked for")

        stop: EarlyStop[str] = EarlyStop("loss", patience=3)
        stop.begin(1.0, never)
        stop.update(1, 0.5, never)
        assert stop.chosen(lambda: "last") == "last"


class TestNotANumber:
    def test_is_never_the_best(self) -> None:
        stop: EarlyStop[str] = EarlyStop("loss", restore="best")
        fed(stop, math.nan, 2.0, math.nan, 3.0)
        assert stop.chosen(lambda: "last") == "after 2"

    def test_counts_as_no_improvement(self) -> None:
        assert fed(EarlyStop("loss", patience=2), 1.0, math.nan, math.nan) == 3
        assert fed(EarlyStop("loss", patience=3), *[math.nan] * 10) == 3

    def test_a_sound_start_is_given_back(self) -> None:
        stop: EarlyStop[str] = EarlyStop("loss", patience=5, restore="best_or_init")
        stop.begin(1.0, lambda: "start")
        fed(stop, math.nan, math.nan)
        assert stop.chosen(lambda: "last") == "start"

    def test_infinite_loss_is_worse_than_any(self) -> None:
        stop: EarlyStop[str] = EarlyStop("loss", restore="best")
        fed(stop, math.inf, 7.0)
        assert stop.chosen(lambda: "last") == "after 2"

    def test_nothing_but_nan_leaves_the_last(self) -> None:
        stop: EarlyStop[str] = EarlyStop("loss", restore="best")
        fed(stop, math.nan)
        assert stop.chosen(lambda: "last") == "last"
