"""Helper threads: what they take first, and what becomes of errors and cancelled work."""

from __future__ import annotations

import threading

import pytest

from headwater.tasks.batched.threads import Helpers


@pytest.fixture
def helper():
    helpers = Helpers(1, 1)
    yield helpers
    helpers.close()


def test_a_free_helper_takes_shared_work_before_work_that_was_begun_ahead(helper):
    busy, go, order, met = threading.Event(), threading.Event(), [], threading.Barrier(2)

    def first() -> None:
        busy.set()
        assert go.wait(10)

    running = helper.begin(first)
    assert busy.wait(10)
    ahead = helper.begin(lambda: order.append("begun ahead"))

    def piece(number: int) -> None:
        go.set()  # the helper is free from here, and has both to choose from
        order.append("shared")
        met.wait(10)  # each thread does one piece, so the helper must take part

    helper.share(piece, range(2))
    ahead.result(10)
    running.result(10)
    assert order == ["shared", "shared", "begun ahead"]


def test_all_pieces_are_done_once_by_any_number_of_helpers():
    for count in (1, 3):
        helpers, done = Helpers(count, 1), []
        helpers.share(done.append, range(20))
        helpers.share(done.append, [])
        helpers.close()
        assert sorted(done) == list(range(20))


def test_an_error_reaches_whoever_asks_for_the_result(helper):
    def broken() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        helper.begin(broken).result(10)
    done = []
    helper.begin(lambda: done.append(1)).result(10)  # the helper is still there
    assert done == [1]


def test_work_that_nobody_has_taken_can_be_cancelled_and_is_not_done(helper):
    busy, go, done = threading.Event(), threading.Event(), []

    def first() -> None:
        busy.set()
        assert go.wait(10)

    helper.begin(first)
    assert busy.wait(10)
    late = helper.begin(lambda: done.append("late"))
    assert late.cancel()
    go.set()
    helper.begin(lambda: done.append("after")).result(10)
    assert done == ["after"]
