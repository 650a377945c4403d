"""The models that each kind of party held in the last round, with the models that their training began with."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from headwater.audit.watching import SENT, Key, ModelOrigin, Part, Sighting, Watching, name_of
from headwater.core.params import Params

SUBJECTS = ("client", "sector", "several")  # whose model: of one client, of one sector's clients, of more


@dataclass(frozen=True, eq=False)
class SeenModel:
    """A model that a party held.

    Args:
        role: of the party: server, sector, leader or client.
        who: the party.
        how: it received the model, passed it on, or computed it from what it received.
        purpose: what it was sent for, as in the ledger.
        subject: one of `SUBJECTS`.
        clients: whose rows are in it, without the party's own.
        part: its place in what was sent; empty if nothing else was in it.
        model: the model.
        start: the model that these clients trained from, if the party held it too.
        name: a hash of its parameters, the same whoever held them.
    """

    role: str
    who: str
    how: str
    purpose: str
    subject: str
    clients: tuple[str, ...]
    part: Part
    model: Params
    start: Params | None
    name: str


def seen_models(engine: Watching, sector_of: Mapping[str, str], round: int, archs: Collection[str]) -> list[SeenModel]:
    """All models trained on rows of others that a party received or computed in a round, by party.

    Of several parties of a kind that held the same sum or mean, the first is listed.

    Args:
        engine: the engine that recorded this round and the one before, whose values a party still has.
        sector_of: client → its sector.
        round: the round.
        archs: architectures of clients; models of others are left out.
    """
    by_party: dict[tuple[str, str], list[Sighting]] = {}
    for sighting in engine.sightings:
        by_party.setdefault((sighting.role, sighting.who), []).append(sighting)
    models: dict[tuple[str, ...], SeenModel] = {}
    for sightings in by_party.values():
        for seen in _of_party(engine, sightings, sector_of, round, archs):
            whose = seen.clients if seen.subject == "client" else ()
            models.setdefault((seen.role, seen.name, *whose), seen)
    return list(models.values())


def _of_party(
    engine: Watching, sightings: Sequence[Sighting], sector_of: Mapping[str, str], round: int, archs: Collection[str]
) -> Iterator[SeenModel]:
    known = [model for each in sightings for model in engine.models_of(each.key, each.part).values()]
    for role, who, how, purpose, key, part, when in sightings:
        if when != round or how == SENT:  # what it sent may be older
            continue
        for place, model in engine.models_of(key, part).items():
            origin = engine.whose.get(name := name_of(model), ModelOrigin())
            others = tuple(sorted(origin.clients - {who}))
            if not others or model.layout.arch not in archs:
                continue
            if len(origin.clients) == 1 and not origin.clients <= engine.clients:
                continue  # passed on by a task, from a client whose models are not attacked
            sectors = {sector_of[client] for client in origin.clients}
            subject = "client" if len(origin.clients) == 1 else "sector" if len(sectors) == 1 else "several"
            start = _start(engine, origin, model, known)
            yield SeenModel(role, who, how, purpose, subject, others, (*part, *place), model, start, name)


def _start(engine: Watching, origin: ModelOrigin, model: Params, known: Sequence[Params]) -> Params | None:
    """The model that training began with: the nearest before it that the party held as well."""
    tried: set[Key] = set()
    due = [origin]
    while due:
        for before, part in sorted(due.pop(0).starts, key=str):
            for each in engine.models_of(before, part).values():
                if each.layout.trainable == model.layout.trainable and any(_same(each, other) for other in known):
                    return each
            if before not in tried and before in engine.origins:
                tried.add(before)
                due.append(engine.origins[before])
    return None


def _same(one: Params, other: Params) -> bool:
    return one.vector.shape == other.vector.shape and torch.equal(one.vector, other.vector)
