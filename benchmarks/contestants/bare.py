"""Federated averaging as a researcher writes it: two threads, a DataLoader for each client, state dicts by key."""

from __future__ import annotations

import copy

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from contestants.serve import Outcome, Pack, State, Work, serve, timed


def prepare(pack: Pack) -> Work:
    torch.set_num_threads(2)
    data = TensorDataset(pack.x, pack.y)
    about = pack.about

    def train(model: torch.nn.Module, orders: list[list[int]]) -> State:
        model.train()
        optimizer = pack.optimizer(model.parameters())
        for order in orders:  # a sampler in place of shuffle=True, so that everybody meets the same batches
            for x, y in DataLoader(data, batch_size=about["batch"], sampler=order):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
        return model.state_dict()

    def rounds(count: int) -> State:
        model = pack.net()
        for number in range(count):
            states = [train(copy.deepcopy(model), orders.tolist()) for orders in pack.orders[number]]
            model.load_state_dict({key: sum(state[key] for state in states) / len(states) for key in states[0]})
        return model.state_dict()

    def work(count: int) -> Outcome:
        return timed(max(1, count), lambda: rounds(max(1, count)))

    return work


if __name__ == "__main__":
    serve(prepare)
