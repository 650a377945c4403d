"""Stage 1: training on a home's own labels, with gradient corrections and extra loss terms as parts that compose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from headwater.data.base import Examples
from headwater.params import By, Params
from headwater.specs import LocalSpec
from headwater.stages.bench import Bench
from headwater.stages.optimize import Stepper, batches, picked, steps_per_epoch, total_steps
from headwater.stages.site import Site, task
from headwater.stages.stack import train_together


@dataclass(frozen=True)
class Batch:
    """One step, as a loss term sees it."""

    site: Site
    bench: Bench
    start: Params
    x: Tensor
    y: Tensor
    output: Tensor
    loss: Tensor  # of this batch, before any term
    index: Tensor  # the batch's rows in the home's data
    epoch: int = 0
    last: bool = False  # whether this is the last epoch
    known: Tensor | None = None

    @property
    def features(self) -> Tensor:
        """What the extractor gave for this batch; there for terms that declare FEATURES."""
        assert self.known is not None
        return self.known


class Term(Protocol):
    """An addition to the loss of one batch: a frozen dataclass, whose fields may be values of the home.

    A class that sets `FEATURES = True` finds `step.features`; one that has `begin(site, start)` is asked once before
    the first step and gives the term that is then used.
    """

    def __call__(self, step: Batch) -> Tensor: ...


@task("train", together=train_together, stacked=True)
def local_train(
    site: Site,
    start: Params,
    spec: LocalSpec,
    corrections: tuple[Tensor | Params | None, ...] = (),
    terms: tuple[Term, ...] = (),
    data: Examples | None = None,
    by: By = "samples",
) -> Params:
    """Train from `start` with a fresh optimiser. The result weighs as many samples as were trained on, or 1 where
    clients count alike (`by = "uniform"`), so that means of means stay right.

    `corrections` are added to every gradient (None counts as zero); `data` replaces the home's own rows.
    """
    rows = data if data is not None else site.data
    if rows is None:
        raise LookupError(f"{site.home} holds no training data")
    terms = tuple(term.begin(site, start) if hasattr(term, "begin") else term for term in terms)
    apart = any(getattr(term, "FEATURES", False) for term in terms)
    bench = site.bench(start)
    given = [c.trainable if isinstance(c, Params) else c for c in corrections if c is not None]
    total, epoch = total_steps(len(rows), spec), steps_per_epoch(len(rows), spec)
    stepper = Stepper(bench, spec, total, sum(given[1:], given[0]) if given else None)
    losses: list[float] = []
    sizes: list[int] = []
    kind = start.vector.dtype
    for batch in batches(len(rows), spec, site.rng):
        x, y = picked(rows.x, batch), picked(rows.y, batch)
        bench.train(len(batch))
        features = bench.features(x) if apart else None
        output = bench(x) if features is None else bench.classify(features)
        loss = bench.loss(output, y)
        losses.append(loss.item())
        sizes.append(len(batch))
        kind = loss.dtype
        if terms:
            now = stepper.taken // epoch
            last = now == (total - 1) // epoch
            step = Batch(site, bench, start, x, y, output, loss, batch, now, last, features)
            loss = loss + sum(term(step) for term in terms)
        stepper.step(loss)
    if sizes:
        site.note(loss=_mean(losses, sizes, kind))
    return bench.params(weight=float(len(rows)) if by == "samples" else 1.0)


def _mean(losses: list[float], sizes: list[int], dtype: torch.dtype) -> float:
    """Over all samples seen, added up batch after batch in the precision of the losses."""
    kind = np.float64 if dtype == torch.float64 else np.float32
    with np.errstate(all="ignore"):  # whoever diverges is told so elsewhere
        return float(np.cumsum(np.array(losses, kind) * np.array(sizes, kind))[-1]) / sum(sizes)


@task("train")
def label_counts(site: Site) -> Tensor:
    """How many samples of each class this home holds. Sharing it tells the receiver the home's label mix."""
    assert site.data is not None
    return torch.bincount(site.data.y, minlength=site.classes).double()


@task("train")
def own_rows(site: Site) -> Examples:
    """The home's data itself, for the pooled reference only."""
    assert site.data is not None
    return site.data


@task("train")
def pooled(site: Site, rows: Mapping[str, Examples]) -> Examples:
    return Examples(torch.cat([r.x for r in rows.values()]), torch.cat([r.y for r in rows.values()]))
