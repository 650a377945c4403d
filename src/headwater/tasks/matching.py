"""FedMA's matched averaging: finds which neurons of several clients correspond, and averages those.

A neuron is its incoming weights and its bias, one row of a layer's matrix; a filter is its kernel, flattened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from headwater.core.params import By, Params
from headwater.models.slim import weighted
from headwater.specs import LocalSpec
from headwater.tasks.augment import augmented
from headwater.tasks.cost import ITSELF, Cost, shaped, training_cost
from headwater.tasks.optimizers import Stepper, batches, total_steps
from headwater.tasks.task import TaskContext, task

HUGE = 1e100  # stands for a gain beyond all numbers


@dataclass(frozen=True)
class Prior:
    """The model of how clients' neurons come about.

    Args:
        gamma: mass of the Beta-Bernoulli process, which says how many global neurons there are and which client has
            which of them.
        sigma: spread of the clients' neurons around the global ones.
        sigma0: spread of the global neurons around 0.
        sweeps: over the clients, in random order, after the first assignment.
        shrink: whether the prior counts in the mean too.
    """

    gamma: float = 7.0
    sigma: float = 1.0
    sigma0: float = 1.0
    sweeps: int = 5
    shrink: bool = False


class Matching:
    """Global neurons as sums of the clients' neurons that are matched to them. Grows client by client, up to `most`."""

    def __init__(self, groups: Sequence[np.ndarray], prior: Prior, most: int) -> None:
        self.groups, self.prior, self.most = groups, prior, most
        self.places: dict[int, np.ndarray] = {}  # client → the global neuron of each of its own
        self.sums = np.zeros((0, groups[0].shape[1]))
        self.counts = np.zeros(0, dtype=np.int64)

    def gains(self, j: int) -> np.ndarray:
        """Gain in log-likelihood if a neuron of client j is matched to each global one, or to the k-th new one."""
        prior, clients = self.prior, len(self.groups)
        own, base = 1 / prior.sigma**2, 1 / prior.sigma0**2
        rows, sums = self.groups[j] * own, self.sums * own
        known = base + own * self.counts
        together = (rows**2).sum(1)[:, None] + 2 * rows @ sums.T + (sums**2).sum(1)
        old = together / (known + own) - (sums**2).sum(1) / known
        old = old + 2 * np.log(self.counts / (clients - self.counts))
        slots = np.arange(1, min(len(rows), self.most - len(sums)) + 1)
        alone = (rows**2).sum(1) / (base + own) + 2 * np.log(prior.gamma / clients)
        gains = np.concatenate([old, alone[:, None] - 2 * np.log(slots)], axis=1)
        finite: np.ndarray = np.nan_to_num(gains, nan=-HUGE, posinf=HUGE, neginf=-HUGE)
        return finite

    def add(self, j: int) -> None:
        """Assign client j's neurons so that their gains add up to the most."""
        known = len(self.sums)
        places = linear_sum_assignment(self.gains(j), maximize=True)[1]
        new = places >= known
        places[new] = known + np.arange(new.sum())
        self.sums = np.concatenate([self.sums, np.zeros((new.sum(), self.sums.shape[1]))])
        self.counts = np.concatenate([self.counts, np.zeros(new.sum(), dtype=np.int64)])
        self.sums[places] += self.groups[j]
        self.counts[places] += 1
        self.places[j] = places

    def remove(self, j: int) -> None:
        """Take client j's neurons out, and remove global neurons that no client is left in."""
        places = self.places.pop(j)
        self.sums[places] -= self.groups[j]
        self.counts[places] -= 1
        kept = self.counts > 0
        number = np.cumsum(kept) - 1
        self.sums, self.counts = self.sums[kept], self.counts[kept]
        self.places = {other: number[matched] for other, matched in self.places.items()}

    def mean(self) -> np.ndarray:
        """Each global neuron as the mean of its members by precision, which is the same for all of them."""
        own, base = 1 / self.prior.sigma**2, 1 / self.prior.sigma0**2
        weight = own * self.counts + (base if self.prior.shrink else 0.0)
        return self.sums * own / weight[:, None]


def match(groups: Sequence[np.ndarray], prior: Prior, most: int, rng: np.random.Generator) -> Matching:
    """Match clients one by one, widest first, then each again against all others, several times.

    Where `most` leaves no room for new neurons the assignment is one to one.
    """
    matching = Matching(groups, prior, most)
    for j in sorted(range(len(groups)), key=lambda j: -len(groups[j])):
        matching.add(j)
    for _ in range(prior.sweeps if len(groups) > 1 else 0):
        for j in rng.permutation(len(groups)):
            matching.remove(int(j))
            matching.add(int(j))
    return matching


# -- layers of a model


def neurons(model: Params, layer: str) -> Tensor:
    """A layer as a matrix: one row per neuron, its bias last."""
    tensors = model.named()
    rows, bias = tensors[f"{layer}.weight"].flatten(1), tensors.get(f"{layer}.bias")
    return rows.clone() if bias is None else torch.cat([rows, bias.unsqueeze(1)], dim=1)


def placed(model: Params, layer: str, rows: Tensor) -> Params:
    """The model with these neurons in a layer."""
    changed = replace(model, vector=model.vector.clone())
    tensors = changed.named()
    weight = tensors[f"{layer}.weight"]
    weight.copy_(rows[:, : prod(weight.shape[1:])].reshape(weight.shape))
    if f"{layer}.bias" in tensors:
        tensors[f"{layer}.bias"].copy_(rows[:, -1])
    return changed


def rewired(model: Params, layer: str, places: Tensor) -> Params:
    """The model whose layer finds input i at `places[i]`. After a flattening each channel is a block of inputs."""
    changed = replace(model, vector=model.vector.clone())
    weight = changed.named()[f"{layer}.weight"]
    inputs = weight.reshape(len(weight), len(places), -1)
    moved = torch.empty_like(inputs)
    moved[:, places] = inputs
    weight.copy_(moved.reshape(weight.shape))
    return changed


def _layers(ctx: TaskContext, model: Params) -> tuple[str, ...]:
    return weighted(ctx.blank(model.layout.arch).module, "fedma")


# -- tasks


@task("average", returns=ITSELF)
def depth(ctx: TaskContext, model: Params) -> int:
    """Number of layers of a model."""
    return len(_layers(ctx, model))


@task("average", returns="model")
def with_room(ctx: TaskContext, model: Params, share: float) -> Params:
    """The model with a share of every hidden layer's neurons emptied: they stay 0 until matching fills them."""
    layers = _layers(ctx, model)
    for layer, following in pairwise(layers):
        rows = neurons(model, layer)
        kept = max(1, round((1 - share) * len(rows)))
        rows[kept:] = 0
        model = placed(model, layer, rows)
        model = replace(model, vector=model.vector.clone())
        weight = model.named()[f"{following}.weight"]
        weight.reshape(len(weight), len(rows), -1)[:, kept:] = 0
    return model


def _layer_outline(ctx: TaskContext, model: Params, number: int) -> Tensor:
    tensors, layer = model.named(), _layers(ctx, model)[number]
    weight = tensors[f"{layer}.weight"]
    return shaped(len(weight), prod(weight.shape[1:]) + (f"{layer}.bias" in tensors), dtype=weight.dtype)


@task("average", returns=_layer_outline)
def layer_of(ctx: TaskContext, model: Params, number: int) -> Tensor:
    """The neurons of one layer, to be sent."""
    return neurons(model, _layers(ctx, model)[number])


def _matched_outline(ctx: TaskContext, layers: Mapping[str, Tensor], clients: tuple[str, ...], **_: Any) -> Any:
    layer = next(iter(layers.values()))
    return {"layer": layer, "places": dict.fromkeys(clients, shaped(len(layer), dtype=torch.int64))}


@task("average", cost=Cost(known=False), returns=_matched_outline)
def match_layer(
    ctx: TaskContext, layers: Mapping[str, Tensor], clients: tuple[str, ...], prior: Prior
) -> dict[str, Any]:
    """Match one layer of several clients.

    Args:
        ctx: where it runs.
        layers: client → its neurons.
        clients: all clients of the round; for one whose layer was lost nothing moves.
        prior: the model of how neurons come about.

    Returns:
        `layer`, the matched neurons, and `places`: client → the place of each of its neurons. Empty neurons (all 0)
        are not matched and take the places that are left.
    """
    tables = {client: rows.cpu().double().numpy() for client, rows in layers.items()}
    width, size = next(iter(tables.values())).shape
    live = {client: np.flatnonzero(rows.any(1)) for client, rows in tables.items()}
    matching = match([tables[c][live[c]] for c in tables], prior, width, ctx.rng)
    layer = np.zeros((width, size))
    layer[: len(matching.sums)] = matching.mean()
    places = {client: np.arange(width) for client in clients}
    for j, client in enumerate(tables):
        taken, rest = matching.places[j], np.setdiff1d(np.arange(width), live[client])
        places[client][live[client]] = taken
        places[client][rest] = np.setdiff1d(np.arange(width), taken)
    ctx.note(neurons=len(matching.sums))
    dtype = next(iter(layers.values())).dtype
    return {"layer": torch.tensor(layer, dtype=dtype), "places": {c: torch.tensor(p) for c, p in places.items()}}


@task("train", cost=lambda ctx, model, spec, **_: training_cost(model, ctx.samples, spec), returns="model")
def retrain(ctx: TaskContext, model: Params, layer: Tensor, places: Tensor, number: int, spec: LocalSpec) -> Params:
    """Put the matched layer in place, reorder the next layer's inputs to fit, and train the layers after it.

    The layers up to this one stay as they are: they get no gradient and are put back after each step, since weight
    decay would change them.

    Args:
        ctx: where it runs.
        model: this home's model.
        layer: the matched neurons.
        places: the place of each of this home's neurons.
        number: number of the layer, from 0.
        spec: the stage.
    """
    rows, layers = ctx.data, _layers(ctx, model)
    if rows is None:
        raise LookupError(f"{ctx.home} holds no training data")
    model = rewired(placed(model, layers[number], layer), layers[number + 1], places)
    net, frozen = ctx.flat_module(model), layers[: number + 1]
    still = [p for name, p in net.module.named_parameters() if name.rpartition(".")[0] in frozen]
    end = sum(p.numel() for p in still)  # layers lie in the vector as they follow each other
    stepper = Stepper(net, spec, total_steps(len(rows), spec))
    try:
        for parameter in still:
            parameter.requires_grad_(False)
        for batch in batches(len(rows), spec, ctx.rng, ctx.device):
            net.train(len(batch))
            stepper.step(net.loss(net(augmented(rows.x[batch], spec.augment, ctx.augment_rng)), rows.y[batch]))
            net.vector[:end] = model.vector[:end]
    finally:
        for parameter in still:
            parameter.requires_grad_(True)
    return net.params(model.weight)


@task("average", returns="model")
def assembled(
    ctx: TaskContext,
    model: Params,
    matched: tuple[Tensor, ...],
    last: Mapping[str, Tensor],
    sizes: Mapping[str, float],
    by: By = "samples",
) -> Params:
    """A model of the matched layers and the mean of the clients' last one; `model` gives its form."""
    layers = _layers(ctx, model)
    for name, rows in zip(layers, matched, strict=False):
        model = placed(model, name, rows)
    weights = {client: float(sizes[client]) if by == "samples" else 1.0 for client in last}
    total = sum(weights.values())
    mean = sum(weights[client] / total * rows for client, rows in last.items())
    assert isinstance(mean, Tensor)
    return replace(placed(model, layers[-1], mean), weight=total)
