"""Sections of what is simulated (speeds of links, faults, attacks), and of fusion that withstands attacks."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt

from headwater.config.fields import Section, Share
from headwater.core.links import Links
from headwater.specs import AttackKind, NotNegative, Positive, RobustRule


class RobustConfig(Section):
    """Fusion that a minority of wrong members cannot steer, of models in averages and of teachers in distillation.

    Below three members, the weighted mean is used: among two, no rule can tell which one is wrong.

    Args:
        sector: rule at sectors and their leaders.
        server: rule at the server.
        share: share of members that are assumed to be wrong, for "trimmed-mean", "krum" and "multi-krum".
    """

    sector: RobustRule = "none"
    server: RobustRule = "none"
    share: Annotated[float, Gt(0), Lt(0.5)] = 0.2


class AttackConfig(Section):
    """A simulated attack, to see what a defence is worth. A deployed federation refuses it.

    Args:
        kind: "label-flip": attackers train on mirrored labels. "sign-flip": they send the opposite of their update,
            "scale" a multiple of it, "gaussian" noise of its length. "backdoor": they train on rows with a patch and
            label 0, and send a multiple of their update. "lying-leader", "lying-host": leaders send the opposite of
            what distillation changed, or hosts a negative mean.
        share: share of clients that attack; of sectors, for the last two.
        strength: multiple of the update.
        poisoned: share of an attacker's rows that get the patch of "backdoor".
    """

    kind: AttackKind = "none"
    share: Share = 0.2
    strength: Positive = 3.0
    poisoned: Share = 0.5


class FaultsConfig(Section):
    """Simulated faults.

    Args:
        dropout: probability that a client is lost, at each task; a lost client stays lost for the round.
        bad_update: what happens to a result with NaN or infinity: leave it out ("drop"), or end the run ("stop").
        availability: share of the time in which a client can begin a task. Never changes a result.
        period: seconds from one time that a client becomes available to the next.
    """

    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0
    bad_update: Literal["drop", "stop"] = "drop"
    availability: Share = 1.0
    period: Positive = 10.0


class LinksConfig(Section):
    """Speeds of the links, for simulated time in reports and in `headwater plan`. Never changes a result.

    Args:
        server_sector_mbps: Mbit/s of the server's link, which all of its traffic shares.
        sector_client_mbps: Mbit/s of each sector's link to its clients.
        server_sector_ms: milliseconds of a round trip between server and sectors.
        sector_client_ms: milliseconds of a round trip between a sector and its clients.
    """

    server_sector_mbps: Positive = Links.server_sector_mbps
    sector_client_mbps: Positive = Links.sector_client_mbps
    server_sector_ms: NotNegative = Links.server_sector_ms
    sector_client_ms: NotNegative = Links.sector_client_ms
