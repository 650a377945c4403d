"""Ten teachers, one student, one process: outputs asked once, and asked again in every epoch."""

from __future__ import annotations

import numpy as np

from works.base import Inside, Work


def work(quick: bool) -> Work:
    import torch

    from headwater.data.base import Examples
    from headwater.data.split import Split
    from headwater.models.base import ModelSpec
    from headwater.specs import DistillSpec
    from headwater.tasks.distill import distill
    from headwater.tasks.task import RunContext, TaskContext

    torch.set_num_threads(1)
    torch.manual_seed(0)
    count, epochs = (100, 3) if quick else (500, 10)
    x, none = torch.randn(count, 3, 32, 32), Examples(torch.zeros(0, 3, 32, 32), torch.zeros(0, dtype=torch.int64))
    rows = Examples(x, torch.randint(0, 10, (count,)))
    context = RunContext(
        Split(rows, none, x, none, 10, (3, 32, 32), "noise"),
        {"c0": np.arange(count)},
        {},
        {"resnet8": ModelSpec("resnet8", (3, 32, 32), 10)},
        0,
    )
    members = {f"t{i}": context.initial("resnet8", i) for i in range(10)}

    def taught(times: int, each: int) -> None:
        student = context.initial("resnet8", 99)
        for turn in range(times):
            spec = DistillSpec(epochs=each, weights="uniform")
            student = distill(TaskContext(context, "c0", (turn, "distill")), student, members, spec)

    functions = {"outputs asked once": lambda: taught(1, epochs), "asked every epoch": lambda: taught(epochs, 1)}
    title = f"10 ResNet-8 teachers, {count} inputs, {epochs} epochs"
    return Inside(title, [], lambda path: path, "outputs asked once", unit="seconds", functions=functions)
