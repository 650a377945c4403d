"""What models say of the rows that they are asked about: worked out once, and here or in jobs of their own.

A task that declares `asks={"answers": Ask("teachers", answer, "inputs")}` may find in its input `answers` what those in
its input `teachers` say: {group: {name: answer}}. Whoever is not in it is asked by the task itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwater.data.base import Examples
from headwater.params import Params
from headwater.stages.bench import Bench
from headwater.stages.site import Site, task
from headwater.topology.tree import ROOT

Answer = dict[str, Tensor]  # outputs by what was asked about: inputs, val
Answers = Mapping[str, Mapping[str, Any]]  # by group and name


def judge(bench: Bench, rows: Examples) -> dict[str, float]:
    """Accuracy and loss of what the bench holds."""
    output = bench.outputs(rows.x)
    with torch.no_grad():
        loss = float(bench.loss(output, rows.y))
    return {"accuracy": float((output.argmax(1) == rows.y).double().mean()), "loss": loss}


@task("distill")
def answer(
    site: Site, members: Mapping[str, Params], part: tuple[int, int] = (0, 1), val: Any = None, hold: float = 0.0
) -> dict[str, Answer]:
    """What models say of the home's inputs and of the rows that a student is judged by, as `distill` needs it."""
    rows = judged_by(site, val, hold)
    return {name: said_by(site, member, True, rows) for name, member in _some(members, part).items()}


@task("distill")
def score(site: Site, members: Mapping[str, Params], part: tuple[int, int] = (0, 1)) -> dict[str, float]:
    """The accuracy of models on the server's validation set."""
    rows = site.validation
    if not len(rows):
        raise LookupError("dropping the worst members needs a validation set; set data.validation above 0")
    return {name: judge(site.bench(member), rows)["accuracy"] for name, member in _some(members, part).items()}


@task("evaluate")
def on_test(site: Site, members: Mapping[str, Params], part: tuple[int, int] = (0, 1)) -> dict[str, Tensor]:
    """What models say of the test set."""
    return {name: site.bench(member).outputs(site.test.x) for name, member in _some(members, part).items()}


def _some(members: Mapping[str, Params], part: tuple[int, int]) -> dict[str, Params]:
    """The members of one part of so many, in order."""
    number, parts = part
    names = list(members)
    return {name: members[name] for name in names[number * len(names) // parts : (number + 1) * len(names) // parts]}


def said_by(site: Site, member: Params, inputs: bool, val: Examples | None) -> Answer:
    bench = site.bench(member)
    said = {"inputs": bench.outputs(site.inputs)} if inputs else {}
    return said if val is None else said | {"val": bench.outputs(val.x)}


def judged_by(site: Site, val: Examples | None, hold: float) -> Examples | None:
    """The rows with labels that came with the task, or the server's own; none if a share of the home's is held out."""
    if hold and site.data is not None:
        return None
    if val is None and site.home == ROOT:
        val = site.validation
    return val if val is not None and len(val) else None


def known(answers: Answers | None) -> dict[str, Any]:
    """Answers by name."""
    return {name: said for group in (answers or {}).values() for name, said in group.items()}


@dataclass(frozen=True)
class Panel:
    """Teachers, and the rows that they are asked about: inputs to distil on, and rows with labels to judge by.

    If a share of the home's rows is held out to judge by, teachers are asked about all of them, and `kept` and `held`
    tell them apart. So an answer does not depend on chance.
    """

    site: Site
    teachers: Mapping[str, Params]
    answers: Mapping[str, Answer]
    x: Tensor
    val: Examples | None
    kept: Tensor | None = None
    held: Tensor | None = None

    @staticmethod
    def of(
        site: Site, teachers: Mapping[str, Params], answers: Answers | None, val: Examples | None, hold: float
    ) -> Panel:
        x, val, told = site.inputs, judged_by(site, val, hold), known(answers)
        if not hold or site.data is None:
            return Panel(site, teachers, told, x, val)
        rows = len(x)
        order = torch.from_numpy(site.rng.permutation(rows))
        count = min(max(1, round(hold * rows)), max(1, rows - 1))  # at least one, and one left to learn from
        kept, held = order[count:] if rows > 1 else order, order[:count]
        return Panel(site, teachers, told, x[kept], site.data.take(held), kept, held)

    def hear(self, inputs: bool, val: bool) -> Iterator[tuple[str, float, Answer]]:
        """One after the other: name, samples, and what it says of these two; who was not asked yet is asked now."""
        wanted = (inputs or (val and self.held is not None), self.val if val and self.held is None else None)
        for name, member in self.teachers.items():
            yield name, member.weight, self._answer(name, member, *wanted)  # which is not kept here

    def _answer(self, name: str, member: Params, inputs: bool, val: Examples | None) -> Answer:
        told = self.answers[name] if name in self.answers else said_by(self.site, member, inputs, val)
        if self.held is None or "inputs" not in told:
            return told
        return {"inputs": told["inputs"][self.kept], "val": told["inputs"][self.held]}
