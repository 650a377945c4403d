"""Which number of threads is taken, from what both took."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headwater.stages.pace import Pace


def taken(pace: Pace, seconds: tuple[float, float], steps: int) -> list[int]:
    """The choices of so many steps, if one takes seconds[0] with few threads and seconds[1] with several."""
    found = []
    for _ in range(steps):
        which = pace.choose()
        pace.took(which, seconds[which])
        found.append(which)
    return found


@pytest.mark.parametrize(("seconds", "better"), [((1.0, 0.6), 1), ((1.0, 20.0), 0)], ids=["quiet", "busy"])
def test_the_faster_one_is_taken_and_the_other_tried_ever_more_rarely(
    seconds: tuple[float, float], better: int
) -> None:
    pace = Pace()
    pace.threads = (1, 2)
    found = taken(pace, seconds, 1000)
    assert found[:2] == [1, 0]
    tried = [at for at, which in enumerate(found) if which != better and at > 1]
    gaps = [after - before for before, after in pairwise(tried)]
    assert gaps == sorted(gaps)
    assert 3 <= len(tried) <= 8


def test_a_machine_that_becomes_quiet_is_noticed() -> None:
    pace = Pace()
    pace.threads = (1, 2)
    assert taken(pace, (1.0, 20.0), 200).count(1) < 6
    assert taken(pace, (1.0, 0.5), 4000)[-100:].count(1) > 80


def test_where_there_is_no_choice_none_is_made() -> None:
    assert taken(Pace(), (1.0, 0.1), 50) == [0] * 50
