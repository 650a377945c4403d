"""Stage 1: training on a home's own labels, with gradient corrections and extra loss terms as parts that compose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headwater.data.base import Examples
from headwater.params import Params
from headwater.specs import LocalSpec
from headwater.stages.bench import Bench
from headwater.stages.optimize import Stepper, batches, total_steps
from headwater.stages.site import Site, task


class Term(Protocol):
    """An addition to the loss of one batch."""

    def __call__(self, bench: Bench, start: Params, x: Tensor, y: Tensor, output: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Proximal:
    """(mu / 2) · ‖w − start‖², FedProx's pull towards the model that was received."""

    mu: float

    def __call__(self, bench: Bench, start: Params, x: Tensor, y: Tensor, output: Tensor) -> Tensor:
        here = torch.cat([p.reshape(-1) for p in bench.module.parameters() if p.requires_grad])
        return 0.5 * self.mu * (here - start.trainable).square().sum()


@task("train")
def local_train(
    site: Site,
    start: Params,
    spec: LocalSpec,
    corrections: tuple[Tensor | Params | None, ...] = (),
    terms: tuple[Term, ...] = (),
    data: Examples | None = None,
) -> Params:
    """Train from `start` with a fresh optimiser. The result weighs as many samples as were trained on.

    `corrections` are added to every gradient (None counts as zero); `data` replaces the home's own rows.
    """
    rows = data if data is not None else site.data
    if rows is None:
        raise LookupError(f"{site.home} holds no training data")
    bench = site.bench(start)
    given = [c.trainable if isinstance(c, Params) else c for c in corrections if c is not None]
    stepper = Stepper(bench, spec, total_steps(len(rows), spec), sum(given[1:], given[0]) if given else None)
    loss_sum, seen = torch.zeros(()), 0
    for batch in batches(len(rows), spec, site.rng):
        x, y = rows.x[batch], rows.y[batch]
        bench.train(len(batch))
        output = bench(x)
        loss = bench.loss(output, y)
        loss_sum, seen = loss_sum + loss.detach() * len(batch), seen + len(batch)
        for term in terms:
            loss = loss + term(bench, start, x, y, output)
        stepper.step(loss)
    if seen:
        site.note(loss=float(loss_sum) / seen)
    return bench.params(weight=float(len(rows)))


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
