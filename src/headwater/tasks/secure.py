"""The steps of a secure sum as tasks, and values that are sealed for the server.

`core.secure_sums` runs them in place of a move and a sum. What they exchange moves as any other value does, so it is
charged, planned, permitted and lost as any other value. Keys, shares and sealed values are arrays of bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwater.core import serialization
from headwater.errors import ConfigError
from headwater.secure import primitives, protocol
from headwater.secure.fixed_point import from_words, to_words
from headwater.secure.primitives import KEY, SEED, TAG
from headwater.secure.protocol import PUBLIC, SHARES, Secret, TooFew
from headwater.tasks.cost import Cost, shaped
from headwater.tasks.sums import Sum
from headwater.tasks.task import TaskContext, task

TOO_FEW = "secure_too_few"  # noted where a sum was lost, because too few members were left
PAD = 1024  # sealed values are filled up to a multiple of this, so that a size tells little


def _bytes(*lengths: int) -> Tensor:
    return shaped(*lengths, dtype=torch.uint8)


def _array(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _words(words: np.ndarray) -> Tensor:
    return torch.from_numpy(words.view(np.int64))


def _plain(arrays: Mapping[str, Tensor]) -> dict[str, bytes]:
    return {name: array.numpy().tobytes() for name, array in arrays.items()}


def _me(ctx: TaskContext) -> str:
    """The name of the node that is a member of a sum."""
    return str(ctx.key[-1])


def _enough(ctx: TaskContext, left: Any, threshold: int, members: int, what: str) -> None:
    try:
        protocol.enough(list(left), threshold, members, what)
    except TooFew:
        ctx.note(**{TOO_FEW: len(left)})
        raise


# -- step 1: keys


def _advertised(ctx: TaskContext, value: Any, sum: Sum, **_: Any) -> dict[str, Any]:
    return {"public": {"keys": _bytes(PUBLIC), "form": sum.form(value)}, "secret": _bytes(KEY)}


@task("average", cost=Cost(), masks="add", returns=_advertised)
def advertise_keys(ctx: TaskContext, value: Any, sum: Sum, real: bool = True) -> dict[str, Any]:
    """At a member: public keys for this sum and the form of its value, and the secret, which stays there."""
    entropy = ctx.entropy(KEY) if real else bytes(KEY)
    keys = Secret.of(entropy).advertised() if real else bytes(PUBLIC)
    return {"public": {"keys": _array(keys), "form": sum.form(value)}, "secret": _array(entropy)}


@task("average", cost=Cost(), returns=lambda ctx, said, **_: _roster(said))
def list_keys(ctx: TaskContext, said: Mapping[str, dict[str, Any]], threshold: int, members: int) -> dict[str, Any]:
    """At the aggregator: the keys of all members, and the form of the values."""
    _enough(ctx, said, threshold, members, "advertised keys")
    return _roster(said)


def _roster(said: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    forms = {told["form"] for told in said.values()} - {""}
    if len(forms) > 1:
        raise ConfigError(
            "a secure sum needs values of one form, and its members hold models or arrays of different ones; use "
            "clients of one architecture"
        )
    return {"keys": {name: told["keys"] for name, told in said.items()}, "form": next(iter(forms), "")}


# -- step 2: shares


def _shared(ctx: TaskContext, roster: dict[str, Any], **_: Any) -> dict[str, Any]:
    return {"sealed": {name: _bytes(SHARES + TAG) for name in list(roster["keys"])[1:]}, "kept": _bytes(SHARES)}


@task("average", cost=Cost(), masks="add", returns=_shared)
def share_seeds(
    ctx: TaskContext, secret: Tensor, roster: dict[str, Any], threshold: int, real: bool = True
) -> dict[str, Any]:
    """At a member: encrypted shares of its seeds for every other member, and those that it keeps."""
    if not real:
        others = [name for name in roster["keys"] if name != _me(ctx)]
        return {"sealed": {name: _array(bytes(SHARES + TAG)) for name in others}, "kept": _array(bytes(SHARES))}
    own = Secret.of(secret.numpy().tobytes())
    boxes, kept = protocol.shared(own, _me(ctx), _plain(roster["keys"]), threshold)
    return {"sealed": {name: _array(box) for name, box in boxes.items()}, "kept": _array(kept)}


def _passed(sealed: Mapping[str, Mapping[str, Tensor]], members: tuple[str, ...]) -> dict[str, Any]:
    boxes = {to: {sender: box[to] for sender, box in sealed.items() if to in box} for to in members if to in sealed}
    return {"sharers": tuple(sealed), "inbox": {to: boxes.get(to, {}) for to in members}}


@task(
    "average",
    cost=Cost(),
    returns=lambda ctx, sealed, members, **_: {
        "sharers": tuple(sealed),
        "inbox": {to: {sender: _bytes(SHARES + TAG) for sender in sealed if sender != to} for to in members},
    },
)
def pass_shares(
    ctx: TaskContext, sealed: Mapping[str, Mapping[str, Tensor]], members: tuple[str, ...], threshold: int
) -> dict[str, Any]:
    """At the aggregator: what each member gets of the others' shares."""
    _enough(ctx, sealed, threshold, len(members), "shared their seeds")
    return _passed(sealed, members)


# -- step 3: masked values


@task(
    "average",
    cost=Cost(),
    masks="add",
    returns=lambda ctx, roster, sum, **_: shaped(sum.length(roster["form"], ctx.classes) + 1, dtype=torch.int64),
)
def mask_value(
    ctx: TaskContext,
    value: Any,
    secret: Tensor,
    roster: dict[str, Any],
    inbox: Mapping[str, Tensor],
    sum: Sum,
    exponent: int,
    range: float,
    threshold: int,
    real: bool = True,
) -> Tensor:
    """At a member: the terms of its value in fixed point, and a one, all masked."""
    terms, weight = sum.terms(value, roster["form"], ctx.classes)
    largest = float(terms.abs().max()) if terms.numel() else 0.0
    if largest > range * max(1.0, weight):
        raise ConfigError(
            f"a value of {largest / max(1.0, weight):g} at {_me(ctx)} is beyond privacy.secure_range = {range:g}; "
            "lower the learning rate, or raise privacy.secure_range"
        )
    words = np.append(to_words(terms.numpy(), exponent), np.uint64(1))
    if real:
        own = Secret.of(secret.numpy().tobytes())
        words = protocol.masked(words, own, _me(ctx), _plain(roster["keys"]), inbox, threshold)
    return _words(words)


@task(
    "average",
    streaming=("masked",),
    cost=Cost(),
    returns=lambda ctx, masked, **_: {"total": next(iter(masked.values())), "alive": tuple(masked)},
)
def add_masked(ctx: TaskContext, masked: Mapping[str, Tensor], threshold: int, members: int) -> dict[str, Any]:
    """At the aggregator: the sum of what members sent, and who is in it."""
    total: np.ndarray | None = None
    alive: list[str] = []
    for name, sent in masked.items():
        words = sent.numpy().view(np.uint64)
        total = words.copy() if total is None else total + words
        alive.append(name)
    _enough(ctx, alive, threshold, members, "sent their masked values")
    assert total is not None
    return {"total": _words(total), "alive": tuple(alive)}


# -- step 4: masks are taken off the sum


@task("average", cost=Cost(), masks="add", returns=lambda ctx, roster, **_: dict.fromkeys(roster["keys"], _bytes(SEED)))
def reveal_shares(
    ctx: TaskContext,
    secret: Tensor,
    roster: dict[str, Any],
    inbox: Mapping[str, Tensor],
    kept: Tensor,
    alive: tuple[str, ...],
    threshold: int,
    real: bool = True,
) -> dict[str, Tensor]:
    """At a member: one share of each that has shared, of its own mask or, if it is not in the sum, of its key."""
    if not real:
        return {name: _array(bytes(SEED)) for name in (*inbox, _me(ctx))}
    own, boxes = Secret.of(secret.numpy().tobytes()), _plain(inbox)
    told = protocol.revealed(
        own, _me(ctx), _plain(roster["keys"]), boxes, kept.numpy().tobytes(), list(alive), threshold
    )
    return {name: _array(share) for name, share in told.items()}


def _opened(ctx: TaskContext, total: Tensor, roster: dict[str, Any], alive: Any, sum: Sum, **_: Any) -> Any:
    length = sum.length(roster["form"], ctx.classes)
    return sum.whole(shaped(length, dtype=torch.float64), len(alive), roster["form"], ctx.classes)


@task("average", cost=Cost(), masks="remove", returns=_opened)
def open_sum(
    ctx: TaskContext,
    total: Tensor,
    alive: tuple[str, ...],
    roster: dict[str, Any],
    sharers: tuple[str, ...],
    told: Mapping[str, Mapping[str, Tensor]],
    sum: Sum,
    exponent: int,
    threshold: int,
    real: bool = True,
) -> Any:
    """At the aggregator: the value that the sum stands for."""
    _enough(ctx, told, threshold, len(roster["keys"]), "revealed their shares")
    words = total.numpy().view(np.uint64)
    if real:
        shares = {name: _plain(of) for name, of in told.items()}
        words = protocol.unmasked(words, _plain(roster["keys"]), sharers, alive, shares, threshold)
    if int(words[-1]) != len(alive):
        raise ValueError("the masks of a secure sum do not cancel: what a member sent or revealed is damaged")
    return sum.whole(torch.from_numpy(from_words(words[:-1], exponent)), len(alive), roster["form"], ctx.classes)


# -- values that a host relays and cannot read


@task("average", cost=Cost(), returns=lambda ctx: {"secret": _bytes(KEY), "public": _bytes(KEY)})
def make_key(ctx: TaskContext) -> dict[str, Tensor]:
    """At the server: a key pair for what is sent to it in this round."""
    entropy = ctx.entropy(KEY)
    return {"secret": _array(entropy), "public": _array(primitives.public_of(entropy))}


def _sealed(ctx: TaskContext, value: Any, **_: Any) -> Tensor:
    size = serialization.Laid.out(value).bytes
    outline = _bytes(KEY + -(-(size + 8) // PAD) * PAD + TAG)
    outline.form = value  # type: ignore[attr-defined] # an outline has no content, so it remembers what it stands for
    return outline


@task("average", cost=Cost(), masks="add", returns=_sealed)
def seal(ctx: TaskContext, value: Any, public: Tensor) -> Tensor:
    """At a client: a value that only the owner of a key can read."""
    content = serialization.to_bytes(value)
    text = len(content).to_bytes(8, "little") + content
    seed = ctx.entropy(KEY)
    key = primitives.agreed(seed, public.numpy().tobytes(), "sealed value")
    return _array(primitives.public_of(seed) + primitives.sealed(key, text + bytes(-len(text) % PAD), "sealed value"))


@task("average", cost=Cost(), masks="remove", returns=lambda ctx, box, secret: box.form)
def unseal(ctx: TaskContext, box: Tensor, secret: Tensor) -> Any:
    """At the server: the value that was sealed."""
    content = box.numpy().tobytes()
    key = primitives.agreed(secret.numpy().tobytes(), content[:KEY], "sealed value")
    text = primitives.opened(key, content[KEY:], "sealed value")
    return serialization.from_bytes(text[8 : 8 + int.from_bytes(text[:8], "little")])
