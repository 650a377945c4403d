"""Bounds and noise on what clients send, for differential privacy. No method knows of them.

An update is the difference between the model that a client trained and the one that it was given. It is shortened to
the L2 norm `clip`, and weighs the same as that of any other client. So a client changes a mean of m updates by at most
clip / m, compared with an update of zero. Noise in units of this bound is added by the client itself, or once to the
mean, by the sector or the server that forms it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from headwater.core.params import By, Layout, Params, mean
from headwater.core.rng import Key, SecretStream, stream
from headwater.errors import ConfigError
from headwater.models.base import ModelSpec
from headwater.models.building import has_batch_norm
from headwater.specs import NoiseAt
from headwater.tasks.attack import Attack, sent

SHRINK = 1 - 1e-6  # so that rounding does not bring a shortened update beyond the bound
WITHIN = "within"  # noted by clients: whether the update was within the bound
PUBLIC_NOTES = ("released", "bad_update", WITHIN)  # what a client may report although its rows are protected
SPLIT = 0.1  # share of the privacy that an adapted bound costs
PACE = 0.2  # of its adaptation, as in the paper


@dataclass(frozen=True)
class Privacy:
    """What protects clients and their rows.

    Args:
        clip: largest norm of a client's update; 0: no bound.
        noise: standard deviation of the noise, in units of what one client can change.
        at: who adds it.
        row_clip: largest norm of the gradient of a row; 0: no bound.
        row_noise: standard deviation of the noise on the sum of such gradients, in units of `row_clip`.
        quantile: share of updates that an adapted `clip` shall not shorten; 0: `clip` stays as it is.
    """

    clip: float = 0.0
    noise: float = 0.0
    at: NoiseAt = "client"
    row_clip: float = 0.0
    row_noise: float = 0.0
    quantile: float = 0.0

    @property
    def of_updates(self) -> float:
        """Noise on updates: `noise`, or more if a part of the privacy is spent on how many were shortened."""
        return self.noise / math.sqrt(1 - SPLIT) if self.quantile else self.noise

    @property
    def of_shares(self) -> float:
        """Noise on the number of updates within the bound, of which one client changes at most a half."""
        return self.noise / (2 * math.sqrt(SPLIT))

    def adapted(self, bound: float, within: Sequence[float], noise: float) -> float:
        """The bound of the next round.

        Andrew, Thakkar, McMahan, Ramaswamy: Differentially Private Learning with Adaptive Clipping, NeurIPS 2021.

        Args:
            bound: of this round.
            within: 1 for each client whose update was within it, 0 for the others.
            noise: a number of the standard normal distribution.
        """
        if not within:
            return bound
        noisy = sum(each - 0.5 for each in within) + self.of_shares * noise
        return bound * math.exp(-PACE * (noisy / len(within) + 0.5 - self.quantile))

    @property
    def active(self) -> bool:
        """Whether there is noise anywhere. Clients then report no losses."""
        return bool(self.noise or self.row_noise)

    def adds_noise(self, at: NoiseAt) -> bool:
        """Whether updates get noise at this kind of place."""
        return bool(self.noise) and self.at == at


def privacy_of(keys: Any) -> Privacy:
    """What protects clients and rows, by the section `[privacy]` of a configuration."""
    return Privacy(keys.clip, keys.noise, keys.at, keys.row_clip, keys.row_noise, keys.quantile)


def check(privacy: Privacy, rules: Mapping[str, str], models: Iterable[ModelSpec]) -> None:
    """Refuse noise that would not protect.

    Args:
        privacy: what the configuration asks for.
        rules: place → its rule of robust fusion.
        models: architectures of clients.

    Raises:
        ConfigError: it cannot be done.
    """
    for noise, clip, prefix in ((privacy.noise, privacy.clip, ""), (privacy.row_noise, privacy.row_clip, "row_")):
        if noise and not 0 < clip < float("inf"):
            raise ConfigError(
                f"privacy.{prefix}noise = {noise:g} is a multiple of privacy.{prefix}clip, which must be above 0 and "
                f"finite, got {clip:g}"
            )
    if privacy.quantile and not (privacy.noise and privacy.at == "server"):
        raise ConfigError(
            f"privacy.quantile = {privacy.quantile:g} adapts the bound of updates by what clients tell the server; set "
            "privacy.at = 'server', and privacy.noise above 0"
        )
    rule = rules.get(privacy.at, "none")
    if privacy.noise and rule != "none":
        raise ConfigError(
            f"privacy.at = {privacy.at!r} adds noise that suits a mean, and robust.{privacy.at} = {rule!r} is none; "
            f"set robust.{privacy.at} = 'none', or privacy.at = 'client'"
        )
    for model in models if privacy.active or privacy.row_clip else ():
        module = model.outline()
        if has_batch_norm(module) or Layout.of(module, model.name).floats:
            raise ConfigError(
                f"{model.name} has batch norm, which mixes the rows of a batch and sends statistics of them; noise of "
                "[privacy] needs a model without, such as one with model.norm = 'group'"
            )


def draws_noise(task: Any, privacy: Privacy) -> bool:
    """Whether the result of a task at a client is a release with noise, which is drawn once a round."""
    trains = bool(getattr(task, "update", "")) and (privacy.adds_noise("client") or bool(privacy.row_noise))
    return trains or bool(getattr(task, "noisy", False))


class Context(Protocol):
    """The part of a run's context that matters here."""

    seed: int
    secret: str
    rows: Mapping[str, Any]
    privacy: Privacy
    attack: Attack | None


class Called(Protocol):
    """The part of a job that matters here."""

    @property
    def phase(self) -> str: ...

    @property
    def task(self) -> Any: ...


def as_sent(
    context: Context,
    call: Called,
    node: str,
    inputs: Mapping[str, Any],
    key: tuple[Key, ...],
    value: Any,
    note: Callable[..., None] | None = None,
) -> Any:
    """What a node sends as the result of a task: bounded as `[privacy]` says, and changed by a simulated attack.

    Args:
        context: the run.
        call: the job, or the group of jobs.
        node: where it ran.
        inputs: of the task.
        key: names the random streams of the task.
        value: the result; None if it is not computed yet.
        note: reports a number of this node, where the bound is adapted.
    """
    if value is None:
        return None
    if context.privacy.clip and node in context.rows:
        start = inputs.get(getattr(call.task, "update", ""))
        if isinstance(start, Params):
            bound = inputs.get("bound") or context.privacy.clip
            if note is not None and context.privacy.quantile and isinstance(value, Params):
                note(**{WITHIN: float((value.vector - start.vector).double().norm()) <= bound})
            value = _bounded(value, start, bound, context, key)
    if call.phase == "train" and getattr(call.task, "derived", False):
        return value  # from a model that an attacker has changed already
    return sent(context.attack, call.phase, node, inputs, key, value)


def _bounded(value: Any, start: Params, bound: float, context: Context, key: tuple[Key, ...]) -> Any:
    """The value with the update of every model in it bounded."""
    if isinstance(value, Mapping):
        return {name: _bounded(part, start, bound, context, key) for name, part in value.items()}
    if not isinstance(value, Params) or value.layout != start.layout:
        return value
    privacy = context.privacy
    vector, update = value.vector, value.vector - start.vector
    short = shortened(update, bound)
    if short is not update:
        vector = start.vector + short
    model = replace(value, vector=vector, weight=1.0)
    return with_noise(model, privacy.noise * bound, context, key) if privacy.adds_noise("client") else model


def shortened(update: Tensor, bound: float) -> Tensor:
    """The update itself if its norm is within the bound, else one in its direction that is. NaN counts as no update."""
    length = float(update.double().norm())
    if length <= bound:
        return update
    if not length < float("inf"):
        return torch.zeros_like(update)
    return update * (bound / length * SHRINK)


def with_noise(model: Params, deviation: float, context: Context, key: tuple[Key, ...]) -> Params:
    """The model with independent Gaussian noise on every number.

    In a simulation, noise follows from the seed. A party with a secret draws it from that, and the stream depends on
    the model too: if a round is repeated with another model, the difference of the two does not show what was hidden.

    Args:
        model: what is hidden.
        deviation: standard deviation.
        context: the run.
        key: names the random streams of the task.
    """
    vector = model.vector
    if context.secret:
        digest = hashlib.sha256(vector.contiguous().numpy().tobytes()).hexdigest()
        drawn = SecretStream(context.secret, "privacy", *key, digest).normal(len(vector))
    else:
        drawn = stream(context.seed, "privacy", *key).standard_normal(len(vector))
    return replace(model, vector=(vector.double() + deviation * torch.from_numpy(drawn)).to(vector.dtype))


def mean_and_influence(models: Iterable[Params], by: By) -> tuple[Params, float]:
    """The weighted mean of models, and the largest share that a single client's update has in it.

    The weight of a model is the number of clients in it, since every bounded update has the weight 1.

    Args:
        models: models of clients, or means of them.
        by: weights, as in `average`.
    """
    shares: list[float] = []
    total = 0.0

    def weight_of(model: Params) -> float:
        nonlocal total
        weight = 1.0 if by == "uniform" else model.weight
        total += weight
        shares.append(weight / max(1.0, model.weight))
        return weight

    middle = mean(models, weight_of)
    return middle, max(shares) / total if total else 0.0


def told(numbers: Mapping[str, float], privacy: Privacy) -> dict[str, float]:
    """Of the numbers that a client reports, those that may be known. Losses tell about its rows."""
    return {name: n for name, n in numbers.items() if name in PUBLIC_NOTES or not privacy.active}
