"""Gradient inversion: can rows of clients be reconstructed from the update that a party sees?

Two attacks. The analytic one divides the update of the weights of the first linear layer by that of its biases, neuron
by neuron: for a gradient of one row this is the row itself, for more rows a mixture of them (Phong et al., IEEE TIFS
2018). The other searches for inputs and labels whose gradient has the direction of the update, by cosine similarity
(Zhu, Liu, Han: Deep Leakage from Gradients, NeurIPS 2019; Geiping et al.: Inverting Gradients, NeurIPS 2020).

A guess is compared with the row that it resembles most, by the cosine of both after the mean of public rows was
subtracted. Many rows resemble each other, so there are two controls: the same guesses compared with as many rows of the
same classes that nobody trained on, and as many public rows in place of the guesses.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headwater.core.params import Params, cut
from headwater.core.rng import derive, stream
from headwater.specs import LocalSpec
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.optimizers import FusedOptimizer

GUESSES = 16  # of the analytic attack: the neurons that changed most
SEARCHED = 4  # inputs that the search looks for
STEPS = 200
RATE = 0.1
DRAWS = 100  # of public rows, whose mean is the baseline
TINY = 1e-12


@dataclass(frozen=True)
class Likeness:
    """How much the best guess resembles a row.

    Args:
        similarity: of the best guess and the row that it resembles most; 1 is the row itself.
        control: the same for rows that nobody trained on.
        baseline: the same for public rows in place of the guesses, as a mean over draws of as many.
        error: mean squared error of that guess.
    """

    similarity: float
    control: float
    baseline: float
    error: float


@dataclass(frozen=True)
class Inverted:
    """Results of both attacks on one update; None where an attack does not apply."""

    analytic: Likeness | None
    searched: Likeness | None


def layer_guesses(start: Params, end: Params, size: int) -> Tensor | None:
    """Inputs by the analytic attack, one a row; None without a linear layer on the input, or without an update.

    Args:
        start: the model before training.
        end: the model after it.
        size: of an input.
    """
    update = cut((start.trainable - end.trainable).double(), start.layout.trainable)
    for name, shape in start.layout.trainable:
        bias = update.get(f"{name.removesuffix('weight')}bias")
        if len(shape) == 2 and shape[1] == size and name.endswith("weight") and bias is not None:
            order = bias.abs().argsort(descending=True)[:GUESSES]
            order = order[bias[order].abs() > TINY]
            return update[name][order] / bias[order, None] if len(order) else None
    return None


def searched(net: FlatModule, start: Params, end: Params, public: Tensor, classes: int, seed: int) -> Tensor:
    """Inputs whose gradient has the direction of the update.

    Args:
        net: a module of the architecture.
        start: the model before training.
        end: the model after it.
        public: rows that every party has; guesses begin around their mean and stay within their range.
        classes: how many there are.
        seed: of the first guess.
    """
    net.load(start)
    module = net.module.eval()
    weights = [parameter for parameter in module.parameters() if parameter.requires_grad]
    direction = (start.trainable - end.trainable).to(net.vector)
    direction = direction / direction.norm().clamp_min(TINY)
    drawn = torch.Generator().manual_seed(derive(seed, "inversion") % 2**62)
    noise = torch.randn(SEARCHED, *public.shape[1:], generator=drawn, dtype=public.dtype)
    x = (public.mean(0) + public.std() * noise).to(net.vector).requires_grad_()
    y = torch.zeros(SEARCHED, classes).to(net.vector).requires_grad_()
    spec = LocalSpec(steps=STEPS, optimizer="adam", lr=RATE)
    inputs, labels = FusedOptimizer(spec, x), FusedOptimizer(spec, y)
    low, high = float(public.min()), float(public.max())
    for _ in range(STEPS):
        logits = module(net.laid_out(x))
        loss = -(F.log_softmax(logits, 1) * y.softmax(1)).sum(1).mean()
        parts = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
        whole = [torch.zeros_like(w) if part is None else part for w, part in zip(weights, parts, strict=True)]
        gradient = torch.cat([part.reshape(-1) for part in whole])
        distance = 1 - (gradient @ direction) / gradient.norm().clamp_min(TINY)
        by_x, by_y = torch.autograd.grad(distance, [x, y])
        inputs.step(by_x.contiguous(), RATE)
        labels.step(by_y.contiguous(), RATE)
        with torch.no_grad():
            x.clamp_(low, high)
    return x.detach().cpu()


def likeness(guesses: Tensor, rows: Tensor, others: Tensor, public: Tensor, seed: int) -> Likeness:
    """Compare guesses with the rows that they may reconstruct.

    Args:
        guesses: one guess per row, of any shape.
        rows: rows of the clients.
        others: rows of the same classes that nobody trained on.
        public: rows that every party has.
        seed: seed of the draws of public rows.
    """
    flat = [part.reshape(len(part), -1).double() for part in (guesses, rows, others, public)]
    guess, target, outside, known = (part - flat[3].mean(0) for part in flat)
    like = _cosines(guess, target)
    best = int(like.argmax())
    error = (guess[best // len(target)] - target[best % len(target)]).square().mean()
    chance = _cosines(known, target).amax(1).numpy()
    draw = stream(seed, "likeness")
    count = min(len(guesses), len(chance))
    baseline = np.mean([draw.choice(chance, count, replace=False).max() for _ in range(DRAWS)])
    control = _cosines(guess, outside).max()
    return Likeness(float(like.flatten()[best]), float(control), float(baseline), float(error))


def _cosines(one: Tensor, other: Tensor) -> Tensor:
    cosines = F.normalize(one, dim=1, eps=TINY) @ F.normalize(other, dim=1, eps=TINY).T
    return cosines.nan_to_num(-1.0)


def invert(
    net: FlatModule,
    start: Params,
    end: Params,
    beside: tuple[Tensor, Tensor, Tensor],
    classes: int,
    search: bool,
    seed: int,
) -> Inverted:
    """Both attacks on one update.

    Args:
        net: a module of the architecture.
        start: the model before training.
        end: the model after it.
        beside: rows of the clients, rows of the same classes that nobody trained on, and public rows.
        classes: how many there are.
        search: whether to search, which takes time.
        seed: of all draws.
    """
    if not torch.isfinite(end.vector).all() or torch.equal(start.trainable, end.trainable):
        return Inverted(None, None)
    public = beside[2]
    found = layer_guesses(start, end, prod(public.shape[1:]))
    guesses = searched(net, start, end, public, classes, seed) if search else None
    return Inverted(*(None if each is None else likeness(each, *beside, seed) for each in (found, guesses)))
