"""A secure sum, step by step, for honest parties that may be lost at any time.

Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: Practical Secure Aggregation for
Privacy-Preserving Machine Learning, CCS 2017, in its variant against parties that are curious but follow the protocol.

1. Each member makes two key pairs and a seed, and advertises the public keys. The aggregator sends all of them to all.
2. Each member splits the seeds of its mask key and of its own mask into shares, and sends each other member one share
   of both, encrypted for it. The aggregator passes them on.
3. Each member adds to its words a mask for each other member that has shared (the one whose name comes first adds it,
   the other one subtracts it) and its own mask. The aggregator adds up what arrives.
4. The aggregator names who is in the sum. Each member reveals, of a member in the sum, its share of that member's own
   mask; of a lost one, its share of that member's mask key. It never reveals both. The aggregator subtracts the masks.

Every step is a function of what a party holds and has received, so that it runs over any transport. What a step
returns may be sent; `Secret` and the `kept` share stay with their member.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headwater.secure.primitives import KEY, SEED, agreed, derived, joined, opened, public_of, sealed, split, stream

Roster = Mapping[str, bytes]  # member → its two public keys, in an order that is the same everywhere
PUBLIC, SHARES = 2 * KEY, 2 * SEED  # bytes of what a member advertises, and of the shares for one other member


class TooFew(Exception):  # noqa: N818 (a signal: the value of the sum is lost, the run goes on)
    """Fewer members are left than must remain, so the sum cannot be opened."""


@dataclass(frozen=True)
class Secret:
    """What a member keeps: seeds of its key for encryption, of its key for masks, of its own mask, and of shares."""

    encryption: bytes
    mask: bytes
    own: bytes
    shares: bytes

    @staticmethod
    def of(entropy: bytes) -> Secret:
        """The seeds that follow from at least 32 random bytes, which are used for this sum only."""
        seeds = derived(entropy, "seeds of a secure sum", 4 * SEED)
        return Secret(*(seeds[at : at + SEED] for at in range(0, 4 * SEED, SEED)))

    def advertised(self) -> bytes:
        """Step 1: the public keys, for encryption and for masks."""
        return public_of(self.encryption) + public_of(self.mask)


def enough(left: Sequence[str], threshold: int, members: int, what: str) -> None:
    """Refuse to go on if fewer members are left than must remain.

    Raises:
        TooFew: with a sentence.
    """
    if len(left) < threshold:
        raise TooFew(
            f"{len(left)} of {members} members {what}, and {threshold} must (privacy.secure_share): "
            "the sum cannot be opened, and what it was for keeps its old value"
        )


def shared(secret: Secret, me: str, roster: Roster, threshold: int) -> tuple[dict[str, bytes], bytes]:
    """Step 2, at a member: shares of both seeds for every other member, encrypted, and those that it keeps itself.

    Raises:
        TooFew: too few members have advertised keys.
        ValueError: the roster has another key under this member's name.
    """
    enough(list(roster), threshold, len(roster), "advertised keys")
    if roster[me] != secret.advertised():
        raise ValueError(f"the roster of a secure sum has keys under the name of {me!r} that are not its own")
    masks, owns = (
        split(seed, threshold, len(roster), derived(secret.shares, f"{threshold} of {len(roster)} shares of {what}"))
        for what, seed in (("the mask key", secret.mask), ("the own mask", secret.own))
    )
    texts = {name: mask + own for name, mask, own in zip(roster, masks, owns, strict=True)}
    kept = texts.pop(me)
    return {to: _box(secret, me, to, roster, text, seal=True) for to, text in texts.items()}, kept


def masked(
    words: np.ndarray, secret: Secret, me: str, roster: Roster, sharers: Iterable[str], least: int
) -> np.ndarray:
    """Step 3, at a member: its words, its own mask and one mask for each other member that has shared.

    Args:
        words: that are masked.
        secret: of this member.
        me: its name.
        roster: all members of the sum.
        sharers: who has shared, as the aggregator says.
        least: how many members must have, this one among them.

    Raises:
        TooFew: fewer have. Others may open the own mask, so without masks for others it would hide nothing.
    """
    others = sorted({*sharers} - {me})
    enough([me, *others], least, len(roster), "shared their seeds")
    result: np.ndarray = words + stream(derived(secret.own, "own mask"), len(words))
    for other in others:
        _add_pair(result, me, other, roster, secret.mask)
    return result


def revealed(
    secret: Secret, me: str, roster: Roster, inbox: Mapping[str, bytes], kept: bytes, alive: Sequence[str], least: int
) -> dict[str, bytes]:
    """Step 4, at a member: of each that has shared, one share: of its own mask if it is in the sum, else of its key.

    Args:
        secret: of this member.
        me: its name.
        roster: all members of the sum.
        inbox: sender → the shares that it encrypted for this member.
        kept: the shares that this member keeps of itself.
        alive: who is in the sum.
        least: how many members must be.

    Raises:
        TooFew: the sum has too few members, so that it might reveal single values.
    """
    sharers = [*inbox, me]
    enough([name for name in sharers if name in alive], least, len(roster), "are in the sum")
    if me not in alive:
        raise ValueError(f"{me!r} is asked to open a secure sum that it is not in")
    texts = {sender: _box(secret, me, sender, roster, box, seal=False) for sender, box in inbox.items()} | {me: kept}
    return {name: text[SEED:] if name in alive else text[:SEED] for name, text in texts.items()}


def unmasked(
    total: np.ndarray,
    roster: Roster,
    sharers: Sequence[str],
    alive: Sequence[str],
    reveals: Mapping[str, Mapping[str, bytes]],
    threshold: int,
) -> np.ndarray:
    """Step 4, at the aggregator: the sum without masks.

    Args:
        total: the sum of what members sent in step 3.
        roster: all members.
        sharers: who has shared in step 2.
        alive: who is in the sum.
        reveals: member → what it revealed.
        threshold: how many must have revealed.

    Raises:
        TooFew: fewer have.
        ValueError: shares do not fit together.
    """
    enough(list(reveals), threshold, len(roster), "revealed their shares")
    number = {name: at for at, name in enumerate(roster, 1)}
    chosen = list(reveals)[:threshold]
    result = total.copy()
    for name in sharers:
        seed = joined({number[member]: reveals[member][name] for member in chosen})
        if name in alive:
            result -= stream(derived(seed, "own mask"), len(result))
            continue
        if public_of(seed) != roster[name][KEY:]:
            raise ValueError(f"the shares of {name!r} do not give the key that it advertised")
        for other in alive:  # what the lost member would have added
            _add_pair(result, name, other, roster, seed)
    return result


def _add_pair(words: np.ndarray, me: str, other: str, roster: Roster, seed: bytes) -> None:
    """Add what `me` adds for `other`: their common mask, or its opposite."""
    first, second = sorted((me, other))
    mask = stream(agreed(seed, roster[other][KEY:], f"mask of {first} and {second}"), len(words))
    np.add(words, mask, out=words) if me == first else np.subtract(words, mask, out=words)


def _box(secret: Secret, me: str, other: str, roster: Roster, text: bytes, seal: bool) -> bytes:
    key = agreed(secret.encryption, roster[other][:KEY], "shares")
    sender, receiver = (me, other) if seal else (other, me)
    about, number = f"{sender} to {receiver}", int(sender < receiver)  # one key, two directions
    return sealed(key, text, about, number) if seal else opened(key, text, about, number)
