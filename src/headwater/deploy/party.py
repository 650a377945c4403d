"""What a client and a sector's host do with a message: check it, do the steps, keep the values, answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headwater.core import records, serialization
from headwater.data.base import Examples
from headwater.deploy import program
from headwater.deploy.dispatch import RELAY, Dispatcher, Party
from headwater.deploy.message import Message
from headwater.deploy.outcome import Outcome
from headwater.deploy.program import Choice, Move, Step
from headwater.deploy.wire import Refused, pack
from headwater.engines.base import LOST, Job, Ref, pick
from headwater.engines.execution import execute
from headwater.errors import TaskError, UserError, said

UP = "up"


def answered(party: Party, message: Message, work: Callable[[Message, dict[str, Any], list[Step]], Message]) -> Message:
    """The answer to a message, or the sentence that says why there is none. Nothing changes unless all of it is fine.
    `work` is given the values and the steps."""
    try:
        for key, wanted in party.stamp.items():
            if message.head.get(key) != wanted:
                raise Refused(f"this message is of another {key} than {party.name}'s own")
        values = party.customs.unpack(message)
        steps = [program.read(row, party.trusted) for row in message.head.get("steps", ())]
        return work(message, values, steps)
    except Refused as error:
        party.say(f"refused a message: {error}")
        return Message({"failed": f"refused it: {error}"})
    except (TaskError, UserError) as error:
        party.say(str(error))
        return Message({"failed": f"failed: {error}"})
    except Exception as error:  # whatever it was, the next message may be fine
        party.say(f"could not answer a message: {said(error)}")
        return Message({"failed": f"failed: {said(error)}"})


def _order(head: dict[str, Any]) -> tuple[int, dict[str, list[str]]]:
    """What a message says beside its steps: the round, and by home what is to be kept."""
    round, keep = head.get("round"), head.get("keep")
    if type(round) is int and isinstance(keep, dict):
        lists = list(keep.values())
        if all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lists):
            return round, keep
    raise Refused("it does not say which round it is of, and what is to be kept")


class Client:
    """A client: all steps are its own."""

    def __init__(self, party: Party) -> None:
        self._party, self._store = party, party.store

    def answer(self, message: Message) -> Message:
        return answered(self._party, message, self._work)

    def _work(self, message: Message, values: dict[str, Any], steps: list[Step]) -> Message:
        party, store = self._party, self._store
        round, keep = _order(message.head)
        for step in steps:
            arrives = isinstance(step, Move) and step.name in values
            if not arrives and (step.ref.home if isinstance(step, Move) else step.home) != party.name:
                raise Refused(f"{step.name!r} is not {party.name}'s to do")
            if isinstance(step, Job) and records.address(step.task) in program.SHOWS_ROWS:
                raise Refused(f"{step.title} would give {party.name}'s rows away")
        store.keep(keep.get(party.name, ()))
        for name, value in values.items():
            store[name] = value
        out, sent = Outcome(), {}
        made = {step.name for step in steps}
        taken = {ref.name for step in steps if step.name not in values for ref in step.refs()}
        if absent := sorted(name for name in taken - made if name not in store):
            out.events.append(
                f"round {round}: {party.name} does not have {absent[0]}, which it should: what needs it counts as lost"
            )
            party.say(out.events[0])
        for step in steps:
            if isinstance(step, Job):
                value, done = execute(step, party.context, self._fetch, lambda ref: None)
                out.done.append(done)
                store[step.name] = value
            elif isinstance(step, Choice):
                new = self._fetch(step.new)
                value = self._fetch(step.old) if new is LOST else new
                store[step.name] = value
            elif step.name in values:
                value = values[step.name]
            else:
                sent[step.name] = value = self._fetch(step.ref)
                if _shows_rows(value):
                    raise Refused(f"{step.ref.name!r} is examples, which no client gives away")
                charge(party, round, step, value, "sector_client")
            out.infos[step.name] = None if value is LOST else serialization.info(value)
        store.sync()
        return pack(out.write(), sent)

    def _fetch(self, ref: Ref) -> Any:
        return pick(self._store[ref.name], ref)


class Host:
    """A sector's host: some steps are its own, most its clients'."""

    def __init__(self, party: Party, dispatcher: Dispatcher) -> None:
        self._party, self._store, self._dispatcher = party, party.store, dispatcher

    def answer(self, message: Message) -> Message:
        return answered(self._party, message, self._work)

    def _work(self, message: Message, values: dict[str, Any], steps: list[Step]) -> Message:
        head, store = message.head, self._store
        round, keep = _order(head)
        for step in steps:
            if not isinstance(step, Move) and self._dispatcher.is_above(step.home):
                raise Refused(f"{step.name!r} is not for {self._party.name} or its clients to do")
        store.keep(name for names in keep.values() for name in names)
        for name, value in values.items():
            store[name] = value
        attempt = str(head.get("attempt", ""))
        out = self._dispatcher.run(steps, round, keep, float(head["deadline"]), values, attempt)
        sent = {step.name: store[step.name] for step in steps if isinstance(step, Move) and self._leaves(step, values)}
        moves = {step.name: step for step in steps if isinstance(step, Move)}
        for name, value in sent.items():
            charge(self._party, round, moves[name], value, "server_sector")
        for name in sent:  # the server has it now
            store.discard(name)
        store.sync()
        return pack(out.write(), sent)

    def _leaves(self, step: Move, values: dict[str, Any]) -> bool:
        return step.name not in values and self._dispatcher.is_above(step.home)


def _shows_rows(value: Any) -> bool:
    if isinstance(value, dict | tuple | list):
        return any(map(_shows_rows, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Examples)


def charge(party: Party, round: int, step: Move, value: Any, tier: str) -> None:
    """Write down what goes up."""
    if value is not LOST:
        size = serialization.info(value)
        charged = tier if tier in step.tiers else RELAY
        party.meter.add(round, "above", size.kind, charged, UP, size.bytes, step.name)
