"""A step of a secure sum as a task: what a member refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headwater.secure.protocol import TooFew
from headwater.tasks.secure import (
    advertise_keys,
    agree_on_members,
    list_keys,
    mask_value,
    open_shares,
    pass_shares,
    share_seeds,
)
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
    inbox = pass_shares(ctx(around), sealed, HOMES, THRESHOLD)["c0"]
    return {"ctx": ctx(around), "value": value, "secret": made["c0"]["secret"], "roster": roster, "inbox": inbox}


def opened(held: dict[str, Any], inbox: dict[str, Any]) -> tuple[str, ...]:
    found: tuple[str, ...] = open_shares(held["ctx"], held["secret"], held["roster"], inbox)
    return found


def masked(held: dict[str, Any], *senders: str) -> torch.Tensor:
    read = opened(held, {name: held["inbox"][name] for name in senders})
    rest = {"sum": ArraySum(), "exponent": 20, "range": 100.0, "threshold": THRESHOLD}
    given = {name: held[name] for name in ("ctx", "value", "secret", "roster")}
    found: torch.Tensor = mask_value(**given, opened=read, core=("c0", *senders), **rest)
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


def test_shares_of_any_other_form_cannot_be_opened(held: dict[str, Any]) -> None:
    assert opened(held, held["inbox"]) == ("c1", "c2", "c3")
    for other in (1.5, None, torch.zeros(3), held["inbox"]["c2"], torch.zeros(0, dtype=torch.uint8)):
        assert opened(held, held["inbox"] | {"c1": other}) == ("c2", "c3")


def test_what_members_tell_may_have_any_form(held: dict[str, Any]) -> None:
    """It comes from another party. The one that tells nonsense is left out, and named."""
    said: dict[str, Any] = {name: tuple(other for other in HOMES if other != name) for name in HOMES}
    for nonsense in (3, None, {"c0": 1}, (1, None, ["c0"]), ("nobody",)):
        here = held["ctx"]
        here.notes.clear()
        assert agree_on_members(here, said | {"c2": nonsense}, THRESHOLD, 4) == ("c0", "c1", "c3")
        assert here.notes == {"secure_left_out c2": 1.0}


def test_a_member_with_unusable_keys_is_not_on_the_list(held: dict[str, Any]) -> None:
    said = {name: {"keys": keys, "form": held["roster"]["form"]} for name, keys in held["roster"]["keys"].items()}
    said["c3"] = {"keys": torch.zeros(64, dtype=torch.uint8), "form": held["roster"]["form"]}
    assert list(list_keys(held["ctx"], said, THRESHOLD, 4)["keys"]) == ["c0", "c1", "c2"]
