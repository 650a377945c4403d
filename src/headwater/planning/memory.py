"""What a run would hold at once, from the sizes of what is known to be there."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headwater.engines.workers.spill_cache import budget_of
from headwater.planning.rehearsal import Rehearsed
from headwater.planning.timing import Measured
from headwater.planning.traffic import Size
from headwater.specs import DistillSpec, LocalSpec
from headwater.training.experiment import Experiment

STATE = {"sgd": 0, "adam": 2, "adamw": 2}  # vectors that an optimiser keeps beside the model
STREAMED = 2  # models that an average holds: the sum so far and the one that is added


@dataclass(frozen=True)
class Memory:
    """Bytes of all processes together, shared memory counted once."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def resident() -> int:
    """Bytes of this process in memory now."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return peak()
    return pages * resource.getpagesize()


def peak() -> int:
    """The most that this process ever had in memory."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most if sys.platform == "darwin" else most * 1024)


def data_bytes(experiment: Experiment) -> int:
    split = experiment.split
    tables = [split.train.x, split.train.y, split.validation.x, split.validation.y, split.reference]
    return int(sum(table.nbytes for table in (*tables, split.test.x, split.test.y)))


def memory_of(
    experiment: Experiment,
    works: Rehearsed | None,
    sizes: Mapping[str, Size],
    measured: Measured,
    *,
    pool: bool,
    workers: int,
    now: int,
    before: int,
    bare: int | None,
) -> Memory:
    """`now` is what this process held before anything was measured: the interpreter, its libraries and the data;
    `before` is the most that it held until then, and `bare` what it held without any data, where somebody knows."""
    model = max(size.bytes for size in sizes.values())
    data = data_bytes(experiment)
    specs = [getattr(experiment.method, name, None) for name in experiment.method.__dataclass_fields__]  # type: ignore[attr-defined]
    descents = [spec for spec in specs if isinstance(spec, LocalSpec | DistillSpec)]
    beside = max((STATE[spec.optimizer] + bool(spec.momentum) for spec in descents), default=0)
    jobs = works.works if works is not None else ()
    most = max((work.members for work in jobs), default=0)
    taking = max((sum(w.phase == "train" and w.steps > 0 for w in jobs if w.round == 1), 1))
    kept = works.kept if works is not None else 1
    largest = max((work.samples and _rows(experiment, work.job.home) for work in jobs if work.round == 1), default=0)
    row = experiment.split.train.x[0].nbytes + 8 if len(experiment.split.train) else 0
    # A worker's own: the module with its gradients, what the optimiser keeps, a copy to give and one to go back to.
    session = (4 + beside) * model + max(measured.saved.values(), default=0) + largest * row
    held = (kept + (taking if pool else max(most, STREAMED))) * model
    held = min(held, budget_of(experiment.config.engine.memory))  # values beyond it wait on disk
    parts = {"process and data": now, "models": held, "training": session * (workers if pool else 1)}
    if pool:
        parts["workers"] = workers * (max(0, now - data) if bare is None else bare)
        parts["data for workers"] = data
    if (more := before - sum(parts.values())) > 0:  # the run itself needs less than reading its data did
        parts["reading the data"] = more
    return Memory(parts)


def _rows(experiment: Experiment, home: str) -> int:
    tree = experiment.tree
    return int(tree.client_sizes[home]) if home in tree.sector_of else len(experiment.split.train)
