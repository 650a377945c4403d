"""Gradient steps of many perceptrons at once, in TorchScript.

Python runs one thread at a time. A step of a small stack is some forty short operations, so two threads that train a
stack each would wait for one another. TorchScript runs the same operations in the same order without the interpreter.
Its optimisation is switched off, so that the bits are those of the plain functions, which are used where TorchScript is
not available.

A perceptron is given by its layers (`kinds`: "linear", "relu", "tanh", "sigmoid") and, for each linear one from the
first to the last, the weights of all members (member, out, in) and their biases (member, out). A batch is `x` (member,
place, in) with `y` and `share` (member, place): a place counts in a member's loss by its share.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor


def _forward(kinds: list[str], across: list[Tensor], beside: list[Tensor | None], x: Tensor) -> list[Tensor]:
    """The input of each layer, and the output of the last. The layers are as `_across` and `_beside` return them."""
    passed = [x]
    linear = 0
    for kind in kinds:
        now = passed[-1]
        if kind == "linear":
            bias = beside[linear]
            now = torch.bmm(now, across[linear]) if bias is None else torch.baddbmm(bias, now, across[linear])
            linear += 1
        elif kind == "relu":
            now = now.relu()
        elif kind == "tanh":
            now = now.tanh()
        else:  # a sigmoid by tanh: torch's own rounds by the position of a number in a tensor
            now = (now * 0.5).tanh_().add_(1).mul_(0.5)
        passed.append(now)
    return passed


def _across(weights: list[Tensor]) -> list[Tensor]:
    """Views of weights as (member, in, out)."""
    return [weight.transpose(1, 2) for weight in weights]


def _beside(biases: list[Tensor | None]) -> list[Tensor | None]:
    """Views of biases as (member, 1, out)."""
    found: list[Tensor | None] = []
    for bias in biases:
        found.append(None if bias is None else bias.unsqueeze(1))
    return found


def _slopes(output: Tensor, true: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithm of the probability of the true class, and the derivative of the cross-entropy by the output.

    `true`, `share` and the first result are (member, place, 1).
    """
    logs = torch.log_softmax(output, 2)
    found = logs.gather(2, true)
    less = torch.full_like(share, -1)
    return found, logs.exp_().scatter_add_(2, true, less).mul_(share)


def _backward(
    kinds: list[str], weights: list[Tensor], passed: list[Tensor], slope: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """For each linear layer, first to last: its input, and the derivative by its output."""
    inputs: list[Tensor] = []
    slopes: list[Tensor] = []
    for step in range(len(kinds)):
        at = len(kinds) - 1 - step
        after = passed[at + 1]
        if kinds[at] == "linear":
            inputs.append(passed[at])
            slopes.append(slope)
            if len(slopes) == len(weights):
                break
            slope = torch.bmm(slope, weights[len(weights) - len(slopes)])
        elif kinds[at] == "relu":
            slope = slope.mul_(after > 0)
        elif kinds[at] == "tanh":
            slope = slope.mul_(1 - after.square())
        else:
            slope = slope.mul_(after * (1 - after))
    inputs.reverse()
    slopes.reverse()
    return inputs, slopes


def _there_and_back(
    kinds: list[str], weights: list[Tensor], biases: list[Tensor | None], x: Tensor, true: Tensor, share: Tensor
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """What `_slopes` says of the true classes, and for each linear layer its input and the derivative by its output."""
    passed = _forward(kinds, _across(weights), _beside(biases), x)
    found, slope = _slopes(passed[-1], true, share)
    inputs, slopes = _backward(kinds, weights, passed, slope)
    return found, inputs, slopes


def _gradient(
    kinds: list[str],
    weights: list[Tensor],
    biases: list[Tensor | None],
    x: Tensor,
    y: Tensor,
    share: Tensor,
    into: list[Tensor],
    bias_into: list[Tensor | None],
) -> Tensor:
    """Write each member's gradients into `into` and `bias_into`; returns each member's loss."""
    found, inputs, slopes = _there_and_back(kinds, weights, biases, x, y.unsqueeze(2), share.unsqueeze(2))
    for at in range(len(weights)):
        torch.bmm(slopes[at].transpose(1, 2), inputs[at], out=into[at])
        bias = bias_into[at]
        if bias is not None:
            bias.copy_(slopes[at].sum(1))
    return -(found.squeeze(2) * share).sum(1)


def _step(
    kinds: list[str],
    weights: list[Tensor],
    biases: list[Tensor | None],
    x: Tensor,
    true: Tensor,
    share: Tensor,
    lr: float,
) -> Tensor:
    """A step of plain gradient descent that never stores the gradient. `true`, `share` and the result as `_slopes`."""
    found, inputs, slopes = _there_and_back(kinds, weights, biases, x, true, share)
    for at in range(len(weights)):
        weights[at].baddbmm_(slopes[at].transpose(1, 2), inputs[at], alpha=-lr)
        bias = biases[at]
        if bias is not None:
            bias.sub_(slopes[at].sum(1), alpha=lr)
    return found


def twice(part: Tensor) -> Tensor:
    """The first member twice, since products of a single member may be rounded differently."""
    return torch.cat([part[:1], part[:1]])


def _first(biases: list[Tensor | None], now: int) -> list[Tensor | None]:
    """The biases of the first `now` members; of a single one, twice."""
    found: list[Tensor | None] = []
    for bias in biases:
        if bias is None:
            found.append(None)
        elif now > 1:
            found.append(bias[:now])
        else:
            found.append(twice(bias))
    return found


def _descend(
    kinds: list[str],
    weights: list[Tensor],
    biases: list[Tensor | None],
    table: Tensor,
    labels: Tensor,
    index: Tensor,
    share: Tensor,
    counts: list[int],
    rates: list[float],
    room: Tensor,
) -> Tensor:
    """All steps of plain gradient descent. Members with fewer steps end earlier; they come last.

    `index`, `labels` and `share` are by (step, member, place), `counts` says how many members take part in a step,
    `rates` are the learning rates, and `room` is memory for the inputs of a step. Weights and biases are changed in
    place. Returns each member's loss, summed over all samples that it has seen.
    """
    members, places = index.size(1), index.size(2)
    rows, true, part = index.flatten(1).unbind(0), labels.unsqueeze(3).unbind(0), share.unsqueeze(3).unbind(0)
    found: list[Tensor] = []
    for step in range(len(counts)):
        now, lr = counts[step], rates[step]
        if now == members and now > 1:
            x = torch.index_select(table, 0, rows[step], out=room).view(members, places, -1)
            found.append(_step(kinds, weights, biases, x, true[step], part[step], lr))
            continue
        flat = rows[step][: now * places]
        x = torch.index_select(table, 0, flat, out=room[: flat.size(0)]).view(now, places, -1)
        y, own = true[step][:now], part[step][:now]
        if now > 1:
            logs = _step(kinds, [weight[:now] for weight in weights], _first(biases, now), x, y, own, lr)
        else:
            both, both_biases = [twice(weight) for weight in weights], _first(biases, now)
            logs = _step(kinds, both, both_biases, twice(x), twice(y), twice(own), lr)[:1]
            for at in range(len(weights)):
                weights[at][:1].copy_(both[at][:1])
                mine, new = biases[at], both_biases[at]
                if mine is not None and new is not None:
                    mine[:1].copy_(new[:1])
        found.append(torch.constant_pad_nd(logs, [0, 0, 0, 0, 0, members - now]))
    total = torch.zeros(members, dtype=share.dtype, device=share.device)
    if len(found) > 0:
        losses = -(torch.stack(found).squeeze(3) * share[: len(found)]).sum(2)
        seen = (share > 0).sum(2)
        for step in range(len(found)):
            total.addcmul_(losses[step], seen[step])
    return total


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of this file as TorchScript, or the function itself where TorchScript is not available."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated; its successors need a compiler
            script = torch.jit.script(function)
    except Exception:  # a Python or torch without it, or no source files
        return function

    def run(*arguments: Any) -> Any:
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return script(*arguments)

    return run


def gradient(*arguments: Any) -> Tensor:
    """See `_gradient`."""
    loss: Tensor = compiled(_gradient)(*arguments)
    return loss


def descend(*arguments: Any) -> Tensor:
    """See `_descend`."""
    losses: Tensor = compiled(_descend)(*arguments)
    return losses
