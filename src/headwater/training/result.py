"""What `hw.run` gives back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from headwater.core.ledger import Ledger
from headwater.core.params import Params
from headwater.models.base import ModelSpec

Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: numbers, history and the trained model."""

    result: dict[str, Any]  # as in result.json
    history: list[dict[str, Any]]  # a row a round, as in rounds.jsonl
    ledger: Ledger
    params: dict[str, Params]  # the global model under "", or every member under its name
    spec: ModelSpec  # of the run's own architecture
    specs: Mapping[str, ModelSpec]  # of all, by the name that a model bears
    partition: dict[str, Any]  # as in partition.json
    config: str  # as in config.toml
    directory: Path | None = None
    spans: list[dict[str, Any]] = field(default_factory=list, repr=False)  # of a run without a directory

    @property
    def accuracy(self) -> float:
        return float(self.result["accuracy"])

    @property
    def accuracy_ci95(self) -> list[float] | None:
        """The ordinary 95 % interval; None where accuracy is a mean over clients' models."""
        interval: list[float] | None = self.result["accuracy_ci95"]
        return interval

    @cached_property
    def timeline(self) -> list[dict[str, Any]]:
        """Every task, when it ran and on which worker, as in timeline.jsonl."""
        if self.directory is None:
            return self.spans
        lines = (self.directory / "timeline.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    @property
    def model(self) -> nn.Module:
        """The trained model in evaluation mode; a ModuleDict by client or member where there is no single one."""
        built = {name: p.load_into(self.specs[p.layout.arch].build()) for name, p in self.params.items()}
        return built[""].eval() if "" in built else nn.ModuleDict(built).eval()

    def report(self, path: str | Path) -> Path:
        """Write the HTML report of this run."""
        import tempfile

        from headwater.report import write

        if self.directory is not None:
            return write([self.directory], Path(path))
        with tempfile.TemporaryDirectory() as folder:
            files = {"config.toml": self.config, "result.json": json.dumps(self.result)}
            files["partition.json"] = json.dumps(self.partition)
            files["rounds.jsonl"] = "".join(json.dumps(row) + "\n" for row in self.history)
            files["timeline.jsonl"] = "".join(json.dumps(span) + "\n" for span in self.timeline)
            for name, text in files.items():
                (Path(folder) / name).write_text(text, encoding="utf-8")
            return write([Path(folder)], Path(path))


def named(members: Mapping[Any, Item]) -> dict[str, Item]:
    """Members under names that a module may bear, all different."""
    found: dict[str, Item] = {}
    taken = dir(nn.ModuleDict())
    for key, member in members.items():
        name = re.sub(r"\W", "_", str(key)) or "member"
        while name in found or name in taken:
            name += "_"
        found[name] = member
    return found
