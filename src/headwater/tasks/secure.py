"""The steps of a secure sum as tasks.

`core.secure_sums` runs them in place of a move and a sum. What they exchange moves as any other value does, so it is
charged, planned, permitted and lost as any other value. Keys and shares are arrays of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwater.errors import ConfigError
from headwater.secure import protocol
from headwater.secure.fixed_point import from_words, to_words
from headwater.secure.primitives import KEY, SEED, TAG
from headwater.secure.protocol import PUBLIC, SHARES, Secret, TooFew
from headwater.tasks.cost import Cost, shaped
from headwater.tasks.sums import Sum
from headwater.tasks.task import TaskContext, task

TOO_FEW = "secure_too_few"  # noted where a sum was lost, because too few members were left
LEFT_OUT = "secure_left_out "  # before a name: noted where a member was left out, since its shares were unreadable


def byte_outline(*lengths: int) -> Tensor:
    """The form of an array of bytes, without content."""
    return shaped(*lengths, dtype=torch.uint8)


def byte_array(content: bytes) -> Tensor:
    """Bytes as a value that can be sent."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _words(words: np.ndarray) -> Tensor:
    return torch.from_numpy(words.view(np.int64))


def _plain(arrays: Mapping[str, Tensor]) -> dict[str, bytes]:
    return {name: array.numpy().tobytes() for name, array in arrays.items()}


def _me(ctx: TaskContext) -> str:
    """The name of the node that is a member of a sum."""
    return str(ctx.key[-1])


@contextmanager
def _noting(ctx: TaskContext) -> Iterator[None]:
    """Note how many are left, if that is too few."""
    try:
        yield
    except TooFew as short:
        ctx.note(**{TOO_FEW: short.left})
        raise


def _enough(ctx: TaskContext, left: Any, threshold: int, members: int, what: str) -> None:
    with _noting(ctx):
        protocol.enough(list(left), threshold, members, what)


# -- step 1: keys


def _advertised(ctx: TaskContext, value: Any, sum: Sum, **_: Any) -> dict[str, Any]:
    return {"public": {"keys": byte_outline(PUBLIC), "form": sum.form(value)}, "secret": byte_outline(KEY)}


@task("average", cost=Cost(), masks="add", returns=_advertised)
def advertise_keys(ctx: TaskContext, value: Any, sum: Sum, real: bool = True) -> dict[str, Any]:
    """At a member: public keys for this sum and the form of its value, and the secret, which stays there."""
    entropy = ctx.entropy(KEY) if real else bytes(KEY)
    keys = Secret.of(entropy).advertised() if real else bytes(PUBLIC)
    return {"public": {"keys": byte_array(keys), "form": sum.form(value)}, "secret": byte_array(entropy)}


@task("average", cost=Cost(), returns=lambda ctx, said, **_: _roster(said))
def list_keys(
    ctx: TaskContext, said: Mapping[str, dict[str, Any]], threshold: int, members: int, real: bool = True
) -> dict[str, Any]:
    """At the aggregator: the keys of all members, and the form of the values."""
    if real:  # keys that nobody can use would make others fail
        said = {name: told for name, told in said.items() if protocol.usable(told["keys"].numpy().tobytes())}
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
    return {
        "sealed": {name: byte_outline(SHARES + TAG) for name in list(roster["keys"])[1:]},
        "kept": byte_outline(SHARES),
    }


@task("average", cost=Cost(), masks="add", returns=_shared)
def share_seeds(
    ctx: TaskContext, secret: Tensor, roster: dict[str, Any], threshold: int, real: bool = True
) -> dict[str, Any]:
    """At a member: encrypted shares of its seeds for every other member, and those that it keeps."""
    if not real:
        others = [name for name in roster["keys"] if name != _me(ctx)]
        return {"sealed": {name: byte_array(bytes(SHARES + TAG)) for name in others}, "kept": byte_array(bytes(SHARES))}
    own = Secret.of(secret.numpy().tobytes())
    boxes, kept = protocol.shared(own, _me(ctx), _plain(roster["keys"]), threshold)
    return {"sealed": {name: byte_array(box) for name, box in boxes.items()}, "kept": byte_array(kept)}


@task(
    "average",
    cost=Cost(),
    returns=lambda ctx, sealed, members, **_: {
        to: {sender: byte_outline(SHARES + TAG) for sender in sealed if sender != to} for to in members
    },
)
def pass_shares(
    ctx: TaskContext, sealed: Mapping[str, Mapping[str, Tensor]], members: tuple[str, ...], threshold: int
) -> dict[str, dict[str, Tensor]]:
    """At the aggregator: what each member gets of the others' shares."""
    sealed = {sender: boxes for sender, boxes in sealed.items() if isinstance(boxes, dict)}
    _enough(ctx, sealed, threshold, len(members), "shared their seeds")
    return {
        to: {sender: boxes[to] for sender, boxes in sealed.items() if to in boxes} if to in sealed else {}
        for to in members
    }


# -- step 3: who goes on


@task(
    "average",
    cost=Cost(),
    masks="add",
    returns=lambda ctx, inbox, **_: tuple(inbox),
)
def open_shares(
    ctx: TaskContext, secret: Tensor, roster: dict[str, Any], inbox: Mapping[str, Tensor], real: bool = True
) -> tuple[str, ...]:
    """At a member: whose shares it can open."""
    return tuple(_opened_by(ctx, secret, roster, inbox)) if real else tuple(inbox)


def _opened_by(
    ctx: TaskContext, secret: Tensor, roster: dict[str, Any], inbox: Mapping[str, Tensor]
) -> dict[str, bytes]:
    boxes = {sender: box for sender, box in inbox.items() if isinstance(box, Tensor)}
    own = Secret.of(secret.numpy().tobytes())
    return protocol.readable(own, _me(ctx), _plain(roster["keys"]), _plain(boxes))


@task("average", cost=Cost(), returns=lambda ctx, opened, **_: tuple(opened))
def agree_on_members(
    ctx: TaskContext, opened: Mapping[str, tuple[str, ...]], threshold: int, members: int
) -> tuple[str, ...]:
    """At the aggregator: who goes on. Members that too few others can read are left out before anything is masked."""
    _enough(ctx, opened, threshold, members, "opened their shares")
    told = {name: [one for one in of if isinstance(one, str)] for name, of in opened.items() if isinstance(of, tuple)}
    core = protocol.core_of(told, threshold)
    ctx.note(**{f"{LEFT_OUT}{name}": 1 for name in opened if name not in core})
    _enough(ctx, core, threshold, members, "could read each other's shares")
    return core


# -- step 4: masked values


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
    opened: tuple[str, ...],
    core: tuple[str, ...],
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
        words = protocol.masked(words, own, _me(ctx), _plain(roster["keys"]), opened, core, threshold)
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


# -- step 5: masks are taken off the sum


@task(
    "average",
    cost=Cost(),
    masks="add",
    returns=lambda ctx, roster, **_: dict.fromkeys(roster["keys"], byte_outline(SEED)),
)
def reveal_shares(
    ctx: TaskContext,
    secret: Tensor,
    roster: dict[str, Any],
    inbox: Mapping[str, Tensor],
    kept: Tensor,
    core: tuple[str, ...],
    alive: tuple[str, ...],
    threshold: int,
    real: bool = True,
) -> dict[str, Tensor]:
    """At a member: one share of each that went on, of its own mask or, if it is not in the sum, of its key."""
    if not real:
        return {name: byte_array(bytes(SEED)) for name in core}
    shares = _opened_by(ctx, secret, roster, inbox) | {_me(ctx): kept.numpy().tobytes()}
    told = protocol.revealed(_me(ctx), shares, len(roster["keys"]), core, alive, threshold)
    return {name: byte_array(share) for name, share in told.items()}


def _opened(ctx: TaskContext, total: Tensor, roster: dict[str, Any], alive: Any, sum: Sum, **_: Any) -> Any:
    length = sum.length(roster["form"], ctx.classes)
    return sum.whole(shaped(length, dtype=torch.float64), len(alive), roster["form"], ctx.classes)


@task("average", cost=Cost(), masks="remove", returns=_opened)
def open_sum(
    ctx: TaskContext,
    total: Tensor,
    alive: tuple[str, ...],
    roster: dict[str, Any],
    core: tuple[str, ...],
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
        with _noting(ctx):
            words = protocol.unmasked(words, _plain(roster["keys"]), core, alive, shares, threshold)
    if int(words[-1]) != len(alive):
        raise ValueError("the masks of a secure sum do not cancel: what a member sent or revealed is damaged")
    return sum.whole(torch.from_numpy(from_words(words[:-1], exponent)), len(alive), roster["form"], ctx.classes)
