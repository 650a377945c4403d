"""Asks this machine's libraries whether a client gets the same bits alone as among others in a stack.

Equal bits on all engines of one machine need no such property: which clients make a stack is the same on each of them.
A client between organisations is alone, though, and has to end with what it would have in a simulation. Most libraries
compute a member of a batched product in the same way whoever else is in the batch. None of them promises it, so it is
tried, with the layers, batch and optimiser of the run.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from headwater.data.base import Examples, Split
from headwater.models.base import ModelSpec
from headwater.params import Layout, Params
from headwater.specs import LocalSpec
from headwater.stages.site import Context, Site
from headwater.stages.stack import train_together

STEPS = 2
_KNOWN: dict[tuple[object, ...], bool] = {}


def same_alone(spec: ModelSpec, local: LocalSpec, width: int, threads: int) -> bool:
    """Whether a client that is trained in a stack of up to `width` ends with the bits that it has alone.

    Args:
        spec: the clients' model.
        local: how they are trained.
        width: clients in one stack, at most.
        threads: of every task.

    Returns:
        What a trial of a few steps showed; asked once a process for each kind of model and training.
    """
    layout = Layout.of(spec.outline(), spec.name)
    key = (layout.trainable, spec.shape, local, width, threads)
    if key not in _KNOWN:
        usual = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            _KNOWN[key] = _try(spec, local, width)
        finally:
            torch.set_num_threads(usual)
    return _KNOWN[key]


def _try(spec: ModelSpec, local: LocalSpec, width: int) -> bool:
    each = max(1, local.batch)
    count = width * each
    chance = np.random.default_rng(0)
    x = torch.from_numpy(chance.standard_normal((count, *spec.shape), dtype=np.float32))
    rows = Examples(x, torch.from_numpy(chance.integers(0, spec.classes, count)))
    empty = Examples(x[:0], rows.y[:0])
    split = Split(rows, empty, x[:0], empty, spec.classes, spec.shape, "probe")
    clients = {f"c{at}": np.arange(at * each, (at + 1) * each) for at in range(width)}
    context = Context(split, clients, {}, {spec.name: spec}, 0, stack="hand")
    start = context.initial(spec.name, 0)
    given = {"start": start, "spec": replace(local, epochs=None, steps=STEPS)}

    def trained(names: list[str]) -> dict[str, Params | None]:
        sites = [Site(context, name, ("probe", name)) for name in names]
        return dict(zip(names, train_together(sites, [given] * len(names)), strict=True))

    names = list(clients)
    found = [trained(names[:some]) for some in sorted({1, 2, 3, width // 2, width - 1, width} - {0}) if some <= width]
    found.append(trained(names[-1:]))
    known: dict[str, Params | None] = {}
    for results in found:
        for name, result in results.items():
            before = known.setdefault(name, result)
            if before is None or result is None or not torch.equal(before.vector, result.vector):
                return False
    return True
