"""The outer loop: init, rounds, evaluation, one row per round, and checkpoints."""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headwater.algorithms.base import outputs
from headwater.core import numerics
from headwater.core.federation import SERVER, Federation, Located
from headwater.core.ledger import Ledger
from headwater.core.params import Params, digest
from headwater.core.sampling import participants
from headwater.core.values import names_in
from headwater.engines import open_engine
from headwater.engines.base import Done, Engine
from headwater.engines.nan_check import BAD, Complaint
from headwater.errors import Diverged
from headwater.tasks.average import initial
from headwater.training import checkpoint
from headwater.training.checkpoint import Keeper
from headwater.training.evaluation import (
    Measurements,
    Scores,
    cautions,
    method_report,
    read_evaluation,
    row_of,
    submit_evaluation,
    summary_of,
    tests_for,
)
from headwater.training.experiment import Experiment
from headwater.training.opening import open_federation, run_context
from headwater.training.progress import Event, Progress
from headwater.training.result import Run, describe_model, model_tensors, named
from headwater.training.run_directory import RunDirectory

__all__ = ["Event", "open_engine", "train"]


@dataclass(frozen=True)
class Saved:
    """Content of a checkpoint: the method's state, and the test set at clients where personal models are tested."""

    state: Any
    tests: Located


@dataclass(frozen=True)
class OpenRound:
    """A round whose jobs were submitted and whose results have not been read yet."""

    fed: Federation
    saved: Saved
    asked: Measurements | None


def train(
    experiment: Experiment,
    *,
    out: Path | None = None,
    watch: Callable[[Event], None] | None = None,
    engine: Engine | None = None,
) -> Run:
    """Run an experiment.

    Args:
        experiment: what `prepare` returned.
        out: directory for the run's files; an interrupted run there is resumed. None leaves nothing on disk.
        watch: called with every `Event` of the run.
        engine: an open engine; None opens the one that the configuration asks for.
    """
    directory = RunDirectory(out, experiment.config) if out is not None else None
    opened = open_engine(experiment.config, [experiment]) if engine is None else nullcontext(engine)
    with _frozen_objects(), opened as used:
        return _Loop(experiment, used, directory, Progress(watch, experiment.config.rounds)).run()


@contextmanager
def _frozen_objects() -> Iterator[None]:
    """Freezes existing objects so that the garbage collector skips them during training."""
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
        self.context = run_context(self.experiment)
        self.engine.start(self.context)
        saved, first = self._begin()
        submitted = self.fed.session.submitted
        self.engine.watch = (lambda done: self.progress.task(done, submitted)) if self.progress.watch else None
        rounds, found = self.config.rounds, None
        self.progress.say("start", first - 1)
        for sentence in filter(None, (*cautions(self.experiment), numerics.too_late())):
            self.progress.say("warning", first - 1, text=sentence)
        for number in range(first, rounds + 1):
            self._open(number, saved)
            saved = self.open[-1].saved
            # With overlap, a round closes after the next is submitted.
            while len(self.open) > self.config.engine.overlap:
                found = self._close()
        while self.open:
            found = self._close()
        if found is None:  # all rounds were done before; only the final files were missing
            found = self._measure(saved)
        run = self._finish(saved, found)
        self.progress.say("end", rounds)
        self.engine.watch = None
        return run

    def _begin(self) -> tuple[Saved, int]:
        self.fed = open_federation(self.experiment, self.engine, self.context)
        session = self.fed.session
        self.history: list[dict[str, Any]] = []
        self.spans: list[dict[str, Any]] = []  # only without a directory
        self.open: list[OpenRound] = []
        last = checkpoint.load(self.directory.checkpoints, self.engine) if self.directory else None
        if self.directory:
            self.directory.check_split(self.partition["sha256"])
            self.directory.write("partition.json", self.partition)
            self.history = self.directory.resume(last.round if last else -1)
        if last:
            session.ledger, session.named = last.ledger, set(last.names)
            self.progress.began -= last.seconds  # the time of a resumed run includes its earlier parts
            return last.state, last.round + 1
        if (exchange := self.experiment.exchange) is not None:
            session.ledger.prepare(exchange.name, exchange.up, exchange.down)
        model = self.fed.run(initial, at=SERVER, arch=self.experiment.model.name)
        state = self.experiment.method.init(self.fed, model)
        saved = Saved(state, tests_for(self.fed, state, self.own_tests))
        self.fed.keep(saved)
        bad = [(done, node) for done in self._take_reports(0) for node, notes in done.notes.items() if BAD in notes]
        if bad:
            done, node = bad[0]
            raise Diverged(Complaint(self.context, done.phase, done.title, node, 0, len(bad) - 1).hopeless)
        return saved, 1

    def _open(self, number: int, saved: Saved) -> None:
        """Submit a round and its evaluation. Does not wait, unless the method does."""
        fed = self.fed = self.fed.begin(
            number, participants(self.tree, self.config.partition.participation, self.config.seed, number)
        )
        state = fed.restore_lost(saved.state, self.experiment.method.round(fed, saved.state))
        saved = Saved(state, saved.tests)
        due = number % self.config.eval_every == 0 or number == self.config.rounds
        # Where clients are separate parties, accuracy by client costs an exchange with each: only in the last round.
        each = number == self.config.rounds or not fed.session.losing
        self.open.append(OpenRound(fed, saved, self._ask(saved, each) if due else None))
        self._release()

    def _close(self) -> Scores | None:
        """Finish the oldest open round: its measurements, its row and its checkpoint."""
        this = self.open[0]
        fed, number = this.fed, this.fed.round
        fed.session.settle(number)
        found = read_evaluation(fed, this.asked, self.own_tests) if this.asked else None
        done = self._take_reports(number)
        row = row_of(fed, found, done)
        self.history.append(row)
        if self.directory and self.keeper:  # the row first, so that a checkpoint always has its rows
            self.directory.add_row(row)
            self.keeper.keep(number, this.saved, fed.session.ledger, time.time() - self.progress.began)
            if number == self.config.rounds:
                self.keeper.write()
        if self.open[1:]:  # the state of the last round is needed for the export
            self.open.remove(this)
        self._release()
        if self.open[0] is this:
            self.open.clear()
        if found:
            self.progress.accuracy = row["accuracy"]
        if bad := row.get("bad_updates"):
            phase = next(d.phase for d in done if d.title == bad[0]["task"])
            complaint = Complaint(self.context, phase, bad[0]["task"], bad[0]["node"], number, len(bad) - 1)
            self.progress.say("warning", number, text=complaint.dropped)
        self.progress.round_closed(number)
        return found

    def _release(self) -> None:
        """Drop all values that neither an open round nor the next checkpoint needs."""
        needed = [(each.saved, each.asked) for each in self.open]
        self.fed.session.release(names_in([needed, self.keeper.state if self.keeper else None]))

    def _take_reports(self, number: int) -> list[Done]:
        """Take the reports of a finished round; reports of the next round may be among them and stay."""
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

    def _ask(self, saved: Saved, by_client: bool = True) -> Measurements:
        return submit_evaluation(self.fed, saved.state, saved.tests, self.own_tests, by_client)

    def _measure(self, saved: Saved) -> Scores:
        # A new round number, so that no name is used twice.
        self.fed = self.fed.begin(self.config.rounds + 1, self.tree.holders)
        session = self.fed.session
        ledger, session.ledger = session.ledger, Ledger()  # this evaluation was charged before
        found = read_evaluation(self.fed, self._ask(saved), self.own_tests)
        session.ledger = ledger
        return found

    def _finish(self, saved: Saved, found: Scores) -> Run:
        params = self._export(saved.state)
        tensors = model_tensors(params)
        config, ledger, model = self.config, self.fed.session.ledger, self.experiment.model
        result = {
            "algorithm": config.method,
            "label": config.method,
            "seed": config.seed,
            "rounds": config.rounds,
            **summary_of(found, self.history, config.seed),
            **method_report(self.experiment, self.history),
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
            self.directory.write_model(tensors, describe_model(self.experiment, params))
            self.directory.write("result.json", result)
        if self.directory:
            result = self.directory.result or result
        path = self.directory.path if self.directory else None
        told = (self.partition, config.to_toml(), path, self.spans)
        return Run(result, self.history, ledger, params, model, self.context.models, *told)

    def _export(self, state: Any) -> dict[str, Params]:
        """The global model; without one, that of each client or member under its name."""
        shown = outputs(state)
        if shown.model is not None:
            return {"": self.fed.read(shown.model)}
        if shown.personal is None:
            return {name: self.fed.read(member) for name, member in named(state.team.members).items()}
        fed = self.fed.whole.with_purpose("export")
        members: dict[str, Params] = fed.read(fed.up(shown.personal, to=SERVER)) or {}
        fed.session.settle(fed.round)
        return members
