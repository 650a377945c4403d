"""Carries out the steps of this party itself, as soon as their inputs are here."""

from __future__ import annotations

from typing import Any

from headwater.core import serialization
from headwater.deploy.party_run import DamagedStore, PartyRun, ValueStore
from headwater.deploy.placement import HERE, Placement
from headwater.deploy.quoting import public
from headwater.deploy.steps import Choice, Step, StepResults
from headwater.engines.execution import execute
from headwater.engines.jobs import LOST, Job, Ref
from headwater.errors import TaskError, UserError


class OwnSteps:
    """The part of `Dispatcher` that runs this party's own steps; it sends nothing to other parties."""

    _party: PartyRun
    _store: ValueStore
    _plan: Placement
    _results: StepResults
    _round: int
    _waiting: dict[str, Step]  # steps without a result yet, by name
    _arrived: set[str]  # names of values that came with the request

    def _run_here(self) -> bool:
        """Run every step of this party whose inputs are here, in order. Returns whether there was any."""
        progress = False
        for name, step in list(self._waiting.items()):
            if self._plan.runs_at[name] != HERE or name in self._plan.from_below:
                continue
            if name not in self._arrived and not all(map(self._is_here, step.refs())):
                continue
            if isinstance(step, Job):
                self._settle(name, self._run_job(step))
            elif isinstance(step, Choice):
                self._settle(name, self._party.choose(step))
            elif name in self._arrived or step.ref.part:
                self._settle(name, self._store[name] if name in self._arrived else self._party.fetch(step.ref))
            else:
                self._store.link(name, step.ref.name)
                self._settle(name, self._store[name])
            progress = True
        return progress

    def _run_job(self, job: Job) -> Any:
        """The result of a job. A failure over values of other parties makes the round void; it does not end the run."""
        try:
            value, done = execute(job, self._party.context, self._party.fetch, lambda ref: None)
        except TaskError as error:
            if isinstance(error, UserError | DamagedStore) or not self._plan.from_below:
                raise
            self._results.void = True
            lost = "its result counts as lost"
            self._log(f"round {self._round}: {error}; {lost}", f"round {self._round}: {public(error)}; {lost}")
            return LOST
        self._results.done.append(done)
        return value

    def _is_here(self, ref: Ref) -> bool:
        return ref.name not in self._waiting and (ref.name in self._store or self._plan.party_of(ref) == HERE)

    def _settle(self, name: str, value: Any) -> None:
        """Record the value of a step, which is here or lost."""
        if value is LOST or name not in self._store:
            self._store[name] = value
        self._results.infos[name] = None if value is LOST else serialization.info(value)
        self._waiting.pop(name, None)

    def _log(self, sentence: str, reported: str = "") -> None:
        """Log a sentence. The party above gets the same sentence, or `reported` in its place."""
        self._party.log(sentence)
        self._results.events.append(reported or sentence)
