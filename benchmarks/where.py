"""Where the time of W1, W2 and W5 goes.

    python benchmarks/where.py [W1 W2 W5]

W1 and W5 run on two workers, and the time line says what each worker did when; what one client's training consists of
is taken with torch's profiler. W2 runs in one process under Python's own profiler, which makes calls dearer than they
are: its shares of bookkeeping are upper bounds. Writes benchmarks/where.json, from which page.py makes the tables of
docs/performance.md.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import distillation
import packs
import record
import torch
from torch.profiler import ProfilerActivity, profile

from headwater.config import Config
from headwater.engines.inline import Inline
from headwater.engines.pool import Pool
from headwater.experiment import Experiment, prepare
from headwater.metrics import covered
from headwater.stages.local import local_train
from headwater.stages.site import Site
from headwater.training import train

WHERE = Path(__file__).parent / "where.json"
# Of a function under Python's profiler, by a piece of its file or name; the first that fits counts.
KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("matrix products", ("baddbmm", "bmm", "matmul", "linear")),
    ("other arithmetic of the stack", ("log_softmax", "exp_", "scatter", "gather", "relu", "'mul_'", "'sum'", "sub_")),
    ("taking batches out of the data", ("index_select",)),
    ("drawing batches", ("rng.py", "draws.py", "shuffle", "sha256", "SeedSequence")),
    ("averaging", ("lerp_", "params.py", "combine.py")),
    (
        "stacks: making, steps, handing out",
        ("stack.py", "kernels.py", "buffers", "site.py", "bench.py", "torch", "optimize"),
    ),
    ("engine: jobs, values, reports", ("engines/", "codecs.py")),
    (
        "federation: verbs, names, ledger",
        ("federation.py", "view.py", "located.py", "ledger.py", "topology/", "fanout"),
    ),
    ("rounds: participants, rows, state", ("training.py", "evaluation.py", "progress.py", "fallback.py", "partition/")),
)


def experiment(work: str) -> Experiment:
    """As the benchmark has it."""
    if work == "W2":
        tree = packs.fedavg(clients=1000, active=50, model={"name": "mlp", "hidden": [50]}, rounds=20, batch=10, lr=0.1)
        rows, test = packs.images("fashion_mnist", 50_000, quick=False)
    elif work == "W1":
        model = {"name": "resnet8", "norm": "group"}
        tree = packs.fedavg(clients=20, active=20, model=model, rounds=3, batch=64, lr=0.1)
        rows, test = packs.images("cifar10", 5000, quick=False)
    else:
        tree = distillation.fedhead_plus(clients=20, reference=1000, epochs=5)
        rows, test = packs.images("cifar10", 6000, quick=False)
    data = packs.data_of(rows, test.take(range(100)))  # few, as the benchmark has them inside its time
    return prepare(Config(**(tree | {"eval_every": tree["rounds"]})), data=data)


def on_workers(ready: Experiment) -> dict[str, Any]:
    """Shares of the workers' time, and of the training of one client."""
    pool = Pool(2)

    train(ready, engine=pool)  # workers come up and read the data
    started: list[float] = []
    run = train(ready, engine=pool, watch=lambda event: started.append(time.time()) if event.kind == "start" else None)
    wall = time.time() - started[0]
    pool.close()
    busy: Counter[str] = Counter()
    for span in run.timeline:
        busy[span["task"]] += span["end"] - span["start"]
    shares = {task: seconds / (2 * wall) for task, seconds in busy.most_common() if seconds > 0.002 * wall}
    alone = covered([(s["start"], s["end"]) for s in run.timeline if s["node"] == "server" and s["task"] == "distill"])
    return {
        "seconds": wall,
        "workers": shares | {"idle, or between two jobs": 1 - sum(busy.values()) / (2 * wall)},
        "student": alone / wall,
        "one client": one_client(ready),
    }


def one_client(ready: Experiment) -> dict[str, float]:
    """What training consists of, by torch's operators."""
    torch.set_num_threads(1)
    context = ready.context()
    start, spec = context.initial(ready.model.name, 0), ready.method.local  # type: ignore[attr-defined]
    local_train(Site(context, "c0", (0, "warm", 0, "c0")), start, spec)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        local_train(Site(context, "c0", (0, "local_train", 0, "c0")), start, spec)
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
    if "relu" in low or "threshold" in low:
        return "activations"
    if "fused" in low:
        return "optimiser"
    if any(word in low for word in ("copy_", "clone", "contiguous", "index", "fill", "zero", "empty")):
        return "batches, copies, zeroing"
    return "all else (sums, pooling, loss, autograd)"


def in_one_process(ready: Experiment) -> dict[str, Any]:
    train(ready, engine=Inline(hands=2))
    times = []
    for _ in range(5):
        marks: list[float] = []
        train(ready, engine=Inline(hands=2), watch=lambda event, marks=marks: marks.append(time.perf_counter()))
        times.append(marks[-1] - marks[0])
    seen = cProfile.Profile()
    seen.runcall(train, ready, engine=Inline(hands=2))
    found: Counter[str] = Counter()
    for (file, _, name), (_, _, own, _, _) in pstats.Stats(seen).stats.items():  # type: ignore[attr-defined]
        text = f"{file} {name}"
        found[next((kind for kind, pieces in KINDS if any(p in text for p in pieces)), "all else")] += own
    total = sum(found.values())
    shares = {kind: seconds / total for kind, seconds in found.most_common()}
    middle = statistics.median(times)
    return {"seconds": middle, "a round": middle / ready.config.rounds, "shares": shares}


def main() -> None:
    asked = sys.argv[1:] or ["W1", "W2", "W5"]
    kept = json.loads(WHERE.read_text(encoding="utf-8")) if WHERE.exists() else {}
    for work in asked:
        ready = experiment(work)
        found = in_one_process(ready) if work == "W2" else on_workers(ready)
        kept[work] = record.about() | found
        print(work, json.dumps(found, indent=1))
    WHERE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
