"""The outer loop: init, rounds, evaluation, one row a round, one checkpoint a round."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headwater import checkpoint
from headwater.engines import open_engine
from headwater.engines.base import Done, Engine
from headwater.evaluation import Answer, Asked, answer, ask, row_of, summary_of, tests_for
from headwater.experiment import Experiment
from headwater.federation import SERVER, Desk, Federation, Located
from headwater.ledger import Ledger
from headwater.outcome import Run
from headwater.params import Params, digest
from headwater.rundir import RunDirectory
from headwater.stages.combine import initial
from headwater.topology.presence import participants

__all__ = ["Event", "open_engine", "train"]


@dataclass(frozen=True)
class Event:
    """News from a run, for a progress display."""

    kind: str  # start, task, round, end
    round: int
    rounds: int
    phase: str = ""
    done: int = 0
    total: int = 0
    accuracy: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Held:
    """What a checkpoint holds: the method's state, and the test set where personal models are judged."""

    state: Any
    tests: Located


def train(
    experiment: Experiment,
    *,
    out: Path | None = None,
    watch: Callable[[Event], None] | None = None,
    engine: Engine | None = None,
) -> Run:
    """Run an experiment. With `out`, leave its files there and carry on from what an earlier try left."""
    directory = RunDirectory(out, experiment.config) if out is not None else None
    with nullcontext(engine) if engine is not None else open_engine(experiment.config, [experiment]) as used:
        return _Loop(experiment, used, directory, watch or (lambda event: None)).run()


class _Loop:
    def __init__(
        self, experiment: Experiment, engine: Engine, directory: RunDirectory | None, tell: Callable[[Event], None]
    ) -> None:
        self.experiment, self.engine, self.directory, self.tell = experiment, engine, directory, tell
        self.config, self.tree = experiment.config, experiment.tree
        self.began = time.time()
        self.accuracy: float | None = None
        self.own_tests = self.config.partition.local_test > 0
        self.partition = self._partition()

    def run(self) -> Run:
        self.engine.start(self.experiment.context())
        held, first = self._begin()
        rounds, found = self.config.rounds, None
        self._say("start", first - 1)
        for number in range(first, rounds + 1):
            held, found = self._round(number, held)
        if found is None:  # every round was done before; only the last files were missing
            found = self._measure(held)
        run = self._finish(held, found)
        self._say("end", rounds)
        self.engine.watch = None
        return run

    def _begin(self) -> tuple[Held, int]:
        desk = Desk(self.engine, Ledger(), self.config.seed, dropout=self.config.faults.dropout)
        self.fed = Federation(self.tree, desk, self.tree.holders, purpose="setup")
        self.history: list[dict[str, Any]] = []
        last = checkpoint.load(self.directory.checkpoints, self.engine) if self.directory else None
        if self.directory:
            self.directory.write("partition.json", self.partition)
            self.history = self.directory.rows(until=last.round if last else 0)
        if last:
            desk.ledger, desk.named = last.ledger, set(last.names)
            self.began -= last.seconds  # a run's time is that of all its parts
            return last.state, last.round + 1
        model = self.fed.run(initial, at=SERVER, arch=self.experiment.model.name)
        state = self.experiment.method.init(self.fed, model)
        held = Held(state, tests_for(self.fed, state))
        self.fed.keep(held)
        self.engine.done.clear()
        return held, 1

    def _round(self, number: int, held: Held) -> tuple[Held, Answer | None]:
        self.fed = self.fed.begin(
            number, participants(self.tree, self.config.partition.participation, self.config.seed, number)
        )
        self.engine.watch = self._task_done(number)
        state = self.experiment.method.round(self.fed, held.state)
        if state.model is not None:  # where everybody was lost, the model stays as it was
            state = replace(state, model=self.fed.update(held.state.model, state.model))
        held = Held(state, held.tests)
        due = number % self.config.eval_every == 0 or number == self.config.rounds
        asked = self._ask(held) if due else None
        self.fed.keep((held, asked))
        found = answer(self.fed, asked, self.own_tests) if asked else None
        row = row_of(self.fed, found, self.engine.done)
        self.engine.done.clear()
        self.history.append(row)
        if self.directory:  # the row first: a checkpoint then always has its rows
            self.directory.add_row(row)
            seconds = time.time() - self.began
            checkpoint.save(self.directory.checkpoints, number, held, self.engine, self.fed.desk.ledger, seconds)
        self.accuracy = row["accuracy"] if found else self.accuracy
        self._say("round", number)
        return held, found

    def _ask(self, held: Held) -> Asked:
        return ask(self.fed, held.state, held.tests, self.own_tests)

    def _measure(self, held: Held) -> Answer:
        self.fed = self.fed.begin(self.config.rounds + 1, self.tree.holders)  # names that no kept value has
        ledger, self.fed.desk.ledger = self.fed.desk.ledger, Ledger()  # already charged when it was first measured
        found = answer(self.fed, self._ask(held), self.own_tests)
        self.fed.desk.ledger = ledger
        return found

    def _finish(self, held: Held, found: Answer) -> Run:
        params = self._export(held.state)
        tensors = {f"{name}.{key}" if name else key: t for name, p in params.items() for key, t in p.named().items()}
        config, ledger, model = self.config, self.fed.desk.ledger, self.experiment.model
        result = {
            "algorithm": config.method,
            "label": config.method,
            "seed": config.seed,
            "rounds": config.rounds,
            **summary_of(found, self.history, config.seed),
            "ledger": ledger.summary(),
            "seconds": round(time.time() - self.began, 3),
            "partition_sha256": self.experiment.partition.sha256,
            "model_sha256": digest(tensors),
            "data": config.data.name,
            "model": model.name,
            "parameters": next(iter(params.values())).layout.size,
            "clients": len(self.tree.clients),
            "sectors": len(self.tree.sectors),
            "versions": {"python": platform.python_version()}
            | {n: version(n) for n in ("headwater", "torch", "numpy")},
        }
        if self.directory and self.directory.result is None:
            self.directory.write_model(tensors, self._about())
            self.directory.write("result.json", result)
        if self.directory:
            result = self.directory.result or result
        path = self.directory.path if self.directory else None
        return Run(result, self.history, ledger, params, model, self.partition, config.to_toml(), path)

    def _export(self, state: Any) -> dict[str, Params]:
        if state.model is not None:
            return {"": self.fed.read(state.model)}
        fed = self.fed.whole.with_purpose("export")
        members: dict[str, Params] = fed.read(fed.up(state.personal, to=SERVER))
        fed.desk.ledger.settle(self.engine.info)
        return members

    def _partition(self) -> dict[str, Any]:
        split, partition = self.experiment.split, self.experiment.partition
        counts = partition.counts(split.train.y.numpy(), split.classes).tolist()
        return partition.manifest() | {"counts": counts, "classes": list(self.experiment.class_names)}

    def _about(self) -> dict[str, str]:
        """What is needed to build the model again and use it."""
        import json

        spec = self.experiment.model
        about = {"name": spec.name, "shape": spec.shape, "classes": spec.classes, "options": dict(spec.options)}
        return {"headwater": json.dumps(about | {"class_names": list(self.experiment.class_names)})}

    def _task_done(self, number: int) -> Callable[[Done], None]:
        def note(done: Done) -> None:
            finished = sum(d.phase == done.phase for d in self.engine.done)
            self._say("task", number, done.phase, finished, max(finished, self.fed.desk.submitted[done.phase]))

        return note

    def _say(self, kind: str, number: int, phase: str = "", done: int = 0, total: int = 0) -> None:
        seconds = time.time() - self.began
        self.tell(Event(kind, number, self.config.rounds, phase, done, total, self.accuracy, seconds))
