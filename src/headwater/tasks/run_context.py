"""What a process needs to run the tasks of any home: data, models, seed and device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from headwater.core.params import Params
from headwater.core.rng import derive
from headwater.core.serialization import aligned
from headwater.data.base import Examples
from headwater.data.split import Split
from headwater.models.base import ModelSpec
from headwater.tasks.attack import Attack
from headwater.tasks.batched.threads import Helpers
from headwater.tasks.device_memory import RowCache
from headwater.tasks.devices import CPU
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.frozen_part import FrozenParts
from headwater.tasks.privacy import Privacy
from headwater.tasks.robust import Robust

ALONE = "loop"  # the way of training in which every client is computed by itself


@dataclass
class RunContext:
    """All that a process needs to run the tasks of any home. Never changed after it is made.

    Args:
        split: the data: training, validation, test and reference set.
        rows: client → its rows of the training set.
        test_rows: client → rows that it keeps for a test of its own.
        models: architecture → how to build its model.
        seed: seed of the run.
        method: name of the method, for messages.
        bad_update: what happens to a result that is not finite: "drop" or "stop".
        causes: phase → settings that may have caused such a result, for messages.
        stack: how models of clients are trained: a way of `tasks.batched.policy`.
        server_threads: threads of a student that is trained at the server; 0: as many as any task has.
        availability: share of the time during which a client can begin a task (simulated).
        period: seconds from one arrival of a client to the next (simulated).
        sector_of: client → its sector, for engines that place work; tasks do not see it.
        secret: known to this party alone, where noise has to hide something from the others.
        party: whether this process is a party of its own, whose keys nobody else may be able to repeat.
        helpers: threads of this process, for parts of a task that do not depend on each other.
        start: architecture → the model that the run starts from; others are drawn.
        device: where tasks compute. Values outside of tasks are in the memory of the host.
        precision: of forward passes, "float32" or "bfloat16".
        device_memory: megabytes of rows that stay on the device; 0 for a quarter of its memory.
        robust: how models and teachers are combined at sectors, and at the server.
        attack: a simulated attack.
        privacy: what protects clients and their rows.
        frozen: what models never change, which is no part of them.
    """

    split: Split
    rows: Mapping[str, np.ndarray]
    test_rows: Mapping[str, np.ndarray]
    models: Mapping[str, ModelSpec]
    seed: int
    method: str = ""
    bad_update: str = "drop"
    causes: Mapping[str, str] = field(default_factory=dict)
    stack: str = ALONE
    server_threads: int = 0
    availability: float = 1.0
    period: float = 10.0
    sector_of: Mapping[str, str] = field(default_factory=dict)
    secret: str = ""
    party: bool = False
    helpers: Helpers | None = None
    start: Mapping[str, Params] = field(default_factory=dict)
    device: torch.device = CPU
    precision: str = "float32"
    device_memory: float = 0.0
    robust: tuple[Robust, Robust] = (Robust(), Robust())
    attack: Attack | None = None
    privacy: Privacy = field(default_factory=Privacy)
    frozen: FrozenParts = field(default_factory=FrozenParts)
    _flat_modules: dict[tuple[str, int], FlatModule] = field(default_factory=dict)
    _cache: dict[Hashable, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Align the data in memory as on every other engine, since kernels may round by where their operands lie."""
        split, moved = self.split, dict[str, Any]()
        for name in ("train", "validation", "test"):
            rows: Examples = getattr(split, name)
            if (x := aligned(rows.x)) is not rows.x:
                moved[name] = Examples(x, rows.y)
        if (reference := aligned(split.reference)) is not split.reference:
            moved["reference"] = reference
        if moved:
            self.split = replace(split, **moved)
        self.on_host = self.device == CPU

    @cached_property
    def device_rows(self) -> RowCache:
        """Rows of this process that are on the device."""
        return RowCache(self.device, int(self.device_memory * 2**20))

    def put(self, value: Any) -> Any:
        """A value where tasks compute."""
        return value if self.on_host else self.device_rows.put(value)

    def rows_of(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Rows where tasks compute; `key` names them."""
        return make() if self.on_host else self.device_rows.get(key, make)

    def flat_module(self, arch: str, slot: int) -> FlatModule:
        """The module of an architecture, one per process; `slot` distinguishes several that are used at once."""
        if (arch, slot) not in self._flat_modules:
            frozen = self.frozen.of(self.models[arch], arch, self.seed)
            self._flat_modules[arch, slot] = FlatModule(self.models[arch], arch, self.device, self.precision, frozen)
        return self._flat_modules[arch, slot]

    def initial(self, arch: str, number: int) -> Params:
        """The model that the run starts from (number 0), or a freshly drawn one; each number gives another one."""
        if not number and arch in self.start:
            return self.start[arch]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(self.seed, "model", arch, *((number,) if number else ())))
            return Params.of(self.models[arch].build(), arch, self.models[arch].buffers, weight=0.0)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_flat_modules": {}, "_cache": {}, "sector_of": {}, "helpers": None}
        state.pop("device_rows", None)
        return state
