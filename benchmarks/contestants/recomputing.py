"""Distillation as it is often written: all teachers are asked again at every step. Two threads."""

from __future__ import annotations

import torch

from contestants.serve import Outcome, Pack, State, Work, serve, timed


def prepare(pack: Pack) -> Work:
    torch.set_num_threads(2)
    about = pack.about
    teachers = [pack.net(f"teacher{i}").eval() for i in range(about["teachers"])]
    orders = pack.tensor("orders")

    def taught(epochs: torch.Tensor) -> State:
        student = pack.net()
        student.train()
        optimizer = pack.optimizer(student.parameters())
        for order in epochs:
            for batch in torch.split(order, about["batch"]):
                x = pack.x[batch]
                with torch.no_grad():
                    probs = torch.stack([torch.softmax(teacher(x), 1) for teacher in teachers]).mean(0)
                optimizer.zero_grad()
                loss = -(probs * torch.log_softmax(student(x), 1)).sum(1).mean()
                loss.backward()
                optimizer.step()
        return student.state_dict()

    def work(rounds: int) -> Outcome:  # an epoch takes long here, so warming up is a single step
        return timed(1, lambda: taught(orders if rounds else orders[:1, : about["batch"]]))

    return work


if __name__ == "__main__":
    serve(prepare)
