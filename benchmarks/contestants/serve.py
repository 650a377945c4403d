"""What contestants have in common: the pack that all of them work on, and how they speak with the driver.

A contestant loads the pack, prepares itself, does the work once in small to warm up and says `ready`. At each `go` it
does the work and answers with the seconds and the CPU seconds a round and the memory that it holds. The accuracy is
computed after the first time, the same way for all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from contestants import nets
from contestants.usage import Meter, held

MARK = "@@"  # before every line that is meant for the driver
State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Pack:
    """The same images, split, batches in the same order and weights for everybody."""

    arrays: Mapping[str, np.ndarray]
    about: dict[str, Any]  # model, shape, classes, rounds, batch, optimizer, lr and the library's configuration

    @staticmethod
    def load(path: str | Path) -> Pack:
        with np.load(path) as found:
            arrays = {name: found[name] for name in found.files}
        return Pack(arrays, json.loads(str(arrays.pop("about"))))

    def without(self, *names: str) -> Pack:
        """What is sent to a process that has these arrays already."""
        return Pack({name: array for name, array in self.arrays.items() if name not in names}, self.about)

    def tensor(self, name: str) -> Tensor:
        return torch.from_numpy(self.arrays[name])

    @cached_property
    def x(self) -> Tensor:
        return self.tensor("x")

    @cached_property
    def y(self) -> Tensor:
        return self.tensor("y")

    @property
    def active(self) -> np.ndarray:
        """(round, place): the client's number."""
        return self.arrays["active"]

    @property
    def orders(self) -> np.ndarray:
        """(round, place, epoch, step): rows of the training set in the order in which the client meets them."""
        return self.arrays["orders"]

    def state(self, name: str = "model") -> dict[str, Tensor]:
        """A model's weights by name."""
        start = f"{name}/"
        return {key.removeprefix(start): self.tensor(key) for key in self.arrays if key.startswith(start)}

    def net(self, name: str = "model") -> nn.Module:
        made = nets.build(self.about["model"], tuple(self.about["shape"]), self.about["classes"])
        made.load_state_dict(self.state(name))
        return made

    def optimizer(self, parameters: Iterable[nn.Parameter], **options: Any) -> torch.optim.Optimizer:
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[self.about["optimizer"]]
        return kind(parameters, lr=self.about["lr"], **options)

    def accuracy(self, state: State) -> float:
        net = self.net()
        net.load_state_dict(dict(state))
        net.eval()
        x, y = self.tensor("x_test"), self.tensor("y_test")
        with torch.no_grad():
            hits = sum(int((net(x[i : i + 128]).argmax(1) == y[i : i + 128]).sum()) for i in range(0, len(x), 128))
        return hits / len(y)


@dataclass(frozen=True)
class Outcome:
    seconds: float  # a round
    state: State
    more: dict[str, Any] = field(default_factory=dict)


Work = Callable[[int], Outcome]  # so many rounds, from the start; 0 means a little of it, to warm up


def timed(rounds: int, run: Callable[[], State]) -> Outcome:
    meter = Meter()
    meter.start()
    state = run()
    meter.stop()
    return measured(meter, rounds, state)


def measured(meter: Meter, rounds: int, state: State, **more: Any) -> Outcome:
    return Outcome(meter.seconds / rounds, state, {"cpu_seconds": meter.cpu / rounds} | more)


def say(**facts: Any) -> None:
    print(MARK, json.dumps(facts), flush=True)


def serve(prepare: Callable[[Pack], Work]) -> None:
    """The life of a contestant; the pack's path is its first argument."""
    pack = Pack.load(sys.argv[1])
    work = prepare(pack)
    work(0)
    say(ready=True)
    judged: dict[str, float] = {}
    for line in sys.stdin:
        if line.strip() != "go":
            break
        found, memory = work(pack.about["rounds"]), held()
        if not judged:  # the same work gives the same model each time
            judged = {"accuracy": pack.accuracy(found.state)}
        say(seconds=found.seconds, **judged, **found.more, **memory)
