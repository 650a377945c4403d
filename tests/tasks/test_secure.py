"""A step of a secure sum as a task: what a member refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headwater.secure.protocol import TooFew
from headwater.tasks.secure import advertise_keys, mask_value, pass_shares, share_seeds
from headwater.tasks.sums import ArraySum
from toys import Slopes, context, ctx, points

HOMES, THRESHOLD = ("c0", "c1", "c2", "c3"), 3


@pytest.fixture
def held() -> dict[str, Any]:
    """What c0 has before it masks its value."""
    around = context([points((1.0, 0))] * len(HOMES), Slopes)
    value, kind = torch.tensor([1.0, 2.0]), ArraySum()
    made = {home: advertise_keys(ctx(around, home), value, kind) for home in HOMES}
    roster = {"keys": {home: each["public"]["keys"] for home, each in made.items()}, "form": kind.form(value)}
    sealed = {home: share_seeds(ctx(around, home), made[home]["secret"], roster, THRESHOLD)["sealed"] for home in HOMES}
    inbox = pass_shares(ctx(around), sealed, HOMES, THRESHOLD)["inbox"]["c0"]
    return {"ctx": ctx(around), "value": value, "secret": made["c0"]["secret"], "roster": roster, "inbox": inbox}


def masked(held: dict[str, Any], *senders: str) -> torch.Tensor:
    inbox = {name: held["inbox"][name] for name in senders}
    rest = {"sum": ArraySum(), "exponent": 20, "range": 100.0, "threshold": THRESHOLD}
    found: torch.Tensor = mask_value(**held | {"inbox": inbox}, **rest)
    return found


def test_an_inbox_of_fewer_members_than_the_threshold_is_refused(held: dict[str, Any]) -> None:
    assert sorted(held["inbox"]) == ["c1", "c2", "c3"]
    for senders in ((), ("c2",)):
        with pytest.raises(TooFew, match=rf"{len(senders) + 1} of 4 members shared their seeds, and 3 must"):
            masked(held, *senders)
    # As many as must have, c0 among them; each of them adds another mask.
    three, four = masked(held, "c1", "c2"), masked(held, "c1", "c2", "c3")
    assert len(three) == len(four) >= 3
    assert not (three == four).any()
