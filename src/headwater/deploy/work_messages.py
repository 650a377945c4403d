"""How a client and a sector's host answer a `work` message: check it, carry out the steps, keep the values, reply."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from headwater.core import serialization
from headwater.data.base import Examples
from headwater.deploy import steps as step_format
from headwater.deploy.dispatch import Dispatcher
from headwater.deploy.party_run import RELAY, PartyRun
from headwater.deploy.payload import Refused, pack
from headwater.deploy.permissions import Approval
from headwater.deploy.quoting import public
from headwater.deploy.steps import Choice, Move, Step, StepResults
from headwater.deploy.transport import Message
from headwater.engines.base import Done
from headwater.engines.execution import execute
from headwater.engines.jobs import LOST, Job
from headwater.errors import TaskError, UserError, said


class Worker(ABC):
    """Answers the `work` messages of one run. `ClientWorker` and `HostWorker` differ in how they carry out steps.

    Args:
        party: this party in this run.
    """

    tier: str  # of the edge to the party above

    def __init__(self, party: PartyRun) -> None:
        self._party, self._store = party, party.store

    def answer(self, message: Message) -> Message:
        """The reply, or a reply that says under `failed` why there is none. A refused message changes nothing."""
        party = self._party
        try:
            party.follow(message.head)
            values = party.reader.unpack(message)
            steps = [step_format.decode(row, party.trusted) for row in message.head.get("steps", ())]
            round, keep = _round_and_keep(message.head)
            approval = party.permissions.approve(message, round, steps, values, self._store.names)
            for name in approval.ours:
                del values[name]
            party.permissions.begin(approval, round, (name for names in keep.values() for name in names))
            return self._work(message.head, values, steps, approval)
        except Refused as error:
            return self._refuse(message.head, error)
        except (TaskError, UserError) as error:
            party.log(str(error))
            return Message({"failed": f"failed: {public(error)}"})
        except Exception as error:  # the next message may be fine
            party.log(f"could not answer a message: {said(error)}")
            return Message({"failed": f"failed: {public(error)}"})

    def _refuse(self, head: Mapping[str, Any], error: Refused) -> Message:
        """Log and count a refusal with who asked."""
        party, round = self._party, head.get("round")
        by = party.permissions.asked_by
        party.log(f"refused a message of {by}: {error}")
        party.refused(round if type(round) is int else -1, by, str(error))
        return Message({"failed": f"refused it: {error}"})

    @abstractmethod
    def _work(self, head: Mapping[str, Any], values: dict[str, Any], steps: list[Step], approval: Approval) -> Message:
        """Carry out steps that were approved, and return what they gave."""

    def _record_sent(self, round: int, move: Move, value: Any) -> None:
        tier = self.tier if self.tier in move.tiers else RELAY
        self._party.record_sent(round, "above", move.name, value, tier, "up")


def _round_and_keep(head: Mapping[str, Any]) -> tuple[int, dict[str, list[str]]]:
    """The round, and by home the names of the values to keep."""
    round, keep = head.get("round"), head.get("keep")
    if type(round) is int and isinstance(keep, dict):
        lists = list(keep.values())
        if all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lists):
            return round, keep
    raise Refused("it does not say which round it is of, and what is to be kept")


class ClientWorker(Worker):
    """A client carries out all steps itself, and never sends rows of its data."""

    tier = "sector_client"

    def _work(self, head: Mapping[str, Any], values: dict[str, Any], steps: list[Step], approval: Approval) -> Message:
        party, store = self._party, self._store
        round, keep = _round_and_keep(head)
        for step in steps:
            arrives = isinstance(step, Move) and step.name in values
            if not arrives and (step.ref.home if isinstance(step, Move) else step.home) != party.name:
                raise Refused(f"{step.name!r} is not {party.name}'s to do")
            if isinstance(step, Job) and step.task.shows_rows:  # type: ignore[attr-defined]
                raise Refused(f"{step.title} would give {party.name}'s rows away")
        store.keep(keep.get(party.name, ()))
        for name, value in values.items():
            store[name] = value
        results, replied = StepResults(), {}
        computed = {step.name for step in steps}
        needed = {ref.name for step in steps if step.name not in values for ref in step.refs()}
        if absent := sorted(name for name in needed - computed if name not in store):
            results.events.append(
                f"round {round}: {party.name} does not have {absent[0]}, which it should: what needs it counts as lost"
            )
            party.log(results.events[0])
        for step in steps:
            if isinstance(step, Job):
                value, done = self._execute(step, approval.releases.get(step.name))
                results.done.append(done)
                store[step.name] = value
            elif isinstance(step, Choice):
                store[step.name] = value = party.choose(step)
            elif step.name in values:
                value = values[step.name]
            else:
                replied[step.name] = value = party.fetch(step.ref)
                if _holds_examples(value):
                    raise Refused(f"{step.ref.name!r} is examples, which no client gives away")
                self._record_sent(round, step, value)
            results.infos[step.name] = None if value is LOST else serialization.info(value)
        store.sync()
        party.permissions.finish()
        return pack(results.encode(), replied)

    def _execute(self, job: Job, release: str | None) -> tuple[Any, Done]:
        """The result of a job and its report.

        Args:
            release: name under which a result with noise is kept. It is drawn once: a repeated round gets it again,
                since the mean of several draws would show what the noise hides.
        """
        party, record = self._party, self._party.permissions.record
        if release is not None and (value := record.released(release)) is not None:
            now = time.time()
            return value, Done(job.name, job.title, job.phase, {job.node: {}}, job.round, now, now)
        value, done = execute(job, party.context, party.fetch, lambda ref: None)
        if release is not None and value is not LOST:
            record.release(release, value)
        return value, done


class HostWorker(Worker):
    """A sector's host carries out some steps itself and has its clients do the others."""

    tier = "server_sector"

    def __init__(self, party: PartyRun, dispatcher: Dispatcher) -> None:
        super().__init__(party)
        self._dispatcher = dispatcher

    def _work(self, head: Mapping[str, Any], values: dict[str, Any], steps: list[Step], approval: Approval) -> Message:
        store, is_above = self._store, self._dispatcher.is_above
        round, keep = _round_and_keep(head)
        for step in steps:
            if not isinstance(step, Move) and is_above(step.home):
                raise Refused(f"{step.name!r} is not for {self._party.name} or its clients to do")
        store.keep(name for names in keep.values() for name in names)
        for name, value in values.items():
            store[name] = value
        attempt = str(head.get("attempt", ""))
        results = self._dispatcher.run(steps, round, keep, float(head["deadline"]), values, attempt)
        moves = {step.name: step for step in steps if isinstance(step, Move)}
        replied = {name: store[name] for name, move in moves.items() if name not in values and is_above(move.home)}
        for name, value in replied.items():
            self._record_sent(round, moves[name], value)
            store.discard(name)  # it is at the server now
        store.sync()
        self._party.permissions.finish()
        return pack(results.encode(), replied)


def _holds_examples(value: Any) -> bool:
    if isinstance(value, dict | tuple | list):
        return any(map(_holds_examples, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Examples)
