"""Perceptrons with one hidden layer of all clients of a round as one batched computation, worked out by hand.

No autograd and no optimiser: the backward pass is written down, and the step is part of the product that would
otherwise give the gradient. With the argument `evaluated`, each round ends with the accuracy and the loss on all test
images.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from torch.nn import functional as F

from contestants.serve import Outcome, Pack, State, Work, serve, timed

NAMES = ("features.1.weight", "features.1.bias", "classifier.weight", "classifier.bias")


class Stack:
    """As many models as there are clients in a round, side by side."""

    def __init__(self, pack: Pack, threads: int = 2) -> None:
        torch.set_num_threads(threads)
        self.pack, self.places = pack, pack.active.shape[1]
        self.x = pack.x.reshape(len(pack.x), -1).contiguous()
        self.start = [pack.state()[name] for name in NAMES]
        shapes = [tuple(tensor.shape) for tensor in self.start]
        if len(pack.state()) != len(NAMES):
            raise ValueError("the stacked loop is for perceptrons with one hidden layer")
        (hidden, size), (classes, _) = shapes[0], shapes[2]
        self.w1, self.b1 = torch.empty(self.places, hidden, size), torch.empty(self.places, 1, hidden)
        self.w2, self.b2 = torch.empty(self.places, classes, hidden), torch.empty(self.places, 1, classes)

    def spread(self, state: list[Tensor]) -> None:
        for held, tensor in zip((self.w1, self.b1, self.w2, self.b2), state, strict=True):
            held.copy_(tensor if tensor.dim() == 2 else tensor[None])

    def mean(self) -> list[Tensor]:
        return [held.mean(0).squeeze(0) for held in (self.w1, self.b1, self.w2, self.b2)]

    def step(self, rows: Tensor, lr: float) -> None:
        """One step of all clients; `rows` is (place, sample)."""
        x, y = self.x.index_select(0, rows.reshape(-1)).view(*rows.shape, -1), self.pack.y[rows]
        hidden = torch.baddbmm(self.b1, x, self.w1.mT).relu_()
        delta = torch.softmax(torch.baddbmm(self.b2, hidden, self.w2.mT), 2)
        delta.scatter_add_(2, y.unsqueeze(2), delta.new_full((1, 1, 1), -1.0).expand(*y.shape, 1))
        rate = -lr / rows.shape[1]
        back = torch.bmm(delta, self.w2).mul_(hidden > 0)
        self.w2.baddbmm_(delta.mT, hidden, alpha=rate)
        self.b2.add_(delta.sum(1, keepdim=True), alpha=rate)
        self.w1.baddbmm_(back.mT, x, alpha=rate)
        self.b1.add_(back.sum(1, keepdim=True), alpha=rate)


def scores(state: list[Tensor], x: Tensor, y: Tensor) -> tuple[float, float]:
    """Accuracy and loss."""
    w1, b1, w2, b2 = state
    logits = F.linear(F.linear(x, w1, b1).relu_(), w2, b2)
    return float((logits.argmax(1) == y).double().mean()), float(F.cross_entropy(logits, y))


def prepare(pack: Pack, evaluated: str = "") -> Work:
    stack, about = Stack(pack), pack.about
    x_test, y_test = pack.tensor("x_test").flatten(1).contiguous(), pack.tensor("y_test")

    @torch.no_grad()
    def rounds(count: int) -> State:
        state = stack.start
        for number in range(count):
            stack.spread(state)
            epochs = torch.from_numpy(pack.orders[number])  # (place, epoch, step)
            for epoch in range(epochs.shape[1]):
                for rows in torch.split(epochs[:, epoch], about["batch"], dim=1):
                    stack.step(rows, about["lr"])
            state = stack.mean()
            if evaluated:
                scores(state, x_test, y_test)
        return dict(zip(NAMES, state, strict=True))

    def work(count: int) -> Outcome:
        return timed(max(1, count), lambda: rounds(max(1, count)))

    return work


if __name__ == "__main__":
    serve(lambda pack: prepare(pack, *sys.argv[2:]))
