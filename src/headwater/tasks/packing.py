"""One-bit models are packed before they travel, a bit per weight, and unpacked where they arrive."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.core.one_bit import OneBit
from headwater.core.params import Params
from headwater.tasks.cost import Cost
from headwater.tasks.device_memory import on_host
from headwater.tasks.low_bit import one_bit_names
from headwater.tasks.task import TaskContext, task


@task("average", cost=Cost(), returns=lambda ctx, model: OneBit.outline(model, _names(ctx, model)), derived=True)
def pack(ctx: TaskContext, model: Params) -> OneBit:
    """Pack a model that was trained with `local.low_bit`; nothing is lost."""
    return OneBit.of(on_host(model), _names(ctx, model))


@task(
    "average",
    cost=Cost(),
    returns=lambda ctx, models: {name: ctx.outline(model.layout.arch) for name, model in models.items()},
)
def unpack(ctx: TaskContext, models: Mapping[str, OneBit]) -> dict[str, Params]:
    """The models of a mapping as they were before they were packed."""
    return {name: on_host(model).unpacked() for name, model in models.items()}


def _names(ctx: TaskContext, model: Params) -> tuple[str, ...]:
    return one_bit_names(ctx.blank(model.layout.arch))
