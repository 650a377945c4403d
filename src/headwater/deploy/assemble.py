"""What each party makes of the federation's description and of what it holds itself: an experiment like a simulated
one, but with its own data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headwater.algorithms import ALGORITHMS
from headwater.config import Config, method_from, spec_from
from headwater.config.catalog import stage_fields
from headwater.core.lazy_clients import number_of
from headwater.core.tree import Tree
from headwater.data.base import Examples, Split
from headwater.partition.base import Partition
from headwater.partition.rows import OwnRows
from headwater.specs import DistillSpec, LocalSpec
from headwater.tasks.task import RunContext
from headwater.training.experiment import Experiment, specs_of
from headwater.training.loop import context_of

if TYPE_CHECKING:
    from headwater.deploy.folder import Federated

STAGES: dict[str, Any] = {"local": LocalSpec, "sector": DistillSpec, "server": DistillSpec}


@dataclass(frozen=True)
class Deployed(Experiment):
    """What the server knows of a federation: nobody's rows, but how many each client has."""

    def manifest(self) -> dict[str, Any]:
        held = {key: value for key, value in self.partition.manifest().items() if key != "indices"}
        return held | {"sizes": list(self.partition.sizes), "classes": list(self.class_names)}


def nobodys(described: Federated) -> Split:
    """A split without any rows."""
    shape, words = tuple(described.shape), described.words
    x = torch.zeros((0, *shape), dtype=torch.float32 if words is None else torch.int64)
    empty = Examples(x, torch.zeros(0, dtype=torch.int64))
    name = described.config.data.name
    return Split(empty, empty, x, empty, described.classes, shape, name, words=words)


def with_public(described: Federated, public: Mapping[str, Any]) -> Split:
    """The server's: the sets that are public, and no client's."""
    own = {key: public[key] for key in ("validation", "reference", "reference_labels", "test")}
    return replace(nobodys(described), **own)


def experiment(described: Federated, split: Split, sizes: Mapping[str, int]) -> Deployed:
    """`sizes` are those that clients told; who told none has no part in the run."""
    config: Config = described.config.merged({"engine": {"overlap": False}})
    kind = ALGORITHMS.load(config.method)
    spec, others = specs_of(config, kind, split, None)
    lengths, sectors = _numbers(described, sizes)
    ends = np.cumsum(lengths)
    indices = tuple(np.arange(end - size, end) for end, size in zip(ends, lengths, strict=True))
    tree = Tree.of(lengths, sectors, (spec.name, *(other.name for other in others)))
    stages = {
        stage: spec_from(stage, STAGES[stage], getattr(config, stage))
        for stage in STAGES
        if stage in stage_fields(kind)
    }
    method = method_from(kind, config.algorithm, stages)
    partition = Partition(indices, sectors)
    names = tuple(described.class_names)
    return Deployed(config, split, partition, tree, spec, method, {}, {}, names, others)


def _numbers(described: Federated, sizes: Mapping[str, int]) -> tuple[np.ndarray, tuple[int, ...]]:
    """Size and sector of every client by number. Those without data were left out, and make up whole sectors if these
    were too: a method may count them."""
    known = {client: int(sector[1:]) for sector, team in described.sectors.items() for client in team}
    count = max(described.config.partition.clients, 1 + max(int(client[1:]) for client in known))
    gone = [number for number in range(max(known.values()) + 1) if f"s{number}" not in described.sectors]
    sectors = [known[f"c{n}"] if f"c{n}" in known else gone.pop() if gone else 0 for n in range(count)]
    return np.array([sizes.get(f"c{n}", 0) for n in range(count)], dtype=np.int64), tuple(sectors)


def server_context(made: Deployed) -> RunContext:
    return context_of(made)


def host_context(described: Federated) -> RunContext:
    """A sector's host has no data."""
    return context_of(experiment(described, nobodys(described), _alike(described)))


def client_context(described: Federated, name: str, data: Examples) -> RunContext:
    """A client has its own rows, some of which it may keep for a test of its own."""
    made = experiment(described, replace(nobodys(described), train=data), _alike(described))
    number = number_of(name, 1 << 40) or 0
    every = tuple(np.arange(len(data) if at == number else 0) for at in range(number + 1))
    share, seed = made.config.partition.local_test, made.config.seed
    own, test = (OwnRows(every, share, seed, test=test)[name] for test in (False, True))
    return replace(context_of(made), rows={name: own}, test_rows={name: test})


def _alike(described: Federated) -> dict[str, int]:
    """Sizes for whoever needs none: a tree without anybody is no tree."""
    return {client: 1 for team in described.sectors.values() for client in team}
