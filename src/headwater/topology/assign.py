"""Clients to sectors: at random, balanced by labels and size, in blocks, or as given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headwater.errors import ConfigError, nearest

Counts = np.ndarray[Any, np.dtype[np.int64]]
WAYS = ("random", "balanced", "blocks")
REDRAWS = 1000
MOST_COUNTED = 10_000  # clients of a drawn population that can be balanced by what they hold


def assign(how: str | Sequence[int], counts: Counts, sectors: int, rng: np.random.Generator) -> tuple[int, ...]:
    """The sector of each client. `counts` is (clients, classes); every sector gets at least one client, and one that
    holds data as long as there are enough of those."""
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
    """Refuse what cannot be done, before anybody is put anywhere."""
    if sectors < 1:
        raise ConfigError(f"partition.sectors must be at least 1, got {sectors}")
    if sectors > clients:
        raise ConfigError(
            f"partition.sectors is {sectors}, but there are only {clients} clients and each sector needs one; "
            f"use at most {clients} sectors or more clients"
        )
    if not isinstance(how, str):
        _check_given(how, clients, sectors)
    elif how not in WAYS:
        raise ConfigError(
            f"partition.assign does not know {how!r}{nearest(how, WAYS)} "
            f"(accepted: {', '.join(WAYS)}, or a list with the sector of each client)"
        )


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
    """Uniform for each client, drawn again while a sector lacks a client (with data, if there are enough of those)."""
    clients = len(sizes)
    holders = np.flatnonzero(sizes > 0)
    needed = holders if len(holders) >= sectors else np.arange(clients)
    for _ in range(REDRAWS):
        drawn = rng.integers(sectors, size=clients)
        if np.bincount(drawn[needed], minlength=sectors).all():
            return tuple(drawn.tolist())
    # With about as many sectors as clients a lucky draw hardly ever comes: seat one client in each first.
    drawn = rng.integers(sectors, size=clients)
    drawn[rng.permutation(needed)[:sectors]] = np.arange(sectors)
    return tuple(drawn.tolist())


def _balanced(counts: Counts, sectors: int) -> tuple[int, ...]:
    """Large clients first, each to the sector whose label counts it brings nearest to an equal share of the whole."""
    sizes = counts.sum(axis=1)
    order = sorted(range(len(counts)), key=lambda client: (-int(sizes[client]), client))
    share = counts.sum(axis=0) / sectors
    held = np.zeros((sectors, counts.shape[1]))
    members = np.zeros(sectors, dtype=np.int64)
    chosen, holders = [0] * len(counts), int(np.count_nonzero(sizes > 0))
    for position, client in enumerate(order):
        vacant = np.flatnonzero(members == 0)
        # Data-holding clients come first, so sectors must be filled before the last of those is placed.
        holders_left = max(0, holders - position)
        left = holders_left if holders_left >= len(vacant) else len(order) - position
        must = len(vacant) > 0 and left <= len(vacant)
        open_to = vacant if must else np.arange(sectors)
        if sizes[client]:
            gap = held[open_to] - share
            change = ((gap + counts[client]) ** 2).sum(axis=1) - (gap**2).sum(axis=1)
        else:
            change = members[open_to].astype(float)
        sector = int(open_to[int(np.argmin(change))])
        chosen[client] = sector
        held[sector] += counts[client]
        members[sector] += 1
    return tuple(chosen)
