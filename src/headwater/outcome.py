"""What `hw.run` gives back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from headwater.ledger import Ledger
from headwater.models.base import ModelSpec
from headwater.params import Params


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: numbers, history and the trained model."""

    result: dict[str, Any]  # as in result.json
    history: list[dict[str, Any]]  # a row a round, as in rounds.jsonl
    ledger: Ledger
    params: dict[str, Params]  # the global model under "", or every member under its name
    spec: ModelSpec
    partition: dict[str, Any]  # as in partition.json
    config: str  # as in config.toml
    directory: Path | None = None

    @property
    def accuracy(self) -> float:
        return float(self.result["accuracy"])

    @property
    def accuracy_ci95(self) -> list[float] | None:
        """The ordinary 95 % interval; None where accuracy is a mean over clients' models."""
        interval: list[float] | None = self.result["accuracy_ci95"]
        return interval

    @property
    def model(self) -> nn.Module:
        """The trained model in evaluation mode; a ModuleDict by client where there is no single one."""
        if "" in self.params:
            return self.params[""].load_into(self.spec.build()).eval()
        return nn.ModuleDict({name: p.load_into(self.spec.build()) for name, p in self.params.items()}).eval()

    def report(self, path: str | Path) -> Path:
        """Write the HTML report of this run."""
        import json
        import tempfile

        from headwater.report import write

        if self.directory is not None:
            return write([self.directory], Path(path))
        with tempfile.TemporaryDirectory() as folder:
            files = {"config.toml": self.config, "result.json": json.dumps(self.result)}
            files["partition.json"] = json.dumps(self.partition)
            files["rounds.jsonl"] = "".join(json.dumps(row) + "\n" for row in self.history)
            for name, text in files.items():
                (Path(folder) / name).write_text(text, encoding="utf-8")
            return write([Path(folder)], Path(path))
