"""The result of a run: numbers, history and the trained model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from headwater.core.ledger import Ledger
from headwater.core.params import Params
from headwater.models.base import ModelSpec

if TYPE_CHECKING:
    from headwater.training.experiment import Experiment

Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: numbers, history and the trained model. Returned by `hw.run`.

    Args:
        result: content of result.json: accuracy, intervals, ledger, versions, hashes.
        history: one row per round, as in rounds.jsonl.
        ledger: what was sent over each link; `ledger.bytes("server_sector")` is a total in bytes.
        params: the global model under "", or one model per client or member under its name.
        spec: architecture of the run's main model.
        specs: all architectures of the run by name.
        partition: content of partition.json: the samples and the sector of each client.
        config: the complete configuration as TOML, as in config.toml.
        directory: where the run's files are; None if nothing was written.
        spans: timed tasks of a run without a directory; use `timeline`.

    Example:
        >>> import headwater as hw
        >>> run = hw.run("fedavg", clients=3, sectors=1, rounds=1, local__epochs=1)
        >>> 0 <= run.accuracy <= 1, len(run.history)
        (True, 1)
    """

    result: dict[str, Any]
    history: list[dict[str, Any]]
    ledger: Ledger
    params: dict[str, Params]
    spec: ModelSpec
    specs: Mapping[str, ModelSpec]
    partition: dict[str, Any]
    config: str
    directory: Path | None = None
    spans: list[dict[str, Any]] = field(default_factory=list, repr=False)

    @property
    def accuracy(self) -> float:
        """Test accuracy after the last round, between 0 and 1."""
        return float(self.result["accuracy"])

    @property
    def accuracy_ci95(self) -> list[float] | None:
        """95 % Wilson interval of the accuracy; over clients' models, a t interval or None."""
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
        """Write the HTML report of this run.

        Args:
            path: file to write.

        Returns:
            The path of the file.
        """
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
    """Members under distinct names that are valid in an `nn.ModuleDict`."""
    found: dict[str, Item] = {}
    taken = dir(nn.ModuleDict())
    for key, member in members.items():
        name = re.sub(r"\W", "_", str(key)) or "member"
        while name in found or name in taken:
            name += "_"
        found[name] = member
    return found


def model_tensors(params: Mapping[str, Params]) -> dict[str, Tensor]:
    """The tensors of model.safetensors: under their state names, which several models have a prefix before."""
    return {f"{name}.{key}" if name else key: t for name, p in params.items() for key, t in p.named().items()}


def describe_model(experiment: Experiment, params: Mapping[str, Params]) -> dict[str, str]:
    """Metadata of model.safetensors: what is needed to build the model, or each member, and to use it."""

    def described(spec: ModelSpec) -> dict[str, Any]:
        return {f.name: getattr(spec, f.name) for f in fields(spec) if f.name != "builder"}

    about = described(experiment.model) | {"class_names": list(experiment.class_names)}
    if experiment.prepared is not None:
        about["preparation"] = experiment.prepared
    if "" not in params:
        models = experiment.models
        about["members"] = {name: described(models[p.layout.arch]) for name, p in params.items()}
    return {"headwater": json.dumps(about)}
