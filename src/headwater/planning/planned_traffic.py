"""What a run will move, from the ledger of its rehearsal."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from headwater.core.ledger import DOWN, TIERS, UP, Ledger
from headwater.core.links import Links

Tiers = dict[str, dict[str, int]]  # tier → bytes, models and round trips, as in the ledger


@dataclass(frozen=True)
class PlannedTraffic:
    """What a run will move.

    Args:
        rounds: the rounds that were rehearsed.
        wanted: how many rounds the run has.
        setup: what is moved before the first round.
        waits: by rehearsed round and tier, the round trips that all wait for.
        exact: whether the numbers are exact: no simulated faults, and no estimates.
    """

    rounds: tuple[Tiers, ...]
    wanted: int
    setup: Tiers
    waits: tuple[dict[str, int], ...]
    exact: bool

    @cached_property
    def total(self) -> Tiers:
        """The sum over all rounds. A round that was not rehearsed counts as the mean of rehearsed rounds from 2 on."""
        rounds, left = self.rounds, self.wanted - len(self.rounds)
        total = {tier: {key: sum(each[tier][key] for each in rounds) for key in rounds[0][tier]} for tier in TIERS}
        for tier, counts in total.items() if left else ():
            for key, count in counts.items():
                counts[key] += round((count - rounds[0][tier][key]) * Fraction(left, len(rounds) - 1))
        return total

    def per_round(self) -> dict[str, dict[str, list[int]]]:
        """Minimum and maximum bytes over the rounds, by tier and direction."""
        sizes = {t: {d: [each[t][f"{d}_bytes"] for each in self.rounds] for d in (UP, DOWN)} for t in TIERS}
        return {t: {d: [min(each), max(each)] for d, each in ways.items()} for t, ways in sizes.items()}

    def transfer(self, links: Links, sectors: int) -> dict[str, float]:
        """Simulated seconds of sending: the mean of a round, and all rounds.

        Args:
            links: speeds. All traffic of the server shares its link; each sector has its own link to its clients.
            sectors: how many there are.
        """
        seconds = 0.0
        for tier, many in (("server_sector", 1), ("sector_client", max(1, sectors))):
            sent = sum(self.total[tier][f"{d}_bytes"] for d in (UP, DOWN)) / self.wanted / many
            seconds += links.seconds(tier, sent, sum(each[tier] for each in self.waits) / len(self.waits))
        return {"a_round": seconds, "total": seconds * self.wanted}

    def to_dict(self) -> dict[str, Any]:
        """Return the same keys as `ledger` in result.json, with minimum and maximum over rounds."""
        return self.total | {"setup": self.setup, "a_round": self.per_round(), "exact": self.exact}


def so_far(ledger: Ledger) -> Tiers:
    """Models and round trips of training until now, which a ledger does not keep by round."""
    return {
        tier: {f"{d}_models": ledger.models["train", tier, d] for d in (UP, DOWN)}
        | {"round_trips": ledger.round_trips(tier)}
        for tier in TIERS
    }


def of_round(ledger: Ledger, number: int, before: Tiers) -> Tiers:
    """What one round moved, given `so_far` before it was settled."""
    return {
        tier: {f"{d}_bytes": ledger.bytes(tier, d, round=number) for d in (UP, DOWN)}
        | {key: count - before[tier][key] for key, count in counts.items()}
        for tier, counts in so_far(ledger).items()
    }
