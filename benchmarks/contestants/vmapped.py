"""All clients of a round as one computation, which torch's `vmap` makes of one client's. For nets without buffers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from contestants.serve import Outcome, Pack, State, Work, serve, timed


def prepare(pack: Pack) -> Work:
    torch.set_num_threads(2)
    about, net = pack.about, pack.net()

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(net, weights, (x,)), y)

    slopes_of = vmap(grad(loss))

    @torch.no_grad()
    def rounds(count: int) -> State:
        state = pack.state()
        for number in range(count):
            orders = torch.from_numpy(pack.orders[number])  # (place, epoch, step)
            weights = {name: tensor.expand(len(orders), *tensor.shape).clone() for name, tensor in state.items()}
            for epoch in range(orders.shape[1]):
                for rows in torch.split(orders[:, epoch], about["batch"], dim=1):
                    slopes = slopes_of(weights, pack.x[rows], pack.y[rows])
                    for name, weight in weights.items():
                        weight.sub_(slopes[name], alpha=about["lr"])
            state = {name: weight.mean(0) for name, weight in weights.items()}
        return state

    def work(count: int) -> Outcome:
        return timed(max(1, count), lambda: rounds(max(1, count)))

    return work


if __name__ == "__main__":
    serve(prepare)
