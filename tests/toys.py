"""Models of two numbers, data of a few rows, and a federation around them: what the tests compute by hand with.

`Lab` drives a real method through a real Federation on the inline engine; `tiny_run` drives the whole training loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwater.config import Config, catalog
from headwater.core.federation import SERVER, Federation, Session
from headwater.core.ledger import Ledger
from headwater.core.params import Params
from headwater.core.tree import Tree
from headwater.data.base import Data, Examples
from headwater.data.split import Split
from headwater.engines.base import Done
from headwater.engines.inline import Inline
from headwater.models.base import ModelSpec, Net
from headwater.partition.partition import Partition
from headwater.tasks.average import initial
from headwater.tasks.task import RunContext, TaskContext
from headwater.training.experiment import Experiment, prepare
from headwater.training.loop import train
from headwater.training.opening import run_context
from headwater.training.result import Run

ARCH = "toy"
TESTED = os.environ.get("HEADWATER_TEST_ENGINES", "inline pool").split()  # engines that the contract is tested on
Maker = Callable[[], nn.Module]


# -- models


class Slopes(nn.Module):
    """Softmax over (w_0 · x, w_1 · x) for a single number x: P(class 0) is the logistic function of (w_0 − w_1) · x."""

    def __init__(self, start: tuple[float, float] = (0.0, 0.0)) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


class Bowl(nn.Module):
    """½ (w − b)ᵀ A (w − b) for rows (A_00, A_01, A_10, A_11, b_0, b_1): the mean over a client's rows is its loss."""

    def __init__(self, start: tuple[float, float] = (0.0, 0.0)) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        away = self.w - x[:, 4:]
        return 0.5 * torch.einsum("ni,nij,nj->n", away, x[:, :4].view(-1, 2, 2), away)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs.mean()


def linear(features: int = 3, classes: int = 3) -> nn.Module:
    return nn.Linear(features, classes, dtype=torch.float64)


def net(features: int = 3, classes: int = 3) -> nn.Module:
    """Not linear, and without batch norm."""
    layers = (nn.Linear(features, 4, dtype=torch.float64), nn.Tanh(), nn.Linear(4, classes, dtype=torch.float64))
    return nn.Sequential(*layers)


def normed(features: int = 3, classes: int = 3) -> nn.Module:
    """With batch norm, as networks have it."""
    return Net(nn.Sequential(nn.Linear(features, 4), nn.BatchNorm1d(4), nn.ReLU()), nn.Linear(4, classes))


# -- data


def points(*rows: tuple[float, int]) -> Examples:
    """Rows (x, label) for `Slopes`."""
    return Examples(
        torch.tensor([[x] for x, _ in rows], dtype=torch.float64), torch.tensor([y for _, y in rows], dtype=torch.int64)
    )


def bowl(curvature: Any, centre: Any, rows: int) -> Examples:
    """So many equal rows for `Bowl`."""
    row = np.concatenate([np.asarray(curvature, float).reshape(-1), np.asarray(centre, float)])
    return Examples(torch.tensor(np.tile(row, (rows, 1))), torch.zeros(rows, dtype=torch.int64))


def blobs(
    rows: int, seed: int = 0, features: int = 3, classes: int = 3, dtype: torch.dtype = torch.float64
) -> Examples:
    """Classes that overlap a little."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=rows)
    centres = 1.5 * np.eye(classes, features)
    return Examples(torch.tensor(rng.normal(size=(rows, features)) + centres[y], dtype=dtype), torch.tensor(y))


def join(parts: Sequence[Examples]) -> Examples:
    return Examples(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]))


# -- a federation by hand


def context(
    clients: Sequence[Examples],
    maker: Maker,
    *,
    validation: Examples | None = None,
    reference: Tensor | None = None,
    classes: int = 2,
    seed: int = 0,
    buffers: str = "average",
) -> RunContext:
    train_set = join(clients)
    nothing = train_set.take([])
    ends = np.cumsum([0, *map(len, clients)])
    rows = {f"c{i}": np.arange(ends[i], ends[i + 1]) for i in range(len(clients))}
    split = Split(
        train_set,
        validation if validation is not None else nothing,
        reference if reference is not None else nothing.x,
        train_set,
        classes,
        tuple(train_set.x.shape[1:]),
        "toy",
    )
    spec = ModelSpec(ARCH, split.shape, classes, builder=maker, buffers=buffers)
    return RunContext(split, rows, {}, {ARCH: spec}, seed)


def ctx(around: RunContext, home: str = "c0") -> TaskContext:
    return TaskContext(around, home, (1, "test", 0, home))


def params(module: nn.Module, weight: float = 1.0) -> Params:
    return Params.of(module, ARCH, weight=weight)


class Lab:
    """A method at work: `state` after `init` and after each `round`."""

    def __init__(self, method: Any, around: RunContext, tree: Tree, dropout: float = 0.0, width: int = 1) -> None:
        self.method, self.context, self.tree = method, around, tree
        self.engine = Inline()
        self.engine.start(around)
        self.done: list[Done] = []
        self.engine.watch = self.done.append
        session = Session(self.engine, Ledger(), around.seed, dropout=dropout, width=width)
        self.fed = Federation(tree, session, tree.holders, purpose="setup")
        self.state = method.init(self.fed, self.fed.run(initial, at=SERVER, arch=next(iter(around.models))))
        self.fed.keep(self.state)

    def round(self, number: int = 1, clients: tuple[str, ...] | None = None) -> Lab:
        self.fed = self.fed.begin(number, clients or self.tree.holders)
        self.state = self.method.round(self.fed, self.state)
        self.fed.keep(self.state)
        return self

    @property
    def ledger(self) -> Ledger:
        return self.fed.session.ledger

    @property
    def model(self) -> Params:
        found = self.fed.read(self.state.model)
        assert isinstance(found, Params)
        return found

    @property
    def vector(self) -> Tensor:
        return self.model.vector

    def personal(self) -> dict[str, Params]:
        whole = self.fed.whole.with_purpose("export")
        found: dict[str, Params] = whole.read(whole.up(self.state.personal, to=SERVER))
        return found

    def notes(self, title: str) -> dict[str, Mapping[str, float]]:
        """What the tasks of this name noted, by node."""
        return {node: notes for done in self.done if done.title == title for node, notes in done.notes.items()}

    def close(self) -> None:
        self.engine.close()


@contextmanager
def lab(
    method: Any,
    clients: Sequence[Examples],
    sectors: Sequence[int],
    maker: Maker,
    *,
    dropout: float = 0.0,
    **around: Any,
) -> Iterator[Lab]:
    """A method with clients that hold these rows, in these sectors."""
    tree = Tree.of([len(rows) for rows in clients], sectors, (ARCH,))
    made = Lab(method, context(clients, maker, **around), tree, dropout)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def lab_of(experiment: Experiment) -> Iterator[Lab]:
    dropout, width = experiment.config.faults.dropout, experiment.stacking.width
    made = Lab(experiment.method, run_context(experiment), experiment.tree, dropout, width)
    try:
        yield made
    finally:
        made.close()


def play(
    method: Any, clients: Sequence[Examples], sectors: Sequence[int], maker: Maker, rounds: int = 1, **options: Any
) -> Params:
    """The global model after some rounds."""
    with lab(method, clients, sectors, maker, **options) as made:
        for number in range(1, rounds + 1):
            made.round(number)
        found: Params = made.model
        return found


def gap(a: Params | Tensor, b: Params | Tensor) -> float:
    """The largest difference between two models."""
    first, second = (m.vector if isinstance(m, Params) else m for m in (a, b))
    return float((first - second).abs().max())


# -- a whole run on small arrays


def rate(before: Tensor, after: Tensor, grad: Tensor) -> float:
    """The learning rate of a plain step of descent, from what it did."""
    return float((before - after) @ grad / (grad @ grad))


def tiny_data(rows: int = 90, classes: int = 3, seed: int = 0, absent: int = 0) -> Data:
    """Flat features of `classes` classes; the last `absent` of them have a name but no sample."""
    made = blobs(rows, seed, features=4, classes=classes - absent, dtype=torch.float32)
    test = blobs(40, seed + 1, features=4, classes=classes - absent, dtype=torch.float32)
    return Data(made.x, made.y, test.x, test.y, class_names=[f"class {i}" for i in range(classes)])


def tiny(
    method: str,
    *,
    arrays: Data | None = None,
    model: Maker | None = None,
    net: dict[str, Any] | None = None,
    sizes: Any = None,
    **sections: Any,
) -> Experiment:
    """A small experiment. Keywords are sections of the configuration, of which those are taken that the method has.

    `net` has further keys of [model]. `sizes` = (rows of each client, sector of each) sets the tree by hand.
    """
    base: dict[str, Any] = {
        "rounds": 2,
        "data": {"name": "arrays"},
        "partition": {"clients": 5, "sectors": 2, "scheme": "iid"},
        "model": ({"name": "mlp", "hidden": [4]} if model is None else {"name": "custom"}) | (net or {}),
        "engine": {"name": "inline"},
        "local": {"epochs": 1, "batch": 8},
        "sector": {"epochs": 2, "batch": 8},
        "server": {"epochs": 2, "batch": 8},
    }
    stages = catalog.stages(method)
    base = {k: v for k, v in base.items() if k not in catalog.STAGES or k in stages}
    for name, section in sections.items():
        if name not in catalog.STAGES or name in stages:
            base[name] = {**base.get(name, {}), **section} if isinstance(section, dict) else section
    base["algorithm"] = {"name": method, **base.get("algorithm", {})}
    made = prepare(Config(**base), data=arrays if arrays is not None else tiny_data(), model=model)
    return made if sizes is None else arranged(made, *sizes)


def arranged(experiment: Experiment, sizes: Sequence[int], sectors: Sequence[int]) -> Experiment:
    """The same experiment with clients of these sizes in these sectors."""
    ends = np.cumsum([0, *sizes])
    assert ends[-1] <= len(experiment.split.train)
    indices = [np.arange(ends[i], ends[i + 1]) for i in range(len(sizes))]
    return replace(
        experiment,
        partition=Partition(tuple(indices), tuple(sectors)),
        tree=Tree.of(sizes, sectors, experiment.tree.archs),
        rows={f"c{i}": rows for i, rows in enumerate(indices)},
        test_rows={f"c{i}": rows[:0] for i, rows in enumerate(indices)},
    )


def tiny_run(method: str, **options: Any) -> Run:
    return train(tiny(method, **options))
