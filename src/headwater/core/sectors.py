"""Assignment of clients to sectors: random, balanced by labels and size, in blocks, or given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headwater.errors import ConfigError, nearest

Counts = np.ndarray[Any, np.dtype[np.int64]]
WAYS = ("random", "balanced", "blocks")
REDRAWS = 1000
MOST_COUNTED = 10_000  # largest drawn population that can be balanced by its label counts
MOST_COMPARED = 20_000_000  # clients² · classes: takes a second or two; with more clients, exchanges gain little
PASSES = 30  # a few are enough, because every exchange lowers the same sum


def assign(how: str | Sequence[int], counts: Counts, sectors: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Sector of each client. Every sector gets at least one client, with data as long as there are enough of those.

    Args:
        how: "random", "balanced", "blocks", or one sector number per client.
        counts: label counts, shape (clients, classes).
        sectors: number of sectors.
        rng: random generator.
    """
    counts = np.asarray(counts)
    clients = len(counts)
    check(how, clients, sectors)
    if not isinstance(how, str):
        return tuple(int(sector) for sector in how)
    if how == "random":
        return _random(counts.sum(axis=1), sectors, rng)
    if how == "balanced":
        return _balanced(counts, sectors)
    return tuple((np.arange(clients, dtype=np.int64) * sectors // clients).tolist())


def check(how: str | Sequence[int], clients: int, sectors: int) -> None:
    """Refuse an impossible assignment.

    Raises:
        ConfigError: with what is possible instead.
    """
    if sectors < 1:
        raise ConfigError(f"partition.sectors must be at least 1, got {sectors}")
    if sectors > clients:
        raise ConfigError(
            f"partition.sectors is {sectors}, but there {'is' if clients == 1 else 'are'} only "
            f"{_many(clients, 'client')} and each sector needs one; "
            f"use at most {_many(clients, 'sector')} or more clients"
        )
    if not isinstance(how, str):
        _check_given(how, clients, sectors)
    elif how not in WAYS:
        raise ConfigError(
            f"partition.assign does not know {how!r}{nearest(how, WAYS)} "
            f"(accepted: {', '.join(WAYS)}, or a list with the sector of each client)"
        )


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _check_given(how: Sequence[int], clients: int, sectors: int) -> None:
    given = list(how)
    if len(given) != clients:
        raise ConfigError(
            f"partition.assign lists {len(given)} sectors for {clients} clients; give one for each client"
        )
    for client, sector in enumerate(given):
        if isinstance(sector, bool) or not isinstance(sector, (int, np.integer)) or not 0 <= sector < sectors:
            raise ConfigError(
                f"partition.assign puts client {client} in sector {sector!r}; "
                f"with partition.sectors = {sectors} use 0 to {sectors - 1}"
            )
    empty = sorted(set(range(sectors)) - set(given))
    if empty:
        raise ConfigError(
            f"partition.assign leaves sector {empty[0]} without clients; give it one or lower partition.sectors"
        )


def _random(sizes: Counts, sectors: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Uniform draw, repeated while a sector lacks a client (with data, if there are enough of those)."""
    clients = len(sizes)
    holders = np.flatnonzero(sizes > 0)
    needed = holders if len(holders) >= sectors else np.arange(clients)
    for _ in range(REDRAWS):
        drawn = rng.integers(sectors, size=clients)
        if np.bincount(drawn[needed], minlength=sectors).all():
            return tuple(drawn.tolist())
    # With about as many sectors as clients such a draw is rare: place one client in each sector first.
    drawn = rng.integers(sectors, size=clients)
    drawn[rng.permutation(needed)[:sectors]] = np.arange(sectors)
    return tuple(drawn.tolist())


def _balanced(counts: Counts, sectors: int) -> tuple[int, ...]:
    """Greedy assignment, then exchanges. Deterministic, in integers only, so the same on every platform."""
    counts = counts.astype(np.int64)
    chosen = _deal(counts, sectors)
    holders = np.flatnonzero(counts.sum(axis=1) > 0)
    if 1 < sectors < len(holders) and len(holders) ** 2 * counts.shape[1] <= MOST_COMPARED:
        chosen[holders] = _exchange(counts[holders], chosen[holders], sectors)
    return tuple(chosen.tolist())


def _deal(counts: Counts, sectors: int) -> Counts:
    """Largest clients first, each to the sector whose label counts come nearest to an equal share of the whole."""
    sizes = counts.sum(axis=1)
    order = sorted(range(len(counts)), key=lambda client: (-int(sizes[client]), client))
    gap = np.tile(-counts.sum(axis=0), (sectors, 1))  # excess of a sector over its share, times the number of sectors
    members = np.zeros(sectors, dtype=np.int64)
    chosen, holders = np.zeros(len(counts), dtype=np.int64), int(np.count_nonzero(sizes > 0))
    for position, client in enumerate(order):
        vacant = np.flatnonzero(members == 0)
        # Clients with data come first, so every sector must get one before the last of those is placed.
        holders_left = max(0, holders - position)
        left = holders_left if holders_left >= len(vacant) else len(order) - position
        must = len(vacant) > 0 and left <= len(vacant)
        open_to = vacant if must else np.arange(sectors)
        if sizes[client]:
            before = gap[open_to]
            change = ((before + sectors * counts[client]) ** 2).sum(axis=1) - (before**2).sum(axis=1)
        else:
            change = members[open_to]
        sector = int(open_to[int(np.argmin(change))])
        chosen[client] = sector
        gap[sector] += sectors * counts[client]
        members[sector] += 1
    return chosen


def _exchange(counts: Counts, chosen: Counts, sectors: int) -> Counts:
    """One client after another moves, or changes places with another, where that lowers the sectors' label distance
    from the whole most, until nothing does.

    Alone, this would gather nearly everybody in one sector, which is the whole: so no sector's size may come to lie
    further from the mean than the furthest does at the start, or than a twentieth.
    """
    chosen, whole = chosen.copy(), counts.sum(axis=0)
    total = int(whole.sum())
    sums = np.stack([counts[chosen == sector].sum(axis=0) for sector in range(sectors)])

    def apart(sums: Counts) -> Counts:
        """A sector's size times its distance, times twice the total."""
        distances: Counts = np.abs(sums * total - sums.sum(axis=-1, keepdims=True) * whole).sum(axis=-1)
        return distances

    def uneven(size: Counts) -> Counts:
        return np.abs(size * sectors - total)

    limit = max(int(uneven(sums.sum(axis=1)).max()), total // 20)
    for _ in range(PASSES):
        settled = True
        for client, own in enumerate(counts):
            here = int(chosen[client])
            others = np.flatnonzero(chosen != here)
            alone = len(counts) - len(others) == 1  # the last client with data stays in its sector
            places = np.flatnonzero(np.arange(sectors) != here) if not alone else np.empty(0, np.int64)
            there = np.concatenate([places, chosen[others]])
            gain = np.concatenate([np.zeros((len(places), len(whole)), np.int64), counts[others]]) - own
            change = apart(sums[here] + gain) + apart(sums[there] - gain) - apart(sums[here]) - apart(sums)[there]
            size, grown = sums.sum(axis=1), gain.sum(axis=1)
            far = np.maximum(uneven(size[here] + grown), uneven(size[there] - grown))
            change = np.where(far <= limit, change, 0)
            if not len(change) or change.min() >= 0:
                continue
            best = int(np.argmin(change))
            sums[here] += gain[best]
            sums[there[best]] -= gain[best]
            if best >= len(places):
                chosen[others[best - len(places)]] = here
            chosen[client] = there[best]
            settled = False
        if settled:
            break
    return chosen
