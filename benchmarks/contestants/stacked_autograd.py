"""The stacked loop as a researcher writes it who knows batched products: `baddbmm`, autograd, and a step by hand."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from contestants.serve import Outcome, Pack, State, Work, serve, timed
from contestants.stacked import NAMES


def prepare(pack: Pack) -> Work:
    torch.set_num_threads(2)
    about, table = pack.about, pack.x.reshape(len(pack.x), -1).contiguous()

    def step(weights: list[Tensor], rows: Tensor) -> None:
        w1, b1, w2, b2 = weights
        hidden = torch.baddbmm(b1.unsqueeze(1), table[rows], w1.mT).relu()
        output = torch.baddbmm(b2.unsqueeze(1), hidden, w2.mT)
        loss = F.cross_entropy(output.flatten(0, 1), pack.y[rows].flatten(), reduction="sum") / rows.shape[1]
        for weight, slope in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.data.sub_(slope, alpha=about["lr"])

    def rounds(count: int) -> State:
        state = [pack.state()[name] for name in NAMES]
        for number in range(count):
            orders = torch.from_numpy(pack.orders[number])  # (place, epoch, step)
            weights = [tensor.expand(len(orders), *tensor.shape).clone().requires_grad_() for tensor in state]
            for epoch in range(orders.shape[1]):
                for rows in torch.split(orders[:, epoch], about["batch"], dim=1):
                    step(weights, rows)
            state = [weight.detach().mean(0) for weight in weights]
        return dict(zip(NAMES, state, strict=True))

    def work(count: int) -> Outcome:
        return timed(max(1, count), lambda: rounds(max(1, count)))

    return work


if __name__ == "__main__":
    serve(prepare)
