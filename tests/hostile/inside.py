"""Runs small experiments on every engine with the hostile library, and tells what each gave; one line of JSON a run.

A program of its own: test_hostile.py starts it with the environment that makes it and all its workers hostile. It takes
a list of tests (method, net) and a list of places where each is carried out, as JSON.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import toys
from headwater.core import submission
from headwater.data.base import Data
from headwater.engines.inline import Inline
from headwater.engines.jobs import Job, Ref
from headwater.engines.pool import Pool
from headwater.engines.workers import spill_cache
from headwater.errors import ConfigError
from headwater.tasks.batched import policy
from headwater.tasks.task import TaskContext, task
from headwater.training import checkpoint, opening
from headwater.training.experiment import Experiment
from headwater.training.loop import Event, train
from headwater.training.result import Run

LITTLE = 1e-5  # MB: ten bytes, so that everything waits on disk
SIZES = ((9, 14, 5, 1, 8, 12, 11), (0, 1, 0, 0, 1, 1, 0))  # rows of each client, sector of each
# Every optimiser, and everything that is done to a gradient; methods have them in turn, where they can.
STEPS: tuple[dict[str, Any], ...] = (
    {"optimizer": "sgd", "lr": 0.1, "momentum": 0.0},
    {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "clip": 1.0},
    {"optimizer": "adam", "lr": 0.01},
    {"optimizer": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.01, "clip": 0.5},
    {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
)


# -- what is trained


def displaced(x: Tensor) -> Tensor:
    """The same numbers where no allocator would put them: data of one's own may lie anywhere."""
    room = torch.empty(x.numel() + 3, dtype=x.dtype)[3:]
    return room.copy_(x.reshape(-1)).view(x.shape)


def flat() -> Data:
    made, test = (toys.blobs(rows, rows, features=4, dtype=torch.float32) for rows in (90, 31))
    return Data(displaced(made.x), made.y, displaced(test.x), test.y)


def images() -> Data:
    made, test = (toys.blobs(rows, rows, features=50, dtype=torch.float32) for rows in (90, 31))
    shape = (-1, 2, 5, 5)
    return Data(displaced(made.x).view(shape), made.y, displaced(test.x).view(shape), test.y)


def layers() -> nn.Module:
    """No mere row of linear layers, but one that torch can stack by itself."""
    return nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3))


def convolutions() -> nn.Module:
    features = nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
    return toys.Net(features, nn.Linear(27, 3))


@dataclass(frozen=True)
class Net:
    stack: str
    data: Callable[[], Data] = flat
    model: Callable[[], nn.Module] | None = None
    steps: int | None = None  # which of STEPS; else methods have them in turn


NETS = {
    "stacked": Net("on"),  # 35 numbers: no row of a stack but the first would be on a boundary by itself
    "plain": Net("on", steps=0),  # mere descent, which has a way of its own
    "alone": Net("off"),
    "mapped": Net("on", model=layers),
    "normed": Net("off", model=lambda: toys.normed(4)),
    "conv": Net("off", images, convolutions),
    "grouped": Net("on", images, convolutions),
}


def experiment(method: str, net: str, number: int) -> Experiment:
    """Clients of unequal size, of whom some take no part and some are lost."""
    kind = NETS[net]
    first = number if kind.steps is None else kind.steps

    def made(steps: dict[str, Any]) -> Experiment:
        return toys.tiny(
            method,
            arrays=kind.data(),
            model=kind.model,
            sizes=SIZES,
            faults={"dropout": 0.15 if number % 2 else 0.0},
            partition={"participation": 0.8},
            engine={"stack": kind.stack},
            local=steps | {"epochs": 1 + number % 2},
            sector={"epochs": 1},
            server={"epochs": 1},
        )

    for at in range(len(STEPS) - 1):
        with suppress(ConfigError):  # not every method goes with every optimiser
            return made(STEPS[(first + at) % len(STEPS)])
    return made({})


# -- where


class Places:
    """Engines that are opened once and used again."""

    def __init__(self) -> None:
        self._open: dict[str, Any] = {}

    def engine(self, name: str) -> Any:
        """`inline`, `hands-3`, `pool-2`, `ray-2`, each with `-little` where there is hardly any memory."""
        if name not in self._open:
            kind, count, little = (*name.split("-"), "", "")[:3]
            memory = LITTLE if "little" in (count, little) else 0.0
            if kind in ("inline", "hands"):
                self._open[name] = Inline(workers=int(count) if count.isdigit() else 1, memory=memory)
            elif kind == "pool":
                self._open[name] = Pool(int(count), memory=memory)
            else:
                from headwater.engines.ray.driver import Ray

                self._open[name] = Ray(int(count), memory=memory)
        return self._open[name]

    def run(self, made: Experiment, place: str) -> Run:
        """There; `resumed:a:b` begins at `a` and is carried on from its files at `b`."""
        if not place.startswith("resumed:"):
            return train(made, engine=self.engine(place))
        _, first, second = place.split(":")
        folder = Path(tempfile.mkdtemp(prefix="headwater-hostile-"))
        try:
            with suppress(KeyboardInterrupt):
                train(made, engine=self.engine(first), out=folder / "run", watch=interrupt)
                raise AssertionError("nobody interrupted it")
            return train(made, engine=self.engine(second), out=folder / "run")
        finally:
            shutil.rmtree(folder)

    def close(self) -> None:
        for engine in self._open.values():
            engine.close()


def interrupt(event: Event) -> None:
    if event.kind == "round" and event.round == 1:
        raise KeyboardInterrupt


# -- what comes out


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def told(run: Run) -> dict[str, str]:
    """All that a run gives, except times."""
    result = {key: value for key, value in run.result.items() if key not in ("seconds", "model_sha256")}
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in run.history]
    return {"model": run.result["model_sha256"][:16], "rows": digest(rows), "result": digest(result)}


@task("train")
def is_hostile(site: TaskContext) -> bool:
    """Whether whoever carries this out computes with the hostile library."""
    held = sys.modules.get("hostile_library")
    return held is not None and held.active()


def check(engine: Any, made: Experiment) -> bool:
    engine.start(made.context())
    engine.submit(Job("probe", is_hostile, "server", "server", {}, (1, "probe", 0, "server")))
    return bool(engine.read(Ref("probe", "server")))


def main(tests: list[tuple[str, str, int]], at: list[str]) -> None:
    """Every test at every place; one in which nothing is stacked only for the nets that are not to be."""
    checkpoint.PAUSE = 0  # after every round
    spill_cache.SMALL = 1  # these models are so small that none would go to disk
    opening.SMALL = 2100.0  # some small clients share a job, and some do not
    policy.WIDEST = 3  # several stacks, for several threads and workers
    submission.LEAST = 0.0  # models are asked by jobs of their own, as large ones are
    places = Places()
    try:
        for method, net, number in tests:
            try:
                made = experiment(method, net, number)
            except ConfigError:
                if NETS[net].model is None:
                    raise
                continue  # a method may refuse a net of one's own
            if made.stacking.way == "loop" and NETS[net].stack == "on":
                continue  # as "alone" is
            for place in at:
                line: dict[str, Any] = {"method": method, "net": net, "place": place}
                try:
                    if not place.startswith("resumed:") and not getattr(places.engine(place), "checked", False):
                        assert check(places.engine(place), made), f"{place} is not hostile"
                        places.engine(place).checked = True
                    line |= told(places.run(made, place)) | {"way": made.stacking.way}
                except Exception as error:
                    line["error"] = f"{type(error).__name__}: {error}"
                    traceback.print_exc()
                print(json.dumps(line), flush=True)
    finally:
        places.close()


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
