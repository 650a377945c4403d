"""Two worker processes of one thread each, as somebody who tunes a loop by hand would have them.

Models lie in shared memory as flat vectors, images with the channel last; each worker has one module whose parameters
and gradients are views of one vector, and takes the next task as soon as it is free. How memory is allocated follows
from the environment that the driver starts the contestant with (`contest.ALLOCATOR`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn import functional as F

from contestants.nets import folded
from contestants.serve import Pack, State


class Flat:
    """A module over one vector: what is trained first, then float buffers."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        parts = [*net.named_parameters(), *((n, b) for n, b in net.named_buffers() if b.is_floating_point())]
        self.names = [(name, part.shape) for name, part in parts]
        self.trained = sum(p.numel() for p in net.parameters())
        self.vector = torch.cat([part.detach().reshape(-1) for _, part in parts])
        self.weights = nn.Parameter(self.vector[: self.trained])
        self.weights.grad = torch.zeros(self.trained)
        at = 0
        for name, part in parts:
            view = self.vector[at : at + part.numel()].view(part.shape)
            if isinstance(part, nn.Parameter):
                part.data, part.grad = view, self.weights.grad[at : at + part.numel()].view(part.shape)
            else:
                owner, _, leaf = name.rpartition(".")
                net.get_submodule(owner)._buffers[leaf] = view
            at += part.numel()

    def vector_of(self, state: State) -> Tensor:
        return torch.cat([state[name].reshape(-1) for name, _ in self.names])

    def state(self, vector: Tensor) -> State:
        """A vector by name, beside what is not in it."""
        pieces = torch.split(vector, [shape.numel() for _, shape in self.names])
        named = {name: piece.view(shape) for (name, shape), piece in zip(self.names, pieces, strict=True)}
        return self.net.state_dict() | named


class Worker:
    """What one process can do; tasks are named by the method and carry plain numbers and arrays."""

    def __init__(self, pack: Pack, x: Tensor, models: Tensor, outputs: Tensor) -> None:
        self.pack, self.x, self.models, self.outputs = pack, x, models, outputs
        self.flat = Flat(pack.net())
        self.about = pack.about

    def inputs(self, rows: Any) -> Tensor:
        x = self.x[rows]
        return x.permute(0, 3, 1, 2) if self.about["model"]["name"] != "mlp" else x  # how channels-last images lie

    def _descend(self, orders: Tensor, loss_of: Any) -> None:
        optimizer, grad = self.pack.optimizer([self.flat.weights], fused=True), self.flat.weights.grad
        self.flat.net.train()
        for order in orders:
            for batch in torch.split(order, self.about["batch"]):
                grad.zero_()
                loss_of(batch).backward()
                optimizer.step()

    def train(self, source: int, target: int, orders: np.ndarray) -> None:
        """From one model to another by true labels; `orders` is (epoch, step) → row."""
        self.flat.vector.copy_(self.models[source])
        y = self.pack.y
        self._descend(torch.from_numpy(orders), lambda b: F.cross_entropy(self.flat.net(self.inputs(b)), y[b]))
        self.models[target].copy_(self.flat.vector)

    @torch.no_grad()
    def ask(self, source: int, target: int, rows: np.ndarray) -> None:
        """A teacher's probabilities for all rows, each once, with batch norm folded into the convolutions."""
        self.flat.vector.copy_(self.models[source])
        net = folded(self.flat.net.eval())
        at = 0
        for part in torch.split(torch.from_numpy(rows), 64):
            self.outputs[target, at : at + len(part)] = torch.softmax(net(self.inputs(part)), 1)
            at += len(part)

    def distil(self, source: int, target: int, teachers: list[int], rows: np.ndarray, orders: np.ndarray) -> None:
        """A student from what its teachers said about these rows; `orders` counts within them."""
        self.flat.vector.copy_(self.models[source])
        probs = self.outputs[teachers, : len(rows)].mean(0)
        x = self.inputs(torch.from_numpy(rows))

        def loss_of(batch: Tensor) -> Tensor:
            return -(probs[batch] * torch.log_softmax(self.flat.net(x[batch]), 1)).sum(1).mean()

        self._descend(torch.from_numpy(orders), loss_of)
        self.models[target].copy_(self.flat.vector)

    def teach(self, source: int, target: int, teachers: list[int], rows: np.ndarray, orders: np.ndarray) -> None:
        """Teachers and student one after the other in one process."""
        for teacher in teachers:
            self.ask(teacher, teacher, rows)
        self.distil(source, target, teachers, rows, orders)


def _live(pipe: Any, following: Any, given: tuple[Any, ...], threads: int) -> None:
    torch.set_num_threads(threads)
    worker = Worker(*given)
    pipe.send(None)
    while True:
        try:
            tasks = pipe.recv()
        except EOFError:  # the contestant is gone
            return
        while True:
            with following.get_lock():
                mine = following.value
                following.value += 1
            if mine >= len(tasks):
                break
            name, *inputs = tasks[mine]
            getattr(worker, name)(*inputs)
        pipe.send(None)


class Crew:
    """Models `0 … slots - 1` in shared memory, and those who work on them."""

    def __init__(self, pack: Pack, slots: int, rows: int = 0, threads: tuple[int, ...] = (1, 1)) -> None:
        x = pack.x.permute(0, 2, 3, 1).contiguous() if pack.about["model"]["name"] != "mlp" else pack.x.clone()
        self.flat = Flat(pack.net())
        self.start = self.flat.vector.clone()
        self.models = torch.zeros(slots, len(self.start)).share_memory_()
        self.outputs = torch.zeros(slots if rows else 0, rows, pack.about["classes"]).share_memory_()
        given = (pack.without("x", "x_test", "orders"), x.share_memory_(), self.models, self.outputs)
        context = mp.get_context("spawn")
        self._following = context.Value("i", 0)
        self._pipes, self._processes = [], []
        for each in threads:
            ours, theirs = context.Pipe()
            process = context.Process(target=_live, args=(theirs, self._following, given, each), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        self._heard()

    def do(self, tasks: list[tuple[Any, ...]]) -> None:
        """All of them, the first ones first; waits."""
        self._following.value = 0
        for pipe in self._pipes:
            pipe.send(tasks)
        self._heard()

    def mean(self, slots: slice) -> Tensor:
        return self.models[slots].mean(0)

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
            process.join()

    def _heard(self) -> None:
        for pipe in self._pipes:
            pipe.recv()
