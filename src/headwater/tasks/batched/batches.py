"""Batches of many clients that are trained as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwater.core.rng import streams
from headwater.specs import LocalSpec
from headwater.tasks.optimizers import steps_per_epoch, total_steps
from headwater.tasks.task import TaskContext

Ints = np.ndarray[Any, np.dtype[np.int64]]


def batches_of_all(
    contexts: Sequence[TaskContext], rows: Sequence[Ints], spec: LocalSpec, width: int, steps: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The batches of all clients, from the same draws as `optimizers.batches` makes for each client alone.

    Args:
        contexts: the clients.
        rows: each client's rows of the table.
        spec: the stage.
        width: places in a batch.
        steps: steps of the client that takes the most.
        dtype: type of the shares.

    Returns:
        Rows of the table by (step, client, place), and each place's share in the mean loss of its batch.
    """
    index = np.zeros((steps, len(contexts), width), dtype=np.int64)
    share = np.full((steps, len(contexts), width), 1 / spec.batch)
    generators = _generators(contexts)
    alike: dict[int, list[int]] = {}
    for at, own in enumerate(rows):
        alike.setdefault(len(own), []).append(at)
    for count, places in alike.items():  # those with as many rows have batches of the same lengths
        left, each, first = total_steps(count, spec), steps_per_epoch(count, spec), 0
        while left > 0:
            order = np.array([rows[at] for at in places], dtype=np.int64)
            for at, own in zip(places, order, strict=True):
                generators[at].shuffle(own)
            taken = min(each, left)
            used = min(count, taken * spec.batch)
            whole, rest = divmod(used, spec.batch)
            full = order[:, : used - rest].reshape(len(places), whole, -1) if whole else order[:, :0, None]
            index[first : first + whole, places] = full.swapaxes(0, 1)
            if rest:
                last, tail = first + whole, order[:, used - rest : used]
                index[last, places, :rest], index[last, places, rest:] = tail, tail[:, -1:]
                share[last, places, :rest], share[last, places, rest:] = 1 / rest, 0
            first, left = first + taken, left - taken
    return torch.from_numpy(index), torch.from_numpy(share).to(dtype)


def _generators(contexts: Sequence[TaskContext]) -> list[np.random.Generator]:
    """The `rng` of each of these contexts of one run, created at once, which is faster than one by one."""
    if not contexts:
        return []
    first = contexts[0]._key[:-1]
    common = first if all(ctx._key[:-1] == first for ctx in contexts) else ()
    return streams(contexts[0]._context.seed, [ctx._key[len(common) :] for ctx in contexts], ("task", *common))
