"""Where the time of W1, W2, W5 and W7 goes.

    python benchmarks/where.py [W1 W2 W5 W7]

W1, W5 and W7 run on two workers, and the time line says what each worker did when; what one client's training consists
of is taken with torch's profiler. W2 runs on one thread under Python's own profiler, once with the best settings and
once as `headwater run` has it. The profiler makes calls dearer than they are: shares of bookkeeping are upper bounds.
Writes benchmarks/where.json, from which page.py makes the tables of docs/performance.md.
"""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import distillation
import packs
import record
import torch
from contestants.ours_default import unsaid
from torch.profiler import ProfilerActivity, profile
from works import w1, w2, w7

import headwater
from headwater.config import Config
from headwater.core.statistics import covered
from headwater.engines import open_engine
from headwater.engines.inline import Inline
from headwater.tasks.local import local_train
from headwater.tasks.task import TaskContext
from headwater.training.experiment import Experiment, prepare
from headwater.training.loop import Event, train

WHERE = Path(__file__).parent / "where.json"
WORKS = ("W1", "W2", "W5", "W7")
DEFAULT = "W2 default"
ROOT = f"{Path(headwater.__file__).parent}{os.sep}"
Function = tuple[str, int, str]  # file, line and name, as Python's profiler has it
# By the module of the library that spends the time, or that calls what spends it; the first that fits counts.
TRAINING, ELSE = "training: stacks, steps, handing out", "all else"
KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("evaluation", ("tasks/evaluate", "training/evaluation", "core/statistics")),
    ("drawing batches", ("tasks/batched/batches", "core/rng")),
    ("averaging", ("tasks/average", "core/params")),
    (
        "run directory: rows, time line, checkpoints",
        ("training/checkpoint", "training/result", "core/records"),
    ),
    (TRAINING, ("tasks/", "models/")),
    ("engine: jobs, values, reports", ("engines/", "core/serialization")),
    ("federation: verbs, names, ledger", ("core/", "algorithms/")),
    ("rounds: participants, rows, state", ("",)),
)
# What training consists of, by torch's names for it.
OPERATORS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("matrix products", ("bmm", "matmul", "linear", "addmm", "conv")),
    ("taking batches out of the data", ("index_select", "__getitem__")),
    ("other operators of training", ("torch",)),
)


def experiment(work: str) -> Experiment:
    """As the benchmark has it."""
    if work == "W5":
        tree, name, count = distillation.fedhead_plus(clients=20, reference=1000, epochs=5), "cifar10", 6000
    elif work == "W1":
        tree, name, count = w1.tree_of(False), "cifar10", 5000
    elif work == "W7":
        tree, name, count = w7.tree_of(False), "fashion_mnist", 6000
    else:
        tree, name, count = w2.tree_of(False), "fashion_mnist", 50_000
    rows, test = packs.images(name, count, quick=False)
    if work == DEFAULT:
        return prepare(Config(**unsaid(tree)), data=packs.data_of(rows, test))
    data = packs.data_of(rows, test.take(range(100)))  # few, as the benchmark has them inside its time
    return prepare(Config(**(tree | {"eval_every": tree["rounds"]})), data=data)


class Marks:
    """The seconds from the beginning of the first round to the end of the last, with a profile of them if asked for."""

    def __init__(self, rounds: int = 0, profile: cProfile.Profile | None = None) -> None:
        self.seconds, self._rounds, self._profile = 0.0, rounds, profile

    def __call__(self, event: Event) -> None:
        if event.kind == "start":
            self.begun = time.perf_counter()
            if self._profile:
                self._profile.enable()
        elif event.kind == "round":
            self.seconds = time.perf_counter() - self.begun
            if self._profile and event.round == self._rounds:
                self._profile.disable()


def on_workers(ready: Experiment) -> dict[str, Any]:
    """Shares of the workers' time, and of the training of one client."""
    marks = Marks()
    with open_engine(ready.config, [ready]) as engine:
        train(ready, engine=engine)  # workers come up and read the data
        run = train(ready, engine=engine, watch=marks)
    spans: defaultdict[tuple[str, Any], list[tuple[float, float]]] = defaultdict(list)
    for span in run.timeline:
        spans[span["task"], span["worker"]].append((span["start"], span["end"]))
    busy: Counter[str] = Counter()
    for (task, _), times in spans.items():  # tasks that are carried out together have the same time
        busy[task] += covered(times)
    hands, wall = len({worker for _, worker in spans}), marks.seconds
    shares = {task: seconds / (hands * wall) for task, seconds in busy.most_common() if seconds > 0.002 * wall}
    alone = covered([(s["start"], s["end"]) for s in run.timeline if s["node"] == "server" and s["task"] == "distill"])
    return {
        "seconds": wall,
        "hands": hands,
        "workers": shares | {"idle, or between two jobs": 1 - busy.total() / (hands * wall)},
        "student": alone / wall,
        "one client": one_client(ready),
    }


def one_client(ready: Experiment) -> dict[str, float]:
    """What training consists of, by torch's operators."""
    torch.set_num_threads(1)
    context = ready.context()
    start, spec = context.initial(ready.model.name, 0), ready.method.local  # type: ignore[attr-defined]
    local_train(TaskContext(context, "c0", (0, "warm", 0, "c0")), start, spec)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        local_train(TaskContext(context, "c0", (0, "local_train", 0, "c0")), start, spec)
    found: Counter[str] = Counter()
    for event in seen.key_averages():
        found[_operator(event.key)] += event.self_cpu_time_total
    total = sum(found.values())
    return {kind: time / total for kind, time in found.most_common()}


def _operator(name: str) -> str:
    low = name.lower()
    if "convolution" in low or "mkldnn" in low:
        return "convolutions, backward" if "backward" in low else "convolutions, forward"
    if "norm" in low:
        return "normalisation"
    if "pool" in low:
        return "pooling"
    if "relu" in low or "threshold" in low:
        return "activations"
    if "fused" in low:
        return "optimiser"
    if any(word in low for word in ("copy_", "clone", "contiguous", "index", "fill", "zero", "empty")):
        return "batches, copies, zeroing"
    return "all else (sums, loss, autograd)"


def in_one_process(ready: Experiment, directory: bool = False) -> dict[str, Any]:
    """Shares of the rounds' time on one thread, where Python's profiler sees all of it."""
    times = []
    with ExitStack() as stack:
        engine = Inline(ready.config.engine.threads)
        stack.callback(engine.close)

        def run(marks: Marks) -> None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="headwater-where-")) if directory else None
            train(ready, engine=engine, out=Path(folder) / "run" if folder else None, watch=marks)

        run(Marks())  # warms up
        for _ in range(5):
            marks = Marks()
            run(marks)
            times.append(marks.seconds)
        seen = cProfile.Profile()
        run(Marks(ready.config.rounds, seen))
    middle = statistics.median(times)
    return {"seconds": middle, "a round": middle / ready.config.rounds, "shares": shares_of(seen)}


def shares_of(seen: cProfile.Profile) -> dict[str, float]:
    """Of the time of all functions by kind. What is not the library's own (torch, numpy, Python) counts for the module
    of the library that called it, however far up that is."""
    stats: dict[Function, Any] = pstats.Stats(seen).stats  # type: ignore[attr-defined]

    @cache
    def modules(function: Function) -> dict[str, float]:
        """The library's modules on whose behalf a function was called, with their shares."""
        found: Counter[str] = Counter()
        asked, met = [(function, 1.0)], {function}
        while asked:
            this, share = asked.pop()
            if this[0].startswith(ROOT):
                found[this[0].removeprefix(ROOT)] += share
                continue
            callers = {caller: told[3] for caller, told in stats[this][4].items() if caller not in met}
            met |= callers.keys()
            whole = sum(callers.values())
            asked += [(caller, share * each / whole) for caller, each in callers.items() if whole]
        total = found.total()
        return {module: share / total for module, share in found.items()} if total else {}

    spent: Counter[str] = Counter()
    for function, (_, _, own, _, callers) in stats.items():
        if function[0].startswith(ROOT):
            spent[kind_of(function[0].removeprefix(ROOT))] += own
            continue
        left = own
        for caller, (_, _, part, _) in callers.items():
            for module, share in modules(caller).items():
                spent[kind_of(module, function)] += part * share
                left -= part * share
        spent[ELSE] += left
    total = spent.total()
    return {kind: seconds / total for kind, seconds in spent.most_common()}


def kind_of(module: str, function: Function | None = None) -> str:
    """Of time that a module of the library spends itself or in a function that it called."""
    found = next(kind for kind, starts in KINDS if module.startswith(starts))
    if found == TRAINING and function is not None:
        return next((kind for kind, words in OPERATORS if any(word in function[2] for word in words)), TRAINING)
    return found


def main() -> None:
    asked = sys.argv[1:] or WORKS
    kept = json.loads(WHERE.read_text(encoding="utf-8")) if WHERE.exists() else {}
    for name in asked:
        for work in (name, DEFAULT) if name == "W2" else (name,):
            ready = experiment(work)
            found = in_one_process(ready, work == DEFAULT) if name == "W2" else on_workers(ready)
            kept[work] = record.about() | found
            print(work, json.dumps(found, indent=1))
    WHERE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
