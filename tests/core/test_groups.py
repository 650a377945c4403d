"""Which jobs are carried out as one: a function of the configuration and of who takes part, and of nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import toys
from headwater.core.federation import CLIENTS, SERVER, Session
from headwater.core.ledger import Ledger
from headwater.engines.inline import Inline
from headwater.errors import TaskError
from headwater.tasks.average import average, initial
from headwater.tasks.evaluate import expected_accuracy
from headwater.tasks.local import local_train
from headwater.training.loop import train
from headwater.training.opening import open_federation

NODES = [f"c{at}" for at in range(10)]
ALIKE = dict.fromkeys(NODES, 5)


def grouped(task: Any, nodes: Sequence[str] = NODES, engine: Any = None, **options: int) -> list[int]:
    session = Session(engine, Ledger(), 0, **options)  # type: ignore[arg-type]
    groups = list(session.groups(task, nodes, ALIKE))
    assert [node for group in groups for node in group] == list(nodes)
    return [len(group) for group in groups]


class Parties:
    losing = True


@pytest.mark.parametrize(
    ("width", "expected"), [(1, [1] * 10), (3, [2, 3, 2, 3]), (4, [3, 3, 4]), (10, [10]), (64, [10])]
)
def test_stacks_are_of_about_equal_width(width: int, expected: list[int]) -> None:
    assert grouped(local_train, width=width) == expected


def test_large_models_are_few_to_a_job() -> None:
    assert grouped(local_train, rows=1000, small=2) == [2] * 5


@pytest.mark.parametrize(("rows", "expected"), [(0, [1] * 10), (9, [1] * 10), (10, [2] * 5), (1000, [10])])
def test_small_clients_share_a_job_up_to_so_many_rows(rows: int, expected: list[int]) -> None:
    assert grouped(local_train, rows=rows) == expected


def test_what_is_cheap_is_one_job_for_all_and_most_tasks_are_a_job_each() -> None:
    assert grouped(expected_accuracy) == [10]
    assert grouped(average, width=5, rows=100) == [1] * 10
    assert grouped(expected_accuracy, nodes=[]) == []


def test_parties_are_never_grouped() -> None:
    assert grouped(expected_accuracy, engine=Parties()) == [1] * 10
    assert grouped(local_train, engine=Parties(), width=5, rows=100) == [1] * 10


def test_a_round_of_stacked_clients_is_few_jobs_few_moves_and_few_rows() -> None:
    """However many clients there are: one name for a broadcast, one for each stack, and one for each on its way up."""
    made = toys.tiny("fedavg", sizes=((3,) * 12, (0, 1) * 6), engine={"stack": "on"})
    engine = Inline()
    engine.start(made.context())
    fed = open_federation(made, engine, made.context()).begin(1, made.tree.holders)
    session = fed.session
    session.width = 4
    model = fed.run(initial, at=SERVER, arch=made.model.name)
    start = fed.down(model, to=CLIENTS)
    local = fed.run(local_train, at=CLIENTS, start=start, spec=made.method.local)  # type: ignore[attr-defined]
    fed.run(average, at=SERVER, models=fed.up(local, to=SERVER))
    assert len(session.named) == 1 + 1 + 3 + 3 + 1
    assert len(session.ledger._open) == 1 + 3
    session.settle(1)
    size = 4 * sum(p.numel() for p in made.model.build().parameters())
    for tier in ("server_sector", "sector_client"):
        assert session.ledger.bytes(tier, "down") == session.ledger.bytes(tier, "up") == 12 * size
        assert session.ledger.round_trips(tier) == 12
    assert [len(done.notes) for done in engine.done] == [1, 4, 4, 4, 1]
    engine.close()


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedhead", "local"])
def test_small_clients_in_one_job_end_as_each_in_its_own(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = toys.tiny(method, engine={"stack": "off"})
    assert open_federation(made, Inline(), made.context()).session.rows == 0  # as tests set SMALL
    expected, watched = train(made).result["model_sha256"], []
    monkeypatch.setattr("headwater.training.opening.SMALL", 2.5e8)
    engine = Inline()
    run = train(made, engine=engine, watch=lambda event: watched.extend(engine.done))
    assert run.result["model_sha256"] == expected
    assert max(len(done.notes) for done in watched if done.title == "local_train") > 1


@pytest.mark.parametrize("faults", [{}, {"dropout": 0.4}])
def test_groups_as_one_object_are_what_single_jobs_are(
    faults: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model, the rows, the ledger, and what is reported."""
    made = toys.tiny("fedavg", sizes=((3, 5, 9, 4, 3, 3), (0, 1) * 3), engine={"stack": "on"}, faults=faults)

    def found() -> Any:
        run = train(made)
        rows = [{key: item for key, item in row.items() if key != "seconds"} for row in run.history]
        spans = sorted((s["task"], s["node"], s.get("nodes", 1)) for s in run.timeline)
        return run.result["model_sha256"], rows, run.result["ledger"], spans

    as_one = found()
    monkeypatch.setattr(Session, "takes_groups", False)
    assert found() == as_one


def test_an_error_of_the_preparation_is_raised_by_a_later_call() -> None:
    made = toys.tiny("fedavg", engine={"stack": "on"})
    engine = Inline(workers=2)
    engine.start(replace(made.context(), stack="hand"))
    fed = open_federation(made, engine, made.context()).begin(1, made.tree.holders)
    start = fed.down(fed.run(initial, at=SERVER, arch=made.model.name), to=CLIENTS)
    engine.info(start.nodes["c0"])  # a group begins when its inputs exist
    local = fed.run(local_train, at=CLIENTS, start=start, spec="none")
    with pytest.raises(TaskError, match=r"local_train at c\d .* and 4 more failed"):
        engine.info(local.nodes["c0"])
    engine.close()
