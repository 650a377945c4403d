"""What every engine promises. A new engine is right when all of this passes with its name in the table."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from torch import nn

import chosen
import toys
from headwater.algorithms import ALGORITHMS
from headwater.config import Config, catalog
from headwater.core import serialization
from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Session, each, maybe, nothing
from headwater.core.ledger import Ledger
from headwater.data.base import Data
from headwater.data.loading import load
from headwater.engines import ENGINES
from headwater.engines.base import Done, Engine
from headwater.engines.inline import Inline
from headwater.engines.jobs import EVERY, LOST, Bundle, Job, Ref
from headwater.errors import ConfigError, DataError, MissingExtra, PlaceError, TaskError
from headwater.specs import LocalSpec
from headwater.tasks.average import average, initial
from headwater.tasks.batched import policy
from headwater.tasks.local import local_train
from headwater.tasks.task import TaskContext, task
from headwater.training.experiment import Experiment, prepare
from headwater.training.loop import Event, train
from headwater.training.result import Run

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test by its name
TREE = ["c2", "c1", "c0", "c4", "c3"]


# -- tasks


@task("train")
def slow(ctx: TaskContext, seconds: float) -> str:
    time.sleep(seconds)
    return ctx.home


@task("train")
def held_up(ctx: TaskContext, mark: str) -> str:
    """Ends when there is such a file."""
    end = time.monotonic() + 600
    while not Path(mark).exists():
        assert time.monotonic() < end, "waited in vain for the file"
        time.sleep(0.01)
    return ctx.home


@task("average")
def order(ctx: TaskContext, values: Any) -> list[Any]:
    return [[child, value] for child, value in values.items()]


@task("average", streaming=("values",))
def streamed(ctx: TaskContext, values: Any) -> list[Any]:
    return [[child, value] for child, value in values.items()]


@task("average", streaming=("values",))
def read_twice(ctx: TaskContext, values: Any) -> int:
    return len(list(values.values())) + len(dict(values.items()))


@task("train")
def pair(ctx: TaskContext, size: int) -> dict[str, Any]:
    return {"short": torch.arange(2.0), "long": (torch.arange(float(size)), {"deep": torch.ones(3, dtype=torch.int64)})}


@task("train")
def same(ctx: TaskContext, value: Any) -> Any:
    return value


@task("train")
def number(ctx: TaskContext, value: float) -> float:
    ctx.note(noted=value)
    return value


@task("train")
def broken(ctx: TaskContext, where: str) -> float:
    if ctx.home == where:
        raise ZeroDivisionError("a fault in the task")
    return 1.0


@task("train")
def refusing(ctx: TaskContext, kind: str) -> float:
    raise DataError("file x is broken; get it again") if kind == "data" else MissingExtra("Ray", "ray")


@task("train")
def stranger(ctx: TaskContext) -> object:
    return {1, 2}


@task("train")
def noise(ctx: TaskContext) -> torch.Tensor:
    """All sources of chance that a task has."""
    return torch.cat([torch.rand(3, dtype=torch.float64), torch.from_numpy(ctx.rng.random(3))])


# -- helpers


def federation(engine: Engine, experiment: Experiment, dropout: float = 0.0) -> Federation:
    session = Session(engine, Ledger(), experiment.config.seed, dropout=dropout)
    return Federation(experiment.tree, session, experiment.tree.holders, round=1)


def job(name: str, function: Callable[..., Any], home: str = "server", lost: bool = False, **inputs: Any) -> Job:
    return Job(name, function, home, home, inputs, (1, name, 0, home), lost)


def at(name: str, home: str = "server", *part: Any) -> Ref:
    return Ref(name, home, part)


# -- computing


def test_results_come_in_tree_order_however_they_finish(engine: Engine, experiment: Experiment) -> None:
    fed = federation(engine, experiment)
    seconds = each({client: 0.05 * (len(TREE) - place) for place, client in enumerate(TREE)})
    homes = fed.up(fed.run(slow, at=CLIENTS, seconds=seconds), to=SERVER)
    expected = [[client, client] for client in TREE]
    assert list(fed.read(homes).items()) == [(client, client) for client in TREE]
    assert fed.read(fed.run(order, at=SERVER, values=homes)) == expected
    assert fed.read(fed.run(streamed, at=SERVER, values=homes)) == expected


def test_chance_depends_on_the_job_alone(engine: Engine, opened: Any, experiment: Experiment) -> None:
    names = [f"n{i}" for i in range(6)]
    for name in names:
        engine.submit(job(name, noise))
    found = [engine.read(at(name)) for name in names]
    inline = opened("inline")
    inline.start(experiment.context())
    for name in reversed(names):
        inline.submit(job(name, noise))
    assert all(torch.equal(value, inline.read(at(name))) for name, value in zip(names, found, strict=True))
    assert not torch.equal(found[0], found[1])


def test_reports_are_complete_once_finished(engine: Engine) -> None:
    watched: list[Done] = []
    engine.watch = watched.append
    for i in range(7):
        engine.submit(job(f"r{i}", number, value=float(i)))
    engine.finish([f"r{i}" for i in range(7)])
    assert sorted(done.name for done in watched) == [f"r{i}" for i in range(7)]
    assert watched == engine.done
    assert {done.name: done.notes[done.node]["noted"] for done in engine.done} == {f"r{i}": float(i) for i in range(7)}
    assert all((d.title, d.phase, d.node, d.round) == ("number", "train", "server", 1) for d in engine.done)
    assert all(d.start <= d.end for d in engine.done)


@pytest.mark.parametrize(
    "value",
    [3, 2.5, True, None, "text", (1, [2.0, "x"]), {("a", 1): {2: None}}, torch.zeros(0), torch.arange(6).view(2, 3).T],
    ids=repr,
)
def test_values_come_back_as_they_were(engine: Engine, value: Any) -> None:
    tensor = isinstance(value, torch.Tensor)
    engine.submit(job("v", same, value=value))
    found = engine.read(at("v"))
    assert type(found) is type(value)
    assert torch.equal(found, value) if tensor else found == value
    assert not tensor or found.is_contiguous()  # everywhere, for kernels are chosen by strides
    assert engine.info(at("v")) == serialization.info(value)


def test_a_streaming_input_is_read_once(engine: Engine) -> None:
    """Its values are released on the way, so a second reading is refused on every engine, whatever it still has."""
    for i in range(2):
        engine.submit(job(f"v{i}", number, value=float(i)))
    engine.submit(job("twice", read_twice, values=Bundle({"c0": at("v0"), "c1": at("v1")})))
    with pytest.raises(
        TaskError,
        match=r"read_twice at server \(home server\) reads its streaming input 'values' twice; "
        r"declare it without streaming or copy it to a dict",
    ):
        engine.read(at("twice"))


# -- engines of one's own


MINE = """
from headwater.engines.inline import Inline

class Mine(Inline):
    opened = []

    @classmethod
    def from_config(cls, options, workers):
        cls.opened.append((options.threads, workers))
        return super().from_config(options, workers)

class Bare:
    pass
"""


def test_an_engine_of_ones_own_is_named_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_engine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    mine = toys.tiny("fedavg", engine={"name": "own_engine:Mine", "workers": 3})
    expected = train(toys.tiny("fedavg", engine={"name": "inline"})).result["model_sha256"]
    assert train(mine).result["model_sha256"] == expected
    assert ENGINES.load("own_engine:Mine").opened == [(1, 3)]
    with pytest.raises(ConfigError, match=r"engine.name 'own_engine:Bare' has no class method from_config"):
        train(toys.tiny("fedavg", engine={"name": "own_engine:Bare"}))


# -- moving


def test_moves_are_charged_and_nothing_else_is(engine: Engine, experiment: Experiment) -> None:
    fed = federation(engine, experiment)
    made = fed.run(pair, at=CLIENTS, size=10)
    teams = fed.up(made)
    fed.run(order, at=SECTORS, values=teams["short"])
    fed.keep(())
    whole = (2 + 10) * 4 + 3 * 8
    assert fed.session.ledger.bytes("sector_client", "up") == len(TREE) * whole
    assert fed.session.ledger.bytes("sector_client", "down") == fed.session.ledger.bytes("server_sector") == 0


def test_parts_are_moved_and_charged_alone(engine: Engine, experiment: Experiment) -> None:
    fed = federation(engine, experiment)
    long = fed.run(pair, at=CLIENTS, size=10)["long"]
    inner = fed.up(long[1]["deep"], to=SERVER)
    fed.up(long, to=SERVER)
    found = fed.read(inner)
    assert list(found) == TREE
    assert torch.equal(found["c3"], torch.ones(3, dtype=torch.int64))
    fed.keep(())
    assert fed.session.ledger.bytes("sector_client", "up") == len(TREE) * (24 + 64)


def test_a_part_of_a_moved_part(engine: Engine) -> None:
    engine.submit(job("p", pair, "c0", size=4))
    engine.move(at("p", "c0", "long"), "s0", "up")
    engine.move(at("up", "s0", 1), "server", "top")
    engine.submit(job("q", same, value=at("top", "server", "deep")))
    assert torch.equal(engine.read(at("q")), torch.ones(3, dtype=torch.int64))
    assert list(engine.read(at("top"))) == ["deep"]
    assert engine.info(at("up")) == serialization.ValueInfo(16 + 24, 0, "numbers")


def test_a_value_can_be_moved_before_it_exists(engine: Engine) -> None:
    engine.submit(job("a", slow, "c0", seconds=0.1))
    engine.move(at("a", "c0"), "s0", "b")
    engine.move(at("b", "s0"), "server", "c")
    engine.submit(job("d", order, values=Bundle({"c0": at("c")})))
    assert engine.read(at("d")) == [["c0", "c0"]]


# -- letting go


def test_dropped_values_are_still_there_for_jobs_submitted_before(engine: Engine) -> None:
    engine.submit(job("a", slow, seconds=0.1))
    engine.submit(job("b", same, value=at("a")))
    engine.move(at("b"), "c0", "c")
    engine.submit(job("d", same, "c0", value=at("c", "c0")))
    engine.drop(["a", "b", "c"])
    assert engine.read(at("d", "c0")) == "server"


def test_sizes_outlive_their_values_until_they_are_told(engine: Engine) -> None:
    engine.submit(job("a", pair, "c0", size=5))
    engine.move(at("a", "c0", "long"), "server", "b")
    engine.submit(job("lost", number, "c0", lost=True, value=1.0))
    engine.either(at("a", "c0", "short"), at("lost", "c0"), "part")
    engine.drop(["a", "b", "lost", "part"])
    assert engine.finish(["a", "b", "lost", "part"]) == {
        "a": serialization.ValueInfo(8 + 20 + 24, 0, "numbers"),
        "b": serialization.ValueInfo(20 + 24, 0, "numbers"),
        "lost": None,
        "part": serialization.ValueInfo(8, 0, "array"),
    }
    for name in ("a", "b", "lost", "part"):
        with pytest.raises(KeyError):
            engine.info(at(name))


def test_what_is_finished_is_kept_until_it_is_dropped(engine: Engine) -> None:
    engine.submit(job("a", number, value=3.0))
    assert engine.finish(["a"]) == {"a": serialization.ValueInfo(8, 0, "number")}
    assert engine.info(at("a")) == serialization.ValueInfo(8, 0, "number")
    engine.submit(job("b", same, value=at("a")))
    engine.drop(["a"])
    assert engine.read(at("b")) == 3.0
    with pytest.raises(KeyError):
        engine.read(at("a"))


def test_nothing_waits_for_what_is_not_asked_for(engine: Engine, tmp_path: Path) -> None:
    """A later round is under way while an earlier one is finished and forgotten."""
    engine.submit(job("early", number, value=1.0))
    engine.submit(job("late", held_up, mark=str(tmp_path / "mark")))
    engine.drop(["early"])
    engine.finish(["early"])
    assert [done.name for done in engine.done] == ["early"]
    (tmp_path / "mark").touch()
    assert engine.read(at("late")) == "server"
    assert [done.name for done in engine.done] == ["early", "late"]


# -- one of two


def test_either_is_the_new_value_unless_it_was_lost(engine: Engine) -> None:
    engine.submit(job("old", number, value=1.0))
    engine.submit(job("new", number, value=2.0))
    engine.submit(job("gone", number, lost=True, value=3.0))
    engine.either(at("new"), at("old"), "first")
    engine.either(at("gone"), at("old"), "second")
    engine.either(at("gone"), at("gone"), "third")
    engine.either(at("third"), at("second"), "fourth")
    engine.drop(["old", "new", "gone", "third"])
    found = {name: engine.read(at(name)) for name in ("first", "second", "fourth")}
    assert found == {"first": 2.0, "second": 1.0, "fourth": 1.0}
    engine.finish(["old", "new", "gone", "first", "second", "third", "fourth"])
    assert {done.name for done in engine.done} == {"old", "new", "gone"}  # a choice is nobody's work


@pytest.mark.parametrize("early", [True, False], ids=["known", "under way"])
def test_either_takes_parts_and_can_be_moved_and_used(engine: Engine, early: bool) -> None:
    engine.submit(job("old", pair, size=3))
    engine.submit(job("new", pair, size=5))
    if early:
        engine.finish(["old", "new"])
    engine.either(at("new", "server", "long"), at("old", "server", "long"), "chosen")
    engine.move(at("chosen", "server", 0), "c0", "moved")
    engine.submit(job("used", same, "c0", value=at("moved", "c0")))
    engine.submit(job("told", same, value=at("chosen", "server", 1, "deep")))
    engine.drop(["old", "new", "chosen", "moved"])
    assert torch.equal(engine.read(at("used", "c0")), torch.arange(5.0))
    assert torch.equal(engine.read(at("told")), torch.ones(3, dtype=torch.int64))
    assert engine.finish(["moved"]) == {"moved": serialization.ValueInfo(20, 0, "array")}


def test_a_choice_is_saved_like_any_value(engine: Engine, experiment: Experiment, tmp_path: Path) -> None:
    engine.submit(job("old", pair, size=3))
    engine.submit(job("gone", pair, lost=True, size=5))
    engine.either(at("gone", "server", "long"), at("old", "server", "long"), "chosen")
    files = engine.save(["chosen"], tmp_path)
    engine.start(experiment.context())
    engine.load(files, tmp_path)
    assert torch.equal(engine.read(at("chosen", "server", 0)), torch.arange(3.0))


def test_a_new_run_forgets_the_old_one(engine: Engine, experiment: Experiment) -> None:
    engine.submit(job("a", number, value=1.0))
    assert engine.read(at("a")) == 1.0
    engine.submit(job("busy", slow, seconds=0.3))
    engine.start(replace(experiment.context(), seed=5))
    engine.submit(job("b", noise))
    assert engine.done == [] or {done.name for done in engine.done} == {"b"}
    other = engine.read(at("b"))
    with pytest.raises(KeyError):
        engine.read(at("a"))
    engine.start(experiment.context())
    engine.submit(job("b", noise))
    assert not torch.equal(engine.read(at("b")), other)


@pytest.mark.parametrize("name", chosen.first(toys.TESTED, ["inline"]))
def test_close_is_safe_twice_and_a_closed_engine_starts_again(name: str, experiment: Experiment) -> None:
    made = ENGINES.load(name)() if name == "inline" else ENGINES.load(name)(1)
    made.close()
    for value in (1.0, 2.0):
        made.start(experiment.context())
        made.submit(job("a", number, value=value))
        assert made.read(at("a")) == value
        made.submit(job("unfinished", slow, seconds=60.0))
        made.close()
        made.close()


# -- losses


def test_lost_values(engine: Engine, experiment: Experiment) -> None:
    fed = federation(engine, experiment)
    engine.submit(job("gone", number, "c0", lost=True, value=1.0))
    engine.submit(job("here", number, "c1", value=2.0))
    engine.move(at("gone", "c0"), "server", "g")
    engine.move(at("here", "c1"), "server", "h")
    assert engine.read(at("gone", "c0")) is LOST
    assert engine.read(at("g")) is LOST
    assert engine.info(at("g")) is None
    engine.submit(job("mapping", order, values=Bundle({"c0": at("g"), "c1": at("h")})))
    engine.submit(job("nobody", streamed, values=Bundle({"c0": at("g")})))
    engine.submit(job("follows", same, value={"x": (at("g"),)}))
    engine.submit(job("part", same, value=at("g", "server", "key", 0)))
    assert engine.read(at("mapping")) == [["c1", 2.0]]
    assert [engine.read(at(name)) for name in ("nobody", "follows", "part")] == [LOST] * 3
    assert fed.session.ledger.bytes("sector_client") == 0


def test_lost_clients_are_left_out_and_keep_what_they_had(engine: Engine, experiment: Experiment) -> None:
    fed = federation(engine, experiment)
    old = fed.run(number, at=CLIENTS, value=0.0)
    fed = federation(engine, experiment, dropout=0.5).begin(2, experiment.tree.holders)
    new = fed.run(number, at=CLIENTS, value=1.0)
    lost = set(fed.missing(new))
    assert 0 < len(lost) < len(TREE)
    merged = fed.read(fed.up(fed.update(old, new), to=SERVER))
    assert merged == {client: float(client not in lost) for client in TREE}
    assert list(fed.read(fed.up(new, to=SERVER))) == [client for client in TREE if client not in lost]


# -- errors


def test_an_error_names_task_node_and_home(engine: Engine, experiment: Experiment) -> None:
    fed = federation(engine, experiment).seat({"s1": "c3"})
    assert fed.missing(fed.run(broken, at=SECTORS, where="nowhere")) == ()
    made = fed.run(broken, at=SECTORS, where="c3")
    with pytest.raises(TaskError, match=r"broken at s1 \(home c3\) failed: ZeroDivisionError: a fault in the task"):
        fed.missing(made)


@pytest.mark.parametrize("wait", ["info", "read", "finish", "save"])
def test_an_error_shows_at_the_next_wait(engine: Engine, wait: str, tmp_path: Path) -> None:
    engine.submit(job("x", broken, where="server"))
    calls: dict[str, Callable[[], object]] = {
        "info": lambda: engine.info(at("x")),
        "read": lambda: engine.read(at("x")),
        "finish": lambda: engine.finish(["x"]),
        "save": lambda: engine.save(["x"], tmp_path),
    }
    with pytest.raises(TaskError, match="ZeroDivisionError"):
        calls[wait]()


def test_mistakes_of_the_user_pass_as_they_are(engine: Engine, experiment: Experiment) -> None:
    engine.submit(job("x", refusing, kind="data"))
    with pytest.raises(DataError, match=r"^file x is broken; get it again$"):
        engine.read(at("x"))
    engine.start(experiment.context())
    engine.submit(job("x", refusing, kind="extra"))
    with pytest.raises(
        MissingExtra, match=r"^Ray needs an optional part; install it with: pip install 'headwater\[ray\]'$"
    ):
        engine.read(at("x"))
    engine.start(experiment.context())  # and the engine is none the worse
    engine.submit(job("x", number, value=4.0))
    assert engine.read(at("x")) == 4.0


def test_a_value_that_cannot_travel_is_refused_where_it_is_made(engine: Engine) -> None:
    engine.submit(job("x", stranger))
    with pytest.raises(TaskError, match=r"stranger at server .* value of type set cannot travel"):
        engine.read(at("x"))


def test_a_missing_part_is_an_error(engine: Engine) -> None:
    engine.submit(job("x", pair, size=2))
    engine.submit(job("y", same, value=at("x", "server", "absent")))
    with pytest.raises(TaskError, match=r"same at server .* KeyError: 'absent'"):
        engine.read(at("y"))


# -- the law


def test_a_job_cannot_use_what_lives_elsewhere(engine: Engine) -> None:
    engine.submit(job("a", number, "c0", value=1.0))
    engine.submit(Job("b", same, "server", "server", {"value": at("a", "c0")}, (1, "b", 0, "server")))
    with pytest.raises(TaskError, match="same at server was given a value that is stored at c0, not at server"):
        engine.read(at("b"))


Breach = Callable[[Federation], object]


def _trained(fed: Federation) -> Any:
    return fed.run(number, at=CLIENTS, value=1.0)


BREACHES: dict[str, tuple[Breach, str]] = {
    "a member's value used at the server": (
        lambda fed: fed.run(same, at=SERVER, value=_trained(fed)),
        r"same at 'server': input 'value' is at clients, not at server; move it with up\(\)",
    ),
    "an average across places": (
        lambda fed: fed.run(order, at=SECTORS, values=(fed.run(number, at=SECTORS, value=1.0), _trained(fed))),
        r"order at 's0': input 'values\[1\]' is at clients, not at sectors",
    ),
    "an array given plainly": (
        lambda fed: fed.run(same, at=CLIENTS, value={"x": [torch.ones(2)]}),
        r"input \"value\['x'\]\[0\]\" is a plain Tensor; arrays travel by up\(\) and down\(\) only",
    ),
    "a model read and passed on": (
        lambda fed: fed.run(same, at=CLIENTS, value=fed.read(fed.run(initial, at=SERVER, arch="mlp"))),
        r"input 'value' is a plain Params",
    ),
    "a value kept at a seat": (
        lambda fed: fed.keep((fed.seat({"s0": "c1"}).run(number, at=SECTORS, value=1.0),)),
        r"the state keeps a value of 's0' at 'c1', a seat that ends with the round",
    ),
    "reading away from the server": (
        lambda fed: fed.read(_trained(fed)),
        r"only what is at the server can be read, and this is at clients",
    ),
    "moving a mapping": (
        lambda fed: fed.up(fed.up(_trained(fed))),
        r"up\(\) cannot move the mapping that 's0' received",
    ),
    "up the wrong way": (
        lambda fed: fed.up(fed.run(number, at=SERVER, value=1.0), to=CLIENTS),
        r"up\(\) cannot move from server to clients; use down\(\)",
    ),
    "down the wrong way": (
        lambda fed: fed.down(_trained(fed), to=SECTORS),
        r"down\(\) cannot move from clients to sectors; use up\(\)",
    ),
    "an absent leader": (
        lambda fed: fed.among(["c0", "c3"]).seat({"s0": "c1"}),
        r"'c1' cannot lead 's0': it does not take part",
    ),
    "a leader of another sector": (
        lambda fed: fed.seat({"s0": "c4"}),
        r"'c4' cannot lead 's0': it belongs to 's1'",
    ),
    "a value at the host of a sector that is led": (
        lambda fed: fed.seat({"s0": "c2"}).run(same, at=SECTORS, value=fed.run(number, at=SECTORS, value=1.0)),
        r"input 'value' is stored at 's0', its host, while 's0' is now 'c2'; pass it on with hand\(\)",
    ),
    "a value at a former seat": (
        lambda fed: fed.seat({"s0": "c1"}).run(
            same, at=SECTORS, value=fed.seat({"s0": "c2"}).run(number, at=SECTORS, value=1.0)
        ),
        r"input 'value' is stored at 'c2', a former seat, while 's0' is now 'c1'; pass it on with hand\(\)",
    ),
    "a node without a value": (
        lambda fed: fed.run(same, at=CLIENTS, value=fed.among(["c0"]).run(number, at=CLIENTS, value=1.0)),
        r"input 'value' has no value at 'c2'; wrap it in maybe\(\)",
    ),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_of_the_law_is_refused(engine: Engine, experiment: Experiment, breach: str) -> None:
    call, message = BREACHES[breach]
    with pytest.raises(PlaceError, match=message):
        call(federation(engine, experiment))


def test_what_the_law_allows(engine: Engine, experiment: Experiment) -> None:
    """The same calls with the move that the message asks for."""
    fed = federation(engine, experiment).seat({"s0": "c1", "s1": "c3"})
    mine = fed.run(number, at=CLIENTS, value=each({client: float(i) for i, client in enumerate(TREE)}))
    at_leaders = fed.run(same, at=SECTORS, value=mine)  # a leader's own value is at hand
    host = fed.unseat().hand(at_leaders)
    fed.keep((host,))
    assert fed.read(fed.unseat().up(host)) == {"s0": 1.0, "s1": 4.0}
    assert fed.read(fed.up(fed.run(same, at=CLIENTS, value=maybe(nothing(CLIENTS))), to=SERVER)) == dict.fromkeys(TREE)


# -- files


def test_saved_values_are_the_same_files_on_every_engine(
    engine: Engine, opened: Any, experiment: Experiment, tmp_path: Path
) -> None:
    def work(on: Engine) -> None:
        on.submit(job("m", initial, arch="mlp"))
        on.submit(job("p", pair, "c0", size=9))
        on.submit(job("lost", number, "c0", lost=True, value=1.0))
        on.move(at("p", "c0", "long"), "server", "q")
        on.move(at("m"), "c0", "start")
        on.submit(job("t", local_train, "c0", start=at("start", "c0"), spec=experiment.method.local))  # type: ignore[attr-defined]

    names = ["m", "p", "lost", "q", "t"]
    work(engine)
    files = engine.save(names, tmp_path / "here")
    assert files["lost"] == ""
    assert files == engine.save(names, tmp_path / "here")
    assert {path.name for path in (tmp_path / "here").iterdir()} == set(files.values()) - {""}
    other = opened("inline")
    other.start(experiment.context())
    work(other)
    assert other.save(names, tmp_path / "there") == files
    for file in set(files.values()) - {""}:
        assert (tmp_path / "here" / file).read_bytes() == (tmp_path / "there" / file).read_bytes()

    engine.start(experiment.context())
    engine.load(files, tmp_path / "there")
    for path in (tmp_path / "there").iterdir():
        path.unlink()  # as a later checkpoint may
    engine.submit(job("again", average, models=Bundle({"a": at("m"), "b": at("m")})))
    assert torch.equal(engine.read(at("again")).vector, engine.read(at("m")).vector)
    assert engine.read(at("lost", "c0")) is LOST
    assert engine.info(at("q")) == serialization.ValueInfo(36 + 24, 0, "numbers")
    assert engine.save(names, tmp_path / "there") == files
    assert len(list((tmp_path / "there").iterdir())) == 4


def test_a_file_cut_short_is_refused(engine: Engine, experiment: Experiment, tmp_path: Path) -> None:
    engine.submit(job("m", initial, arch="mlp"))
    files = engine.save(["m"], tmp_path)
    path = tmp_path / files["m"]
    path.write_bytes(path.read_bytes()[:-100])
    engine.start(experiment.context())
    with pytest.raises(ValueError, match=r"\.value is damaged"):
        engine.load(files, tmp_path)


# -- equal bits


def short(method: str, **more: Any) -> Config:
    stages = {f"{stage}__{key}": value for stage in catalog.stages(method) for key, value in more.items()}
    return Config.load(
        None,
        [],
        algorithm__name=method,
        rounds=2,
        partition__clients=6,
        data__fraction=0.3,
        faults__dropout=0.2,
        **stages,
    )


CREWS = [
    (name, workers)
    for name in toys.TESTED
    if name != "inline"
    for workers in ((2,) if name == "ray" else (2, 1, 3))  # a worker takes seconds to start there
]
one_crew_thorough_two = pytest.mark.parametrize("crew", chosen.first(CREWS[:2], CREWS[:1]), ids="{0[0]}-{0[1]}".format)
SHORT = toys.TESTED == ["ray"] and os.environ.get("HEADWATER_SLOW") != "1"
METHODS = ["fedavg", "fedhead+", "mtgc", "fedeed", "fedhkd"] if SHORT else list(ALGORITHMS)
VARIED = ("fedavg", "fedhead", "mtgc", "fedeed")  # on every number of workers; the others on two


def without_times(run: Run) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in run.history]
    return {key: value for key, value in run.result.items() if key != "seconds"}, rows


@pytest.mark.parametrize("method", chosen.first(METHODS, chosen.FEW))
def test_every_engine_gives_the_same_bits(method: str, opened: Any) -> None:
    """Images, since strides and kernels are chosen there; the whole result and every row, not the model alone."""
    agrees(method, CREWS[:1], opened)


@pytest.mark.thorough
@pytest.mark.parametrize("method", VARIED)
def test_every_number_of_workers_gives_the_same_bits(method: str, opened: Any) -> None:
    agrees(method, CREWS[1:], opened)


def agrees(method: str, crews: list[tuple[str, int]], opened: Any) -> None:
    made = prepare(short(method, epochs=1))
    expected = train(made, engine=opened("inline"))
    for name, workers in crews:
        found = train(made, engine=opened(name, workers))
        assert found.result["model_sha256"] == expected.result["model_sha256"], (name, workers)
        assert without_times(found) == without_times(expected), (name, workers)


@pytest.mark.parametrize(
    ("method", "more"),
    [("hfedavg", {}), pytest.param("fedeed", {"algorithm": {"cohorts": 2}}, marks=pytest.mark.thorough)],
)
@one_crew_thorough_two
def test_every_engine_gives_the_same_bits_of_secure_sums(
    method: str, more: dict[str, Any], crew: tuple[str, int], opened: Any
) -> None:
    """With clients that are lost between the steps of a sum."""
    sizes = ((9, 25, 14, 11, 8, 13), (0, 0, 0, 1, 1, 1))
    made = toys.tiny(
        method,
        arrays=toys.tiny_data(150),
        sizes=sizes,
        rounds=2,
        faults={"dropout": 0.05},
        privacy={"secure": "both"},
        **more,
    )
    expected = train(made, engine=Inline(workers=1))
    assert without_times(train(made, engine=opened(*crew))) == without_times(expected)


TOGETHER = ("scaffold", "fedprox", "feddyn", "fedhead")


@pytest.mark.parametrize("method", chosen.first(["fedavg", "mtgc", *TOGETHER], ["mtgc"]))
@one_crew_thorough_two
def test_every_engine_gives_the_same_bits_of_clients_trained_together(
    method: str, crew: tuple[str, int], opened: Any
) -> None:
    """In a process with one thread and with three, and on workers; with clients that are lost on the way."""
    sizes = ((9, 25, 14, 1, 8, 13), (0, 1, 0, 0, 1, 1))
    made = toys.tiny(
        method,
        arrays=toys.tiny_data(150),
        sizes=sizes,
        model=wide,
        rounds=3,
        faults={"dropout": 0.2},
        partition={"participation": 0.8},
    )
    assert made.stacking.way == "hand"
    expected = train(made, engine=Inline(workers=1))
    assert without_times(train(made, engine=Inline(workers=3))) == without_times(expected)
    assert without_times(train(made, engine=opened(*crew))) == without_times(expected)


IMAGES = ("fedavg", "scaffold", "feddyn", "fedhead")


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fedprox", *(pytest.param(m, marks=pytest.mark.thorough) for m in IMAGES)])
@one_crew_thorough_two
def test_every_engine_gives_the_same_bits_of_stacked_convolutions(
    method: str, crew: tuple[str, int], opened: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With batch norm and dropout, in parts of two clients, and resumed; a loop differs in its last digits alone."""
    monkeypatch.setattr(policy, "WIDEST", 2)
    sizes = ((9, 16, 4, 1, 8), (0, 1, 0, 0, 1))
    train_rows, test_rows = (toys.blobs(n, n, features=32, dtype=torch.float32) for n in (90, 31))
    x, test = (rows.x.view(-1, 2, 4, 4) for rows in (train_rows, test_rows))
    arrays = Data(x, train_rows.y, test, test_rows.y)
    options: dict[str, Any] = {
        "arrays": arrays,
        "sizes": sizes,
        "model": convolved,
        "partition": {"participation": 0.8},
    }
    made, loop = (toys.tiny(method, rounds=2, engine={"stack": stack}, **options) for stack in ("on", "off"))
    assert (made.stacking.way, made.stacking.width) == ("vmap", 2)
    expected = train(made, engine=Inline(workers=1))
    assert without_times(train(made, engine=Inline(workers=3))) == without_times(expected)
    assert without_times(train(made, engine=opened(*crew))) == without_times(expected)
    with suppress(KeyboardInterrupt):
        train(made, out=tmp_path / "run", watch=_stop)
    assert train(made, out=tmp_path / "run").result["model_sha256"] == expected.result["model_sha256"]
    for name, model in train(loop).params.items():
        torch.testing.assert_close(expected.params[name].vector, model.vector, rtol=1e-3, atol=1e-4)


def _stop(event: Event) -> None:
    if event.kind == "round":
        raise KeyboardInterrupt


def convolved() -> nn.Module:
    features = [nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3)]
    return toys.Net(nn.Sequential(*features), nn.Linear(12, 3))


def wide() -> nn.Module:
    """Large enough for several threads to be used, and small enough for several clients to be stacked."""
    return nn.Sequential(nn.Linear(4, 30_000), nn.ReLU(), nn.Linear(30_000, 3))


def test_jobs_of_one_group_are_each_what_they_would_be_alone(engine: Engine, experiment: Experiment) -> None:
    """Lost ones and ones that cannot be stacked among them; each is reported, and moved like any other."""
    fed = federation(engine, experiment)
    start = fed.down(fed.run(initial, at=SERVER, arch=experiment.model.name), to=CLIENTS)
    spec = LocalSpec(epochs=1, batch=4)

    def training(name: str, node: str, lost: bool = False) -> Job:
        given = {"start": start.nodes[node], "spec": spec}
        return Job(name, local_train, node, node, given, (1, "local_train", 0, node), lost)

    def of(node: str, name: str = "g", home: str = "") -> Ref:
        return Ref(name, home or node, (), node)

    engine.submit(*[training("g", node, node == "c1") for node in ("c0", "c1", "c2")])
    engine.move(of("c2"), "server", "moved")
    engine.move(Ref("g", "c0", (), EVERY), "server", "all")
    infos = engine.finish(["g", "moved", "all"])
    assert [list(d.notes) for d in engine.done if d.title == "local_train"] == [["c0", "c1", "c2"]]
    assert engine.read(of("c1")) is LOST
    assert engine.info(of("c1")) is None
    size = engine.info(of("c2"))
    assert infos["moved"] == size
    for name in ("g", "all"):
        told = infos[name]
        assert isinstance(told, Mapping)
        assert {node: told.get(node) for node in ("c0", "c1", "c2")} == {"c0": size, "c1": None, "c2": size}
    for node in ("c0", "c2"):
        engine.submit(training(f"a-{node}", node))
        found = engine.read(of(node))
        assert toys.gap(found, engine.read(at(f"a-{node}", node))) < 1e-6
        assert found.weight == experiment.tree.sizes[node]
        assert torch.equal(engine.read(of(node, "all", "server")).vector, found.vector)
    assert torch.equal(engine.read(at("moved")).vector, engine.read(of("c2")).vector)


def test_members_of_a_group_that_nobody_needs_are_let_go(engine: Engine) -> None:
    """And the others stay as they are, also through a checkpoint."""
    engine.submit(*[replace(job("g", together_or_not, f"c{i}"), node=f"c{i}") for i in range(3)])
    engine.finish(["g"])
    engine.trim({"g": {"c1"}})
    assert engine.read(Ref("g", "c1", (), "c1")).tolist() == [1.0, 2.0]
    with pytest.raises(KeyError) if not isinstance(engine, Inline) else nullcontext():
        assert engine.read(Ref("g", "c2", (), "c2")) is LOST


def test_a_group_is_saved_by_member_and_taken_up_again(engine: Engine, experiment: Experiment, tmp_path: Path) -> None:
    engine.submit(*[replace(job("g", together_or_not, f"c{i}", i == 2), node=f"c{i}") for i in range(3)])
    engine.move(Ref("g", "c0", (), EVERY), "server", "up")
    engine.finish(["g", "up"])
    files = engine.save(["g", "up"], tmp_path)
    held = files["g"]
    assert isinstance(held, Mapping)
    assert held.keys() >= {"c0", "c1"}
    assert not held.get("c2")
    engine.start(experiment.context())
    engine.load(files, tmp_path)
    for name in ("g", "up"):
        assert engine.read(Ref(name, "server", (), "c1")).tolist() == [1.0, 2.0]
    engine.move(Ref("up", "server", (), EVERY), "c0", "down")
    told = engine.finish(["down"])["down"]
    assert isinstance(told, Mapping)
    assert {node for node, info in told.items() if info} == {"c0", "c1"}


def _twos(contexts: Any, inputs: Any) -> list[torch.Tensor]:
    return [torch.tensor([float(ctx.home[1:]), 2.0]) for ctx in contexts]


@task("train", together=_twos)
def together_or_not(ctx: TaskContext) -> torch.Tensor:
    return _twos([ctx], [{}])[0]


def test_threads_of_one_run_have_no_part_in_one_that_cannot_use_them() -> None:
    """Stacks by hand and, on the same engine afterwards, by torch's own batching, which swaps a module's parameters."""
    engine, models = Inline(workers=3), (None, lambda: nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3)))
    for model, way in zip(models, ("hand", "vmap"), strict=True):
        made = toys.tiny("fedavg", model=model, engine={"stack": "on"})
        assert made.stacking.way == way
        expected = train(made, engine=Inline())
        assert without_times(train(made, engine=engine)) == without_times(expected)
        assert (engine._context.helpers is not None) is (way == "hand")
    engine.close()


def test_what_goes_wrong_in_a_group_is_told(engine: Engine) -> None:
    engine.submit(*[replace(job("x", breaks_together, f"c{i}"), node=f"c{i}") for i in range(2)])
    with pytest.raises(TaskError, match=r"breaks_together at c0 \(home c0\) and 1 more failed: ValueError: on purpose"):
        engine.read(Ref("x", "c1", (), "c1"))


def _never_together(contexts: Any, inputs: Any) -> Any:
    raise ValueError("on purpose")


@task("train", together=_never_together)
def breaks_together(ctx: TaskContext) -> float:
    return 0.0


@pytest.fixture(scope="module")
def photographs(real_data: Path) -> Data:
    """1 000 images to train on; few to test on, since the test set is the same whatever the engine."""
    whole = load("cifar10", real_data)
    some, test = whole.take(range(1000)), whole.test.take(range(100))
    return Data(some.x, some.y, test.x, test.y)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fedavg", "fedhead+", "scaffold", "fedhkd"])
def test_every_engine_gives_the_same_bits_on_photographs(method: str, photographs: Data, opened: Any) -> None:
    """A residual net with batch norm, on 1, 2 and 3 workers."""
    tables: dict[str, Any] = {"algorithm": {"name": method}, "partition": {"clients": 4}, "model": {"name": "resnet8"}}
    once = {"epochs": 1, "restore": "last"}
    stages = {f.name for f in dataclasses.fields(ALGORITHMS.load(method))}
    tables |= {"local": {"epochs": 1}} | {stage: once for stage in ("sector", "server") if stage in stages}
    made = prepare(Config(rounds=1, data={"validation": 20, "reference_size": 64}, **tables), data=photographs)
    expected = train(made, engine=opened("inline")).result["model_sha256"]
    for name, workers in CREWS:
        found = train(made, engine=opened(name, workers)).result["model_sha256"]
        assert found == expected, (name, workers)
