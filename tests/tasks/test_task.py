from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch

import toys
from headwater.tasks.task import TaskContext, task

ROWS = [toys.blobs(4), toys.blobs(3, seed=1)]
VAL = toys.blobs(2, seed=2)
AROUND = toys.context(ROWS, toys.net, classes=3, validation=VAL, reference=VAL.x)


def test_a_client_sees_its_own_rows_and_nothing_of_the_servers() -> None:
    at = toys.ctx(AROUND, "c1")
    assert at.data is not None
    assert torch.equal(at.data.x, ROWS[1].x)
    assert torch.equal(at.inputs, ROWS[1].x)
    for what in ("validation", "test"):
        with pytest.raises(LookupError, match="at the server, not at c1"):
            getattr(at, what)


def test_the_server_sees_public_sets_and_no_client() -> None:
    at = toys.ctx(AROUND, "server")
    assert at.data is None
    assert at.own_test is None
    assert torch.equal(at.inputs, VAL.x)
    assert torch.equal(at.validation.y, VAL.y)


def test_a_host_has_nothing() -> None:
    at = toys.ctx(AROUND, "s0")
    assert at.data is None
    with pytest.raises(LookupError, match="s0 holds no data"):
        _ = at.inputs


def test_streams_are_named() -> None:
    def draw(*key: str | int) -> float:
        return float(TaskContext(AROUND, "c0", key).rng.random())

    assert draw(1, "train", 0, "c0") == draw(1, "train", 0, "c0")
    others = [(2, "train", 0, "c0"), (1, "other", 0, "c0"), (1, "train", 1, "c0"), (1, "train", 0, "c1")]
    assert len({draw(1, "train", 0, "c0"), *(draw(*key) for key in others)}) == 5


def test_notes() -> None:
    at = toys.ctx(AROUND)
    at.note(loss=torch.tensor(1.5), steps=3)
    at.note(loss=2)
    assert at.notes == {"loss": 2.0, "steps": 3.0}


def test_several_benches_at_once() -> None:
    at = toys.ctx(AROUND)
    model = at.initial(toys.ARCH)
    first, second = at.flat_module(model), at.flat_module(2 * model, slot=1)
    assert toys.gap(2 * first.vector, second.vector) == 0
    assert at.flat_module(model) is first


def test_travels_without_its_flat_modules() -> None:
    place = toys.context(ROWS, toys.net, classes=3)
    place.flat_module(toys.ARCH, 0)
    back = pickle.loads(pickle.dumps(place))
    assert torch.equal(back.split.train.x, place.split.train.x)
    assert not back._flat_modules


def test_mark() -> None:
    @task("train", streaming=("models",))
    def something(ctx: TaskContext) -> int:
        return 1

    assert (something.phase, something.streaming) == ("train", ("models",))
    assert something(toys.ctx(AROUND)) == 1


def test_noise_is_the_tasks_own_chance_unless_the_party_has_a_secret() -> None:
    """Then nobody who knows only the seed can repeat it, and it stays the same for the one who has it."""
    plain = AROUND
    key = (1, "knowledge", 0, "c0")

    def drawn(secret: str) -> list[float]:
        return TaskContext(replace(plain, secret=secret), "c0", key).noise.normal(size=3).tolist()

    assert drawn("") == TaskContext(plain, "c0", key).rng.normal(size=3).tolist()
    assert drawn("mine") == drawn("mine")
    assert len({tuple(drawn(secret)) for secret in ("", "mine", "yours")}) == 3
