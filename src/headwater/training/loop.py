"""The outer loop: init, rounds, evaluation, one row per round, and checkpoints."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater import startup
from headwater.callbacks import Callback
from headwater.core import numerics
from headwater.core.federation import SERVER, Federation, Located
from headwater.core.ledger import Ledger
from headwater.core.membership import joined_until
from headwater.core.sampling import participants
from headwater.core.values import names_in
from headwater.engines import open_engine
from headwater.engines.base import Done, Engine
from headwater.engines.nan_check import BAD, NonFiniteResult
from headwater.errors import Diverged
from headwater.inference import card
from headwater.tasks import devices
from headwater.tasks.average import initial
from headwater.training import checkpoint
from headwater.training.checkpoint import Keeper
from headwater.training.evaluation import Measurements, Scores, read_evaluation, row_of, submit_evaluation, tests_for
from headwater.training.experiment import Experiment
from headwater.training.finish import exported, result_of, write_files
from headwater.training.guessing import guess_note
from headwater.training.hooks import Hooks
from headwater.training.model_tensors import describe_model, frozen_of, left_beside, tensors_of
from headwater.training.opening import (
    Arrivals,
    admit,
    charge_preparation,
    check_needs,
    grown,
    open_federation,
    run_context,
)
from headwater.training.remarks import cautions, lost_in_round
from headwater.training.result import Event, Progress, Run
from headwater.training.run_directory import RunDirectory
from headwater.training.run_lock import RunLock
from headwater.training.spending import Spending

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
    callbacks: Sequence[Callback] = (),
    arrivals: Arrivals | None = None,
) -> Run:
    """Run an experiment.

    Args:
        experiment: what `prepare` returned.
        out: directory for the run's files; an interrupted run there is resumed. None leaves nothing on disk.
        watch: called with every `Event` of the run.
        engine: an open engine; None opens the one that the configuration asks for.
        callbacks: called at the beginning, after each round and at the end.
        arrivals: clients that take part from a later round on; None for nobody.

    Raises:
        OutputError: `out` holds another run, or another process writes to it.
    """
    check_needs(experiment, engine)
    directory = RunDirectory(out, experiment.config) if out is not None else None
    locked = RunLock(out) if out is not None else nullcontext()
    opened = open_engine(experiment.config, [experiment]) if engine is None else nullcontext(engine)
    hooks = Hooks(callbacks, out)
    with locked, startup.frozen_objects(), opened as used:
        progress = Progress(watch, experiment.config.rounds)
        try:
            return _Loop(experiment, used, directory, progress, hooks, arrivals or Arrivals()).run()
        except BaseException as error:
            hooks.run_failed(error)
            raise


class _Loop:
    def __init__(
        self,
        experiment: Experiment,
        engine: Engine,
        directory: RunDirectory | None,
        progress: Progress,
        hooks: Hooks,
        arrivals: Arrivals,
    ) -> None:
        self.experiment, self.engine, self.directory, self.progress = experiment, engine, directory, progress
        self.config, self.hooks, self.arrivals = experiment.config, hooks, arrivals
        self.own_tests, self.partition = self.config.partition.local_test > 0, self.experiment.manifest()
        self.spending = Spending(experiment, not getattr(engine, "losing", False), getattr(engine, "secret", ""))
        self.remarks: tuple[str, ...] = ()  # about checkpoints
        self.keeper = Keeper(directory.checkpoints, engine, directory.sync) if directory else None

    def run(self) -> Run:
        if self.keeper is None:
            return self._run()
        with self.keeper:
            return self._run()

    def _run(self) -> Run:
        device = devices.find(self.config.engine.device, elsewhere=self.config.engine.name == "ray")
        self.context = run_context(self.experiment, device)
        self.engine.start(self.context)
        (saved, first), found = self._begin(), None
        submitted = self.fed.session.submitted
        self.engine.watch = (lambda done: self.progress.task(done, submitted)) if self.progress.watch else None
        ahead = self.config.engine.overlap and not (self.hooks.may_stop or self.spending.adapts)  # rounds left open
        self.progress.say("start", first - 1)
        for sentence in filter(None, (*self.remarks, *cautions(self.experiment, self.spending), numerics.too_late())):
            self.progress.say("warning", first - 1, text=sentence)
        self.hooks.run_begin(self.config)
        for number in range(first, self.spending.last + 1):
            if self.hooks.stopped:
                break
            self._open(number, saved)
            saved = self.open[-1].saved
            while len(self.open) > ahead:
                found = self._close()
        while self.open:
            found = self._close()
        if found is None:  # all rounds were done before and only the final files were missing, or a callback stopped
            found = self._measure(saved)
        run = self._finish(saved, found)
        self.progress.say("end", len(self.history))
        self.hooks.run_end(run)
        self.engine.watch = None
        return run

    def _begin(self) -> tuple[Saved, int]:
        self.fed = open_federation(self.experiment, self.engine, self.context)
        session = self.fed.session
        self.history: list[dict[str, Any]] = []
        self.spans: list[dict[str, Any]] = []  # only without a directory
        self.open: list[OpenRound] = []
        own = (self.config.method, self.config.model.name)
        last = checkpoint.load(self.directory.checkpoints, self.engine, own) if self.directory else None
        if self.directory:
            self.directory.check_split(self.partition["sha256"])
            self.directory.check_device(self.context.device.type, begun=last is not None)
            self.directory.write("partition.json", self.partition)
            self.history = self.directory.resume(last.round if last else -1)
        if last:
            self.remarks = last.skipped
            session.ledger, session.named = last.ledger, set(last.names)
            self.fed = grown(self.fed, joined_until(self.arrivals.joined, last.round))
            self.progress.began -= last.seconds  # the time of a resumed run includes its earlier parts
            return last.state, last.round + 1
        charge_preparation(self.experiment, self.fed)
        model = self.fed.run(initial, at=SERVER, arch=self.experiment.model.name)
        state = self.experiment.method.init(self.fed, model)
        saved = Saved(state, tests_for(self.fed, state, self.own_tests))
        self.fed.keep(saved)
        bad = [(done, node) for done in self._take_reports(0) for node, notes in done.notes.items() if BAD in notes]
        if bad:
            done, node = bad[0]
            raise Diverged(NonFiniteResult(self.context, done.phase, done.title, node, 0, len(bad) - 1).at_start)
        return saved, 1

    def _open(self, number: int, saved: Saved) -> None:
        """Submit a round and its evaluation. Does not wait, unless the method does."""
        saved = self._admit(number, saved)
        share, seed = self.config.partition.participation, self.config.seed
        self.fed.session.bound = self.spending.bound(self.history)
        fed = self.fed = self.fed.begin(number, participants(self.fed.tree, share, seed, number))
        state = fed.restore_lost(saved.state, self.experiment.after_round(fed, saved.state))
        saved = Saved(state, saved.tests)
        due = number % self.config.eval_every == 0 or number == self.spending.last
        # Accuracy by client tells about its labels. Where clients are separate parties, it costs an exchange with each.
        each = not self.spending.active and (number == self.spending.last or not fed.session.losing)
        self.open.append(OpenRound(fed, saved, self._ask(saved, each) if due else None))
        self._release()

    def _admit(self, number: int, saved: Saved) -> Saved:
        """Take in the clients that join with this round."""
        self.arrivals.before_round(number)
        fed, joined = self.fed, self.arrivals.joined
        self.fed, state, tests = admit(self.experiment, fed, saved.state, saved.tests, joined, number)
        if self.fed is not fed:
            self.fed.session.settle(0)
            self._take_reports(0)
        return Saved(state, tests)

    def _close(self) -> Scores | None:
        """Finish the oldest open round: its measurements, its row and its checkpoint."""
        this = self.open[0]
        fed, number = this.fed, this.fed.round
        fed.session.settle(number)
        found = read_evaluation(fed, this.asked, self.own_tests) if this.asked else None
        done = self._take_reports(number)
        row = row_of(fed, found, done) | self.spending.row(number, self.history, done)
        self.history.append(row)
        if self.directory and self.keeper:  # the row first, so that a checkpoint always has its rows
            self.directory.add_row(row)
            self.keeper.keep(number, this.saved, fed.session.ledger, time.time() - self.progress.began)
            if number == self.spending.last:
                self.keeper.write()
        if self.open[1:]:  # the state of the last round is needed for the export
            self.open.remove(this)
        self._release()
        if self.open[0] is this:
            self.open.clear()
        if found:
            self.progress.accuracy = row["accuracy"]
        for words in lost_in_round(self.context, row, done):
            self.progress.say("warning", number, text=words)
        if found and (words := guess_note(self.experiment, self.history, final=False)):
            self.progress.say("warning", number, text=words)
        self.progress.round_closed(number)
        self.hooks.round_end(row)
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
        self.fed = self.fed.begin(self.config.rounds + 1, self.fed.tree.holders)
        session = self.fed.session
        ledger, session.ledger = session.ledger, Ledger()  # this evaluation was charged before
        scores = read_evaluation(self.fed, self._ask(saved, not self.spending.active), self.own_tests)
        session.ledger = ledger
        return scores

    def _finish(self, saved: Saved, scores: Scores) -> Run:
        if self.hooks.stopped and self.history[-1]["accuracy"] is None:  # stopped between two evaluations
            self.history[-1] |= {"accuracy": scores.accuracy, "loss": scores.loss} | scores.further
        params = exported(self.fed, saved.state)
        beside = left_beside(self.context, self.experiment, self.fed, saved.state)
        frozen = frozen_of(self.context, params)
        tensors, about = tensors_of(params, frozen), describe_model(self.experiment, params)
        config, ledger, model = self.config, self.fed.session.ledger, self.experiment.model
        seconds = round(time.time() - self.progress.began, 3)
        path, used = (self.directory.path, self.directory.devices) if self.directory else (None, ())
        where = devices.about(self.context.device, self.context.precision, used)
        more = (seconds, where, self.arrivals.joined, self.hooks.stopped, frozen, self.spending)
        result = result_of(self.experiment, self.fed, params, beside, scores, self.history, *more)
        how = (config.partition.scheme, self.experiment.method.INFO, json.loads(about).get("preparation", {}))
        text = card.card(result, *how)
        if self.hooks.stopped and self.keeper:
            self.keeper.write()  # without a result, the same call carries on
        elif self.directory and self.directory.result is None:
            write_files(self.directory, tensors, about, beside, text, result)
        if self.directory:
            result = self.directory.result or result
        rest = (self.partition, config.to_toml(), path, text, about, self.spans, frozen, beside)
        return Run(result, self.history, ledger, params, model, self.context.models, *rest)
