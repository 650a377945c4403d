"""An engine that remembers who held which models in some rounds of a run.

It executes a run as `inline` does, bit for bit, and looks on: at every move (who receives a value, and which host
passes it on) and at every job of a server, a host or a leader (what it computes of what it received). So it knows what
a party saw for any method, and whatever `privacy.secure` or noise makes of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from headwater.core.federation import Federation
from headwater.core.ledger import UP, Row
from headwater.core.params import Params
from headwater.core.tree import ROOT
from headwater.engines.inline import Inline, _either
from headwater.engines.job_groups import JobGroup
from headwater.engines.jobs import EVERY, LOST, Job, Ref, field_names
from headwater.tasks.task import RunContext

Key = tuple[str, str]  # first name of a value, and the member of a group or ""
Part = tuple[Any, ...]
RECEIVED, PASSED, COMPUTED, SENT = "received", "passed on", "computed", "sent"


class Sighting(NamedTuple):
    """A party held a value.

    Args:
        role: of the party: server, sector, leader or client.
        who: its node.
        how: it received the value, passed it on, computed it from others, or had it and sent it.
        purpose: of the move, as in the ledger; "train" for what was computed.
        key: the value.
        part: of the value, that the party held.
        round: when.
    """

    role: str
    who: str
    how: str
    purpose: str
    key: Key
    part: Part = ()
    round: int = 0


@dataclass(frozen=True)
class ModelOrigin:
    """Where a value comes from.

    Args:
        clients: whose rows were used last on the way to it: a client's own result is that client's.
        starts: values that these clients may have trained from.
    """

    clients: frozenset[str] = frozenset()
    starts: frozenset[tuple[Key, Part]] = frozenset()


class Watching(Inline):
    """The engine `inline`, which remembers who held which models.

    Args:
        rounds: the rounds that are recorded.
        clients: whose own models are remembered; sums over others are remembered too.
        threads: as for `Inline`.

    Attributes:
        sightings: who held what, in the order of the run; a value that a party held twice is there once.
        models: value → its models, by their place in it.
        origins: value → where it comes from.
        whose: hash of a model → where it comes from; of equal models, the one of the fewest clients. Some tasks pass
            on single models unchanged.
    """

    def __init__(self, rounds: Iterable[int], clients: Iterable[str], threads: int = 1) -> None:
        super().__init__(threads)
        self._rounds, self.clients = frozenset(rounds), frozenset(clients)

    def start(self, context: RunContext) -> None:
        super().start(context)
        self._sighted: dict[tuple[str, str, Key, Part, int], Sighting] = {}
        self._last = (0, "train")  # round and purpose of the last move
        self._groups_of: dict[str, tuple[str, ...]] = {}
        self._held: set[str] = set()  # first names of values that are remembered, once they are computed
        self.models: dict[Key, dict[Part, Params]] = {}
        self.origins: dict[Key, ModelOrigin] = {}
        self.whose: dict[str, ModelOrigin] = {}

    @property
    def sightings(self) -> tuple[Sighting, ...]:
        return tuple(self._sighted.values())

    @property
    def context(self) -> RunContext:
        """That of the run."""
        return self._context

    # -- what happens

    def _accept(self, job: Job | JobGroup) -> None:
        super()._accept(job)
        jobs = job.jobs if isinstance(job, JobGroup) else (job,)
        if isinstance(job, JobGroup):
            self._groups_of[job.name] = job.nodes
        for one in jobs:
            key = (one.name, one.node if isinstance(job, JobGroup) else "")
            self.origins[key] = self._origin_of(one)
            if one.round in self._rounds and (role := self._role(one)):
                purpose = self._last[1] if self._last[0] == one.round else "train"
                self._see(Sighting(role, one.home, COMPUTED, purpose, key, (), one.round))
            elif one.round in self._rounds:
                self._held.add(one.name)  # somebody may be asked for what a client trained from

    def _role(self, job: Job) -> str:
        """The role in which a party executes a job; empty for a client that works for itself."""
        if job.home == ROOT:
            return "server"
        if job.home in self._context.rows:
            return "" if job.node == job.home else "leader"
        return "sector"

    def _origin_of(self, job: Job) -> ModelOrigin:
        at_client = job.home in self._context.rows
        if job.task is _either:
            return self._origin_at(job.inputs["new"])
        clients, starts = set[str](), set[tuple[Key, Part]]()
        update = getattr(job.task, "update", "") if at_client and job.node == job.home else ""
        given = [job.inputs[update]] if isinstance(job.inputs.get(update), Ref) else job.refs()
        for ref in given:
            held = self._origin(ref)
            before = self._origin_at(ref)
            clients |= before.clients
            own = before.clients == {job.home} and not update
            if not at_client or job.node != job.home or own:
                starts |= before.starts
            else:
                starts.add((_key(held), held.part))
        if at_client:
            clients = {job.home} if job.node == job.home else clients | {job.home}
        return ModelOrigin(frozenset(clients), frozenset(starts))

    def _origin_at(self, ref: Ref) -> ModelOrigin:
        return self.origins.get(_key(self._origin(ref)), ModelOrigin())

    def witness(self, fed: Federation, row: Row, ref: Ref, home: str) -> None:
        """Note who holds a value after a move. Called by the federation for every move."""
        if row.path.round not in self._rounds:
            return
        self._last = (row.path.round, row.path.purpose)
        origin, (sender, role) = self._origin(ref), row.path.roles
        for at, lower in enumerate(row.lower):
            one = replace(origin, member=row.members[at]) if row.members else origin
            what = (row.path.purpose, _key(one), one.part, row.path.round)
            there = home if row.path.direction == UP else fed.home(lower)
            self._see(Sighting(role, there, RECEIVED, *what))
            self._see(Sighting(sender, lower if ref.member == EVERY else ref.home, SENT, *what))
            if "sector" not in row.path.roles:
                self._see(Sighting("sector", fed.tree.sector_of.get(lower, lower), PASSED, *what))

    def _see(self, sighting: Sighting) -> None:
        which = (sighting.role, sighting.who, sighting.key, sighting.part, sighting.round)
        self._sighted.setdefault(which, sighting)
        self._held.add(sighting.key[0])

    # -- what is kept

    def drop(self, names: Iterable[str]) -> None:
        names = list(names)
        for name in names:
            self._keep(self._root(name))
        super().drop(names)

    def finished(self) -> None:
        """Keep what is left, after the run and before `close`."""
        for name in list(self._held):
            if name in self._values or name in self._jobs:
                self._keep(name)

    def _keep(self, name: str) -> None:
        if name not in self._held:
            return
        self._held.discard(name)
        members = self._groups_of.get(name, ("",))
        found = self._fetch(Ref(name, "", (), EVERY if name in self._groups_of else ""))
        for member in members:
            value = found.get(member, LOST) if member else found
            origin = self.origins.get((name, member), ModelOrigin())
            inside = dict(_models_in(value))
            for model in inside.values():
                self.whose[name_of(model)] = min(origin, self.whose.get(name_of(model), origin), key=_width)
            if len(origin.clients) != 1 or origin.clients <= self.clients:
                self.models[name, member] = {part: _copy(model) for part, model in inside.items()}

    def models_of(self, key: Key, part: Part = ()) -> dict[Part, Params]:
        """The models in a part of a value, by their place in that part."""
        kept = self.models.get(key, {})
        return {place[len(part) :]: model for place, model in kept.items() if place[: len(part)] == part}


def name_of(model: Params) -> str:
    """A hash of a model's parameters."""
    content = model.vector.detach().cpu().contiguous().numpy().tobytes()
    return hashlib.sha256(model.layout.arch.encode() + content).hexdigest()


def _width(origin: ModelOrigin) -> int:
    return len(origin.clients)


def _key(ref: Ref) -> Key:
    return ref.name, ref.member


def _copy(model: Params) -> Params:
    return replace(model, vector=model.vector.detach().cpu().clone(), counters=model.counters.detach().cpu().clone())


def _models_in(value: Any, place: Part = ()) -> Iterator[tuple[Part, Params]]:
    if isinstance(value, Params):
        yield place, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _models_in(item, (*place, name))
    elif isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            yield from _models_in(item, (*place, at))
    else:
        for name in field_names(type(value)):
            yield from _models_in(getattr(value, name), (*place, name))
