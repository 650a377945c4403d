"""The outer loop: init, rounds, evaluation, one row a round, and a checkpoint now and then."""

from __future__ import annotations

import gc
import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headwater.core import numerics
from headwater.core.federation import SERVER, Federation, Located, Session
from headwater.core.ledger import Ledger
from headwater.core.params import Params, digest
from headwater.core.precompute import Precompute
from headwater.core.sampling import participants
from headwater.core.values import names_in
from headwater.engines import open_engine
from headwater.engines.base import Done, Engine
from headwater.engines.nan_check import BAD, Complaint, likely_causes
from headwater.errors import Diverged
from headwater.models.base import ModelSpec
from headwater.specs import LocalSpec
from headwater.tasks.average import initial
from headwater.tasks.batched.policy import NUMBERS
from headwater.tasks.task import RunContext
from headwater.training import checkpoint
from headwater.training.checkpoint import Keeper
from headwater.training.evaluation import Answer, Asked, answer, ask, cautions, row_of, summary_of, tests_for, told_by
from headwater.training.experiment import Experiment
from headwater.training.progress import Event, Progress
from headwater.training.restore_lost import restore_lost
from headwater.training.result import Run, named
from headwater.training.run_directory import RunDirectory

__all__ = ["Event", "open_engine", "train"]

SMALL = 2.5e8  # multiplications: clients that need fewer are trained several to a job, which costs as much itself
BACKWARD = 3  # a step on a row is about as much work as so many passes over it


@dataclass(frozen=True)
class Held:
    """What a checkpoint holds: the method's state, and the test set where personal models are judged."""

    state: Any
    tests: Located


@dataclass(frozen=True)
class Open:
    """A round that was submitted and of which nothing has been read yet."""

    fed: Federation
    held: Held
    asked: Asked | None


def train(
    experiment: Experiment,
    *,
    out: Path | None = None,
    watch: Callable[[Event], None] | None = None,
    engine: Engine | None = None,
) -> Run:
    """Run an experiment. With `out`, leave its files there and carry on from what an earlier try left."""
    directory = RunDirectory(out, experiment.config) if out is not None else None
    opened = open_engine(experiment.config, [experiment]) if engine is None else nullcontext(engine)
    with _little_garbage(), opened as used:
        return _Loop(experiment, used, directory, Progress(watch, experiment.config.rounds)).run()


@contextmanager
def _little_garbage() -> Iterator[None]:
    """All that is there when training begins stays: the collector of garbage need not go through it in between."""
    frozen = gc.get_freeze_count()
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()


class _Loop:
    def __init__(
        self, experiment: Experiment, engine: Engine, directory: RunDirectory | None, progress: Progress
    ) -> None:
        self.experiment, self.engine, self.directory, self.progress = experiment, engine, directory, progress
        self.config, self.tree = experiment.config, experiment.tree
        self.own_tests = self.config.partition.local_test > 0
        self.partition = self.experiment.manifest()
        self.keeper = Keeper(directory.checkpoints, engine, directory.sync) if directory else None

    def run(self) -> Run:
        if self.keeper is None:
            return self._run()
        with self.keeper:
            return self._run()

    def _run(self) -> Run:
        self.context = context_of(self.experiment)
        self.engine.start(self.context)
        held, first = self._begin()
        submitted = self.fed.session.submitted
        self.engine.watch = (lambda done: self.progress.task(done, submitted)) if self.progress.watch else None
        rounds, found = self.config.rounds, None
        self.progress.say("start", first - 1)
        for sentence in filter(None, (*cautions(self.experiment), numerics.too_late())):
            self.progress.say("warning", first - 1, text=sentence)
        for number in range(first, rounds + 1):
            self._open(number, held)
            held = self.open[-1].held
            while len(self.open) > self.config.engine.overlap:  # with it, a round closes when the next is submitted
                found = self._close()
        while self.open:
            found = self._close()
        if found is None:  # every round was done before; only the last files were missing
            found = self._measure(held)
        run = self._finish(held, found)
        self.progress.say("end", rounds)
        self.engine.watch = None
        return run

    def _begin(self) -> tuple[Held, int]:
        session = open_session(self.experiment, self.engine, Precompute.of(self.context))
        self.fed = Federation(self.tree, session, self.tree.holders, purpose="setup")
        self.history: list[dict[str, Any]] = []
        self.spans: list[dict[str, Any]] = []  # a directory keeps them, where there is one
        self.open: list[Open] = []
        last = checkpoint.load(self.directory.checkpoints, self.engine) if self.directory else None
        if self.directory:
            self.directory.check_split(self.partition["sha256"])
            self.directory.write("partition.json", self.partition)
            self.history = self.directory.resume(last.round if last else -1)
        if last:
            session.ledger, session.named = last.ledger, set(last.names)
            self.progress.began -= last.seconds  # a run's time is that of all its parts
            return last.state, last.round + 1
        if (told := self.experiment.exchange) is not None:
            session.ledger.prepare(told.name, told.up, told.down)
        model = self.fed.run(initial, at=SERVER, arch=self.experiment.model.name)
        state = self.experiment.method.init(self.fed, model)
        held = Held(state, tests_for(self.fed, state, self.own_tests))
        self.fed.keep(held)
        bad = [(done, node) for done in self._take_reports(0) for node, notes in done.notes.items() if BAD in notes]
        if bad:
            done, node = bad[0]
            raise Diverged(Complaint(self.context, done.phase, done.title, node, 0, len(bad) - 1).hopeless)
        return held, 1

    def _open(self, number: int, held: Held) -> None:
        """Submit a round and what is asked of it. Nothing waits, unless the method does."""
        fed = self.fed = self.fed.begin(
            number, participants(self.tree, self.config.partition.participation, self.config.seed, number)
        )
        state = restore_lost(fed, held.state, self.experiment.method.round(fed, held.state))
        held = Held(state, held.tests)
        due = number % self.config.eval_every == 0 or number == self.config.rounds
        # To ask clients what it means for them takes an exchange with each, where they are parties of their own.
        each = number == self.config.rounds or not fed.session.losing
        self.open.append(Open(fed, held, self._ask(held, each) if due else None))
        self._release()

    def _close(self) -> Answer | None:
        """See the oldest open round through: its answers, its row and its checkpoint."""
        this = self.open[0]
        fed, number = this.fed, this.fed.round
        fed.session.settle(number)
        found = answer(fed, this.asked, self.own_tests) if this.asked else None
        done = self._take_reports(number)
        row = row_of(fed, found, done)
        self.history.append(row)
        if self.directory and self.keeper:  # the row first: a checkpoint then always has its rows
            self.directory.add_row(row)
            self.keeper.keep(number, this.held, fed.session.ledger, time.time() - self.progress.began)
            if number == self.config.rounds:
                self.keeper.write()
        if self.open[1:]:  # the last round's state is kept, for the export
            self.open.remove(this)
        self._release()
        if self.open[0] is this:
            self.open.clear()
        if found:
            self.progress.accuracy = row["accuracy"]
        if bad := row.get("bad_updates"):
            phase = next(d.phase for d in done if d.title == bad[0]["task"])
            told = Complaint(self.context, phase, bad[0]["task"], bad[0]["node"], number, len(bad) - 1)
            self.progress.say("warning", number, text=told.dropped)
        self.progress.round_closed(number)
        return found

    def _release(self) -> None:
        """Let go of all that neither an open round nor a checkpoint needs."""
        needed = [(each.held, each.asked) for each in self.open]
        self.fed.session.release(names_in([needed, self.keeper.state if self.keeper else None]))

    def _take_reports(self, number: int) -> list[Done]:
        """The reports of a round, which by now are complete; those of the next may have come in between."""
        mine = [done for done in self.engine.done if done.round <= number]
        self.engine.done[:] = [done for done in self.engine.done if done.round > number]
        began = self.progress.began
        spans = [
            {"round": d.round, "task": d.title, "phase": d.phase, "node": d.node}
            | ({"nodes": len(d.notes)} if len(d.notes) > 1 else {})
            | {"start": round(d.start - began, 6), "end": round(d.end - began, 6), "worker": d.worker}
            for d in sorted(mine, key=lambda d: (d.start, d.name))
        ]
        if self.directory:
            self.directory.add_spans(spans)
        else:
            self.spans += spans
        return mine

    def _ask(self, held: Held, by_client: bool = True) -> Asked:
        return ask(self.fed, held.state, held.tests, self.own_tests, by_client)

    def _measure(self, held: Held) -> Answer:
        self.fed = self.fed.begin(self.config.rounds + 1, self.tree.holders)  # names that no kept value has
        ledger, self.fed.session.ledger = (
            self.fed.session.ledger,
            Ledger(),
        )  # already charged when it was first measured
        found = answer(self.fed, self._ask(held), self.own_tests)
        self.fed.session.ledger = ledger
        return found

    def _finish(self, held: Held, found: Answer) -> Run:
        params = self._export(held.state)
        tensors = {f"{name}.{key}" if name else key: t for name, p in params.items() for key, t in p.named().items()}
        config, ledger, model = self.config, self.fed.session.ledger, self.experiment.model
        result = {
            "algorithm": config.method,
            "label": config.method,
            "seed": config.seed,
            "rounds": config.rounds,
            **summary_of(found, self.history, config.seed),
            **told_by(self.experiment, self.history),
            "ledger": ledger.summary(),
            "seconds": round(time.time() - self.progress.began, 3),
            "partition_sha256": self.experiment.partition.sha256,
            "model_sha256": digest(tensors),
            "data": config.data.name,
            "model": model.name,
            "stacking": self.experiment.stacking.to_dict(),
            "parameters": next((p.layout.size for p in params.values()), 0) or model.count(),
            "clients": len(self.tree.clients),
            "sectors": len(self.tree.sectors),
            "numerics": numerics.about(),
            "versions": {"python": platform.python_version()}
            | {n: version(n) for n in ("headwater", "torch", "numpy")},
        }
        if self.directory and self.directory.result is None:
            self.directory.write_model(tensors, self._about(params))
            self.directory.write("result.json", result)
        if self.directory:
            result = self.directory.result or result
        path = self.directory.path if self.directory else None
        told = (self.partition, config.to_toml(), path, self.spans)
        return Run(result, self.history, ledger, params, model, self.context.models, *told)

    def _export(self, state: Any) -> dict[str, Params]:
        """The global model; without one, that of each client or member under its name."""
        if getattr(state, "model", None) is not None:
            return {"": self.fed.read(state.model)}
        if getattr(state, "personal", None) is None:
            return {name: self.fed.read(member) for name, member in named(state.team.members).items()}
        fed = self.fed.whole.with_purpose("export")
        members: dict[str, Params] = fed.read(fed.up(state.personal, to=SERVER)) or {}
        fed.session.settle(fed.round)
        return members

    def _about(self, params: dict[str, Params]) -> dict[str, str]:
        """What is needed to build the model, or each of the members, again and use it."""

        def told(spec: ModelSpec) -> dict[str, Any]:
            return {f.name: getattr(spec, f.name) for f in fields(spec) if f.name != "builder"}

        about = told(self.experiment.model) | {"class_names": list(self.experiment.class_names)}
        if self.experiment.exchange is not None:
            about["preparation"] = self.experiment.exchange.described()
        if "" not in params:
            about["members"] = {name: told(self.context.models[p.layout.arch]) for name, p in params.items()}
        return {"headwater": json.dumps(about)}


def open_session(experiment: Experiment, engine: Engine, fanout: Precompute | None = None) -> Session:
    """What the views of a run share: which jobs are carried out as one follows from the experiment alone."""
    config, fanout = experiment.config, fanout or Precompute()
    specs = [value for value in vars(experiment.method).values() if isinstance(value, LocalSpec)]
    passes = max((spec.epochs or 0 for spec in specs), default=0)  # a number of steps says nothing of rows
    rows = int(SMALL / (BACKWARD * fanout.work * passes)) if fanout.work and passes else 0
    return Session(
        engine,
        Ledger(),
        config.seed,
        dropout=config.faults.dropout,
        width=experiment.stacking.width,
        rows=rows,
        small=NUMBERS // max(1, experiment.model.count()),  # no more models at a time than a stack would have
        fanout=fanout,
    )


def context_of(experiment: Experiment) -> RunContext:
    """What tasks find, and what is said and done if one of them does not give numbers."""
    faults = experiment.config.faults
    return replace(
        experiment.context(),
        method=experiment.config.method,
        bad_update=faults.bad_update,
        causes=likely_causes(experiment.method),
        availability=faults.availability,
        period=faults.period,
        stack=experiment.stacking.way,
        server_threads=experiment.config.engine.server_threads,
        sector_of=experiment.tree.sector_of,
    )
