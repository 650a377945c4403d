"""Secure sums between party objects that exchange bytes: exact, hidden, and with members lost in every step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import ConfigError
from headwater.secure import primitives, protocol
from headwater.secure.fixed_point import from_words, to_words
from headwater.secure.protocol import PUBLIC, LeftOut, TooFew
from headwater.secure.setting import SecureSums
from machines import run
from sum_machine import EXPONENT, STEPS, Party, SecureSum, flip, parties, plain_sum

Damage = Callable[[dict[str, dict[str, bytes]]], None]


def secure_sum(
    members: list[Party], lost: dict[str, str] | None = None, share: float = 0.6, damage: Damage | None = None
) -> np.ndarray:
    """The sum as the aggregator gets it.

    Args:
        members: of the sum.
        lost: before which step a member is lost.
        share: of the members that must remain.
        damage: changes shares on their way: sender → receiver → sealed shares.
    """
    lost, threshold = lost or {}, SecureSums(share=share).threshold(len(members))
    gone: set[str] = set()

    def here(step: str) -> list[Party]:
        gone.update(name for name, at in lost.items() if at == step)
        return [member for member in members if member.name not in gone]

    roster = {member.name: member.secret.advertised() for member in here("keys")}
    protocol.enough(list(roster), threshold, len(members), "advertised keys")
    boxes = {member.name: member.share(roster, threshold) for member in here("shares")}
    protocol.enough(list(boxes), threshold, len(members), "shared their seeds")
    if damage is not None:
        damage(boxes)
    for member in members:
        member.inbox = {sender: sent[member.name] for sender, sent in boxes.items() if member.name in sent}
    opened = {member.name: member.opened() for member in here("opened")}
    protocol.enough(list(opened), threshold, len(members), "opened their shares")
    core = protocol.core_of(opened, threshold)
    protocol.enough(core, threshold, len(members), "could read each other's shares")
    going = [member for member in here("value") if member.name in core]
    sent = {member.name: np.frombuffer(member.mask(core), np.uint64) for member in going}
    protocol.enough(list(sent), threshold, len(members), "sent their masked values")
    total = np.sum(list(sent.values()), axis=0, dtype=np.uint64)
    told = {member.name: member.reveal(list(sent)) for member in here("reveal") if member.name in core}
    return protocol.unmasked(total, roster, core, list(sent), told, threshold)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_masks_cancel_to_the_bit(count: int) -> None:
    members = parties(count)
    assert (secure_sum(members) == plain_sum(members)).all()


@pytest.mark.parametrize("step", STEPS)
def test_a_sum_is_that_of_the_members_whose_values_arrived(step: str) -> None:
    members = parties(5)
    left = members if step == "reveal" else members[1:2] + members[3:]
    total = secure_sum(members, {"client0": step, "client2": step})
    assert (total == plain_sum(left)).all()


def test_members_lost_in_different_steps() -> None:
    members = parties(8)
    lost = {"client1": "keys", "client4": "shares", "client6": "value", "client7": "reveal"}
    left = [member for member in members if lost.get(member.name) in (None, "reveal")]
    assert (secure_sum(members, lost, share=0.5) == plain_sum(left)).all()


@pytest.mark.parametrize("step", STEPS)
def test_fewer_than_the_threshold_open_nothing(step: str) -> None:
    lost = {f"client{i}": step for i in range(3)}
    with pytest.raises(TooFew, match=r"^2 of 5 members .+, and 3 must \(privacy.secure_share\): the sum cannot be"):
        secure_sum(parties(5), lost)


def test_a_step_that_is_repeated_gives_the_same_shares() -> None:
    """Those that others hold already fit to those that it makes and reveals when it was started again."""
    members = parties(3)
    roster = {member.name: member.secret.advertised() for member in members}
    assert members[0].share(roster, 2) == members[0].share(roster, 2)
    again = Party("client0", members[0].values)
    secure_sum(members)
    again.share(roster, 2)
    assert again.kept == members[0].kept


@pytest.mark.parametrize(("threshold", "count"), [(2, 2), (2, 3), (7, 9), (30, 50)])
def test_as_many_shares_as_agreed_give_the_secret_back_and_one_less_does_not(threshold: int, count: int) -> None:
    secret, key = bytes(range(16)), bytes(range(32))
    shares = dict(enumerate(primitives.split(secret, threshold, count, key), 1))
    last = dict(list(shares.items())[-threshold:])
    assert primitives.joined(last) == secret
    assert primitives.joined(dict(list(last.items())[1:])) != secret
    assert len({*shares.values(), secret}) == count + 1
    assert primitives.split(secret, threshold, count, key[::-1]) != list(shares.values())


def test_a_masked_value_tells_nothing_of_the_value() -> None:
    """The same value under other keys, and another value under the same keys, look like other random words."""
    length = 20_000
    members, others = parties(3, length), parties(3, length, number=1)
    secure_sum(members)
    secure_sum(others)
    one, other = (np.frombuffer(each[0].mask(), np.uint64) for each in (members, others))
    assert (members[0].values == others[0].values).all()
    assert not (one == other).any()
    plain = to_words(members[0].values, EXPONENT)
    bits = np.unpackbits(one.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(bits))
    for words in (plain, other):
        correlation = np.corrcoef(one.astype(float), words.view(np.int64).astype(float))[0, 1]
        assert abs(correlation) < 5 / np.sqrt(length)


def test_all_other_members_together_do_not_unmask_a_value() -> None:
    """Its own mask remains when all pairwise masks are taken off."""
    members = parties(4)
    secure_sum(members)
    words = np.frombuffer(members[0].mask(), np.uint64).copy()
    for other in members[1:]:  # each adds for the first what it added for it
        protocol._add_pair(words, other.name, "client0", other.roster, other.secret.mask)
    rest = words - to_words(members[0].values, EXPONENT)
    own = primitives.stream(primitives.derived(members[0].secret.own, "own mask"), len(words))
    assert (rest == own).all()


def test_a_share_that_was_changed_cut_or_sent_on_cannot_be_opened() -> None:
    members = parties(4)
    secure_sum(members)
    first, whole = members[0], dict(members[0].inbox)
    for other in (flip(whole["client1"]), members[2].inbox["client1"], whole["client2"], b"", whole["client1"][:-1]):
        first.inbox = whole | {"client1": other}
        assert first.opened() == ["client2", "client3"]
    first.inbox = whole | {"nobody": whole["client1"]}
    assert first.opened() == ["client1", "client2", "client3"]


def spoil(sender: str, *receivers: str) -> Damage:
    def damage(boxes: dict[str, dict[str, bytes]]) -> None:
        for receiver in receivers or list(boxes[sender]):
            boxes[sender][receiver] = flip(boxes[sender][receiver])

    return damage


def test_a_member_whose_shares_nobody_can_read_is_left_out_and_nobody_else() -> None:
    members = parties(5)
    assert (secure_sum(members, damage=spoil("client2")) == plain_sum(members[:2] + members[3:])).all()
    with pytest.raises(LeftOut, match="client2 is left out of a secure sum"):
        members[2].mask(members[0].core)
    members[2].core = members[0].core
    with pytest.raises(LeftOut):
        members[2].reveal(["client0", "client1", "client2"])
    assert "client2" not in members[0].reveal(["client0", "client1", "client3", "client4"])  # neither of its seeds


def test_a_member_whose_shares_enough_others_can_read_stays() -> None:
    """Two of five cannot; the three others, itself among them, are as many as must remain."""
    members = parties(5)
    assert (secure_sum(members, damage=spoil("client2", "client0", "client4")) == plain_sum(members)).all()
    assert "client2" not in members[0].reveal([member.name for member in members])
    with pytest.raises(TooFew, match=r"^2 of 5 members revealed their shares of client2, and 3 must"):
        secure_sum(parties(5), {"client1": "reveal"}, damage=spoil("client2", "client0", "client4"))


def test_a_member_that_was_lost_is_taken_out_by_those_who_can_read_its_shares() -> None:
    members = parties(5)
    total = secure_sum(members, {"client2": "value"}, damage=spoil("client2", "client0"))
    assert (total == plain_sum(members[:2] + members[3:])).all()


def everybody(count: int) -> dict[str, list[str]]:
    names = [f"client{i}" for i in range(count)]
    return {name: [other for other in names if other != name] for name in names}


def test_who_accuses_falsely_puts_out_nobody_that_enough_others_vouch_for() -> None:
    said = everybody(5)
    assert protocol.core_of(said | {"client0": []}, 3) == ("client1", "client2", "client3", "client4")  # only itself
    said |= {name: [other for other in said[name] if other != "client2"] for name in ("client0", "client1")}
    assert len(protocol.core_of(said, 3)) == 5
    assert len(protocol.core_of(said, 4)) == 4  # as if both had gone away before they revealed its shares
    assert protocol.core_of({name: said[name] for name in ("client0", "client1")}, 3) == ()


@settings(deadline=None)
@given(st.data())
def test_every_honest_member_goes_on_while_enough_of_them_are_there(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 9))
    threshold = data.draw(st.integers(2, count))
    names = list(everybody(count))
    liars = data.draw(st.sets(st.sampled_from(names)))
    honest = [name for name in names if name not in liars]
    unread = {(sender, to): data.draw(st.booleans()) for sender in liars for to in honest}
    said: dict[str, list[str]] = {}
    for name in names:
        others = [other for other in names if other != name]
        lie = st.lists(st.sampled_from([*others, "nobody"]))
        said[name] = data.draw(lie) if name in liars else [o for o in others if not unread.get((o, name))]
    core = protocol.core_of(said, threshold)
    if len(honest) >= threshold:
        assert {*honest} <= {*core}
    for name in core:
        assert sum(name in {*said[other], other} for other in core) >= threshold
        assert len({name, *said[name]} & {*core}) >= threshold


def test_keys_that_nobody_can_agree_with_are_known() -> None:
    fine = parties(1)[0].secret.advertised()
    assert protocol.usable(fine)
    assert not protocol.usable(bytes(32) + fine[32:])
    assert not protocol.usable(fine[:32] + bytes(32))
    assert not protocol.usable(fine[:-1])


def test_a_member_reveals_one_share_of_each_and_nothing_of_a_sum_without_it() -> None:
    members = parties(3)
    secure_sum(members)
    told = members[0].reveal(["client0", "client1"])
    assert {name: len(share) for name, share in told.items()} == dict.fromkeys(("client0", "client1", "client2"), 16)
    with pytest.raises(ValueError, match="'client0' is asked to open a secure sum that it is not in"):
        members[0].reveal(["client1", "client2"])


def test_a_value_is_not_masked_for_fewer_than_the_threshold() -> None:
    """The others' shares open the own mask. So an aggregator that passes on no shares would be left with the value."""
    members = parties(5)
    secure_sum(members)
    first, whole, names = members[0], dict(members[0].shares), tuple(member.name for member in members)
    assert first.threshold == 3
    for count in (0, 1):
        for core, shares in ((names, dict(list(whole.items())[:count])), (names[: count + 1], whole)):
            first.shares = shares
            with pytest.raises(TooFew, match=rf"^{count + 1} of 5 members shared their seeds, and 3 must"):
                first.mask(core)
    first.shares = whole
    assert len(first.mask(names[:3])) == 8 * len(first.values)


@pytest.mark.parametrize("alive", [["client0"] * 3, ["client0", "nobody", "somebody"]], ids=["twice", "unknown"])
def test_names_that_are_no_further_members_do_not_count(alive: list[str]) -> None:
    members = parties(5)
    secure_sum(members)
    with pytest.raises(TooFew, match=r"^1 of 5 members are in the sum, and 3 must"):
        members[0].reveal(alive)


@pytest.mark.parametrize("lost", [False, True], ids=["own mask", "mask key"])
def test_a_damaged_share_opens_nothing(lost: bool) -> None:
    """What an aggregator gets by it looks like random words: it tells neither a value nor the sum."""
    length = 20_000
    members = parties(4, length)
    secure_sum(members)
    alive = [member.name for member in members[lost:]]
    total = np.sum([np.frombuffer(member.mask(), np.uint64) for member in members[lost:]], axis=0, dtype=np.uint64)
    told = {member.name: member.reveal(alive) for member in members[lost:]}
    rest = members[1].roster, [member.name for member in members], alive
    assert (protocol.unmasked(total, *rest, told, 3) == plain_sum(members[lost:])).all()
    share = told["client1"]["client0"]
    told["client1"]["client0"] = share[:-1] + bytes([share[-1] ^ 1])
    if lost:
        with pytest.raises(ValueError, match="the shares of 'client0' do not give the key that it advertised"):
            protocol.unmasked(total, *rest, told, 3)
        return
    found = protocol.unmasked(total, *rest, told, 3).view(np.int64).astype(float)
    for words in (plain_sum(members), *(to_words(member.values, EXPONENT) for member in members)):
        assert abs(np.corrcoef(found, words.view(np.int64).astype(float))[0, 1]) < 5 / np.sqrt(length)


def test_keys_of_somebody_else_under_ones_name_are_noticed() -> None:
    members = parties(2)
    roster = {member.name: members[1].secret.advertised() for member in members}
    assert len(roster["client0"]) == PUBLIC
    with pytest.raises(ValueError, match="under the name of 'client0' that are not its own"):
        members[0].share(roster, 2)


def test_fixed_point_rounds_to_the_step_and_refuses_what_64_bits_cannot_hold() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    assert np.abs(from_words(to_words(values, 20), 20) - values).max() <= 2.0**-21
    assert from_words(to_words(np.array([-3.5]), 1), 1).tolist() == [-3.5]
    with pytest.raises(ConfigError, match="a secure sum got a value of"):
        to_words(np.array([1e12]), 30)


def test_the_step_leaves_room_for_the_largest_sum() -> None:
    setting = SecureSums(range=100.0)
    for weight in (1, 17, 60_000):
        exponent = setting.exponent(weight)
        assert 2.0**61 <= 100.0 * weight * 2.0 ** (exponent + 1) <= 2.0**63


def test_sums_with_messages_lost_doubled_reordered_and_damaged() -> None:
    """`make stateful` does many more."""
    SecureSum.tally.clear()
    run(SecureSum, examples=60, steps=40)
    assert SecureSum.tally["sums opened"] > 5
    assert SecureSum.tally["damaged"] > 3
