"""References of many nodes under few names: what they are one by one, and how their values are fetched."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from headwater.engines.job_groups import JobGroup
from headwater.engines.jobs import Job, Stream
from headwater.engines.refs import EVERY, Bundle, Ref, RefGroup, Refs, apart, fetched, grouped

RESULTS = RefGroup("r", ("c0", "c1"), "server", (), grouped=True)
BROADCAST = RefGroup("b", ("c2", "c3"))
REFS = Refs([RESULTS, BROADCAST])
SINGLE = {
    "c0": Ref("r", "server", (), "c0"),
    "c1": Ref("r", "server", (), "c1"),
    "c2": Ref("b", "c2"),
    "c3": Ref("b", "c3"),
}


def test_one_by_one_they_are_what_a_dict_would_hold() -> None:
    assert dict(REFS) == SINGLE
    assert SINGLE == REFS
    assert (list(REFS), len(REFS), list(REFS.values())) == (list(SINGLE), 4, list(SINGLE.values()))
    assert "c1" in REFS
    assert "c9" not in REFS
    assert list(apart(grouped(REFS))) == list(SINGLE.values()) == list(apart(grouped(SINGLE)))


def test_another_process_gets_a_dict() -> None:
    sent = pickle.loads(pickle.dumps(Bundle(REFS)))
    assert type(sent.refs) is dict
    assert sent.refs == SINGLE


def test_a_part_is_taken_of_every_value() -> None:
    assert dict(Bundle(REFS)["loss"].refs) == {node: ref["loss"] for node, ref in SINGLE.items()}


def test_a_group_is_fetched_once() -> None:
    stored: dict[Any, Any] = {("r", EVERY): {"c1": 1.0}, ("b", ""): 7.0}
    asked: list[Ref] = []

    def fetch(ref: Ref) -> Any:
        asked.append(ref)
        return stored[ref.name, ref.member]

    assert [found for _, found in fetched(REFS, fetch)] == [{"c1": 1.0}, {"c2": 7.0, "c3": 7.0}]
    assert asked == [RESULTS.whole, BROADCAST.whole]


def test_a_stream_holds_one_group_at_a_time() -> None:
    class Value:
        alive = 0

        def __init__(self) -> None:
            Value.alive += 1

        def __del__(self) -> None:
            Value.alive -= 1

    def fetch(ref: Ref) -> dict[str, Value]:
        assert Value.alive == 0
        return {node: Value() for node in (f"{ref.name}0", f"{ref.name}1")}

    groups = [RefGroup(name, (f"{name}0", f"{name}1"), "server", (), grouped=True) for name in "abc"]
    released: list[str] = []
    job = Job("n", print, "server", "server", {"models": Bundle(Refs(groups))}, ())
    for value in Stream(job, "models", fetch, lambda ref: released.append(ref.name)).values():
        assert isinstance(value, Value)
        del value
    assert released == ["a", "b", "c"]


@pytest.mark.parametrize("lost", [(), ("c3",), ("c2", "c3")])
def test_a_group_of_jobs_is_its_single_jobs(lost: tuple[str, ...]) -> None:
    inputs, sizes = {"start": BROADCAST, "spec": 5}, {"c2": 10, "c3": 20}
    group = JobGroup("n", print, ("c2", "c3"), inputs, (4, "print", 0), frozenset(lost), sizes)
    first, second = group.jobs
    assert (second.node, second.home, second.key, second.size) == ("c3", "c3", (4, "print", 0, "c3"), 20)
    assert second.inputs == {"start": Ref("b", "c3"), "spec": 5}
    assert tuple(job.node for job in (first, second) if job.lost) == lost
    again = JobGroup.of(group.jobs)
    assert again.needs == group.needs == (("b",) if len(lost) < 2 else ())
    assert (again.name, again.nodes, again.round, again.title, again.lost) == ("n", group.nodes, 4, "print", group.lost)
