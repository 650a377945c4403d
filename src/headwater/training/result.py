"""What a run gives out: events while it runs, the files of its directory, and the result."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from torch import nn

from headwater.core.ledger import TIERS, Ledger
from headwater.core.params import Params
from headwater.core.records import parse_json, to_json
from headwater.engines.base import Done
from headwater.errors import OutputError, said
from headwater.inference.several_models import FILE as MEMBERS
from headwater.inference.trained import KEY as METADATA
from headwater.inference.trained import Array, TrainedModel, from_metadata
from headwater.models.base import ModelSpec
from headwater.report.notebook import card, sectors, sparkline
from headwater.report.numbers import count, duration, percent, size
from headwater.training.model_tensors import Frozen, tensors_of
from headwater.training.run_directory import write_model

if TYPE_CHECKING:
    from headwater.training.model_tensors import ModelsBeside


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
        card: the model card, as in model.md.
        about: metadata of model.safetensors: what is needed to build the model and to use it.
        spans: timed tasks of a run without a directory; use `timeline`.
        frozen: by architecture, the tensors that no model of it changes; they are not in `params`.
        beside: content of members.safetensors, where the method keeps several models beside a global one.

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
    card: str = field(default="", repr=False)
    about: str = field(default="", repr=False)
    spans: list[dict[str, Any]] = field(default_factory=list, repr=False)
    frozen: Frozen = field(default_factory=dict, repr=False)
    beside: ModelsBeside | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        result, interval = self.result, self.accuracy_ci95
        between = f" (95 % interval {interval[0]:.2%} to {interval[1]:.2%})" if interval else ""
        first = f"<Run {result['label']} on {Path(str(result['data'])).name}: accuracy {self.accuracy:.2%}{between}"
        sent = sum(self.ledger.bytes(tier) for tier in TIERS)
        counts = (f"{result[key]} {key if result[key] != 1 else key[:-1]}" for key in ("rounds", "clients", "sectors"))
        rest = f" {', '.join(counts)}, {sent:,} bytes"
        return "\n".join([first, rest, f" {self.directory or 'not on disk; save() writes it'}>"])

    def _repr_html_(self) -> str:
        result, interval = self.result, self.accuracy_ci95
        between = f" [{percent(interval[0])}, {percent(interval[1])}]" if interval else ""
        sent = {tier: sum(self.ledger.bytes(tier, way) for way in ("up", "down")) for tier in TIERS}
        rows = [
            ("accuracy", f"{percent(self.accuracy)}{between}"),
            ("best", f"{percent(result['best_accuracy'])} in round {result['best_round']} of {result['rounds']}"),
            ("clients", f"{count(result['clients'])} in {sectors(result['sectors'])}"),
            ("server – sectors", size(sent["server_sector"])),
            ("sectors – clients", size(sent["sector_client"])),
            ("time", duration(result["seconds"])),
            ("folder", str(self.directory or "not on disk; save() writes it")),
        ]
        curve = [row["accuracy"] for row in self.history if row["accuracy"] is not None]
        what = f"Accuracy by round, from {percent(min(curve))} to {percent(max(curve))}"
        title = f"{result['label']} on {Path(str(result['data'])).name}"
        notes = (f"{what}.", *result.get("notes", ()), *result.get("remarks", ()))
        return card(title, rows, sparkline(curve, what, width=320, height=60), notes)

    @property
    def accuracy(self) -> float:
        """Test accuracy after the last round, between 0 and 1."""
        return float(self.result["accuracy"])

    @property
    def accuracy_ci95(self) -> list[float] | None:
        """95 % Wilson interval of the accuracy; over clients' models, a t interval or None."""
        return cast(list[float] | None, self.result["accuracy_ci95"])

    @cached_property
    def timeline(self) -> list[dict[str, Any]]:
        """Every task, when it ran and on which worker, as in timeline.jsonl."""
        if self.directory is None:
            return self.spans
        lines = (self.directory / "timeline.jsonl").read_text(encoding="utf-8").splitlines()
        return [parse_json(line) for line in lines]

    @property
    def model(self) -> nn.Module:
        """The trained model in evaluation mode; a ModuleDict by client or member where there is no single one."""
        built = {
            name: p.load_into(self.specs[p.layout.arch].build(), self.frozen.get(p.layout.arch))
            for name, p in self.params.items()
        }
        return built[""].eval() if "" in built else nn.ModuleDict(built).eval()

    @cached_property
    def trained(self) -> TrainedModel:
        """The trained model with the preparation of its inputs, as `hw.load` returns it."""
        rest = (str(self.directory or "this run"), self.spec.builder)
        kept = from_metadata(self.beside.about, self.beside.tensors, *rest) if self.beside else None
        return replace(from_metadata(self.about, tensors_of(self.params, self.frozen), *rest), beside=kept)

    def predict(self, x: Any) -> Array:
        """The class of each row; see `TrainedModel.predict`.

        Args:
            x: array, tensor, DataFrame, `DataLoader`, or the path of a file or folder.
        """
        return self.trained.predict(x)

    def predict_proba(self, x: Any) -> Array:
        """The probability of each class for each row; see `TrainedModel.predict_proba`.

        Args:
            x: as for `predict`.
        """
        return self.trained.predict_proba(x)

    def save(self, folder: str | Path) -> Path:
        """Write the run to a folder: the model with its card, the configuration, the rows and the result.

        Args:
            folder: a new or empty folder.

        Returns:
            The folder.

        Raises:
            OutputError: the folder holds files.
        """
        if not isinstance(folder, str | os.PathLike) or not str(folder):
            raise OutputError(f"save takes the path of a new or empty folder, got {folder!r}")
        path = Path(folder).expanduser()
        try:
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise OutputError(f"{path} is not an empty folder; choose another one")
            path.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or said(error)
            raise OutputError(f"{str(path)[:100]!r} cannot be made a folder ({reason}); choose another") from error
        self._write_files(path)
        write_model(path / "model.safetensors", tensors_of(self.params, self.frozen), {METADATA: self.about})
        if self.beside:
            write_model(path / MEMBERS, self.beside.tensors, {METADATA: self.beside.about})
        (path / "model.md").write_text(self.card, encoding="utf-8")
        return path

    def _write_files(self, path: Path) -> None:
        """The files that a report needs."""
        files = {"config.toml": self.config, "result.json": to_json(self.result, indent=1)}
        files["partition.json"] = to_json(self.partition, indent=1)
        files["rounds.jsonl"] = "".join(to_json(row) + "\n" for row in self.history)
        files["timeline.jsonl"] = "".join(json.dumps(span) + "\n" for span in self.timeline)
        for name, text in files.items():
            (path / name).write_text(text, encoding="utf-8")

    def report(self, path: str | Path) -> Path:
        """Write the HTML report of this run.

        Args:
            path: file to write.

        Returns:
            The path of the file.
        """
        import tempfile

        from headwater.report import write

        if not isinstance(path, str | os.PathLike) or not str(path):
            raise OutputError(f"report takes the path of an HTML file to write, got {path!r}")
        file = Path(path).expanduser()
        try:
            if self.directory is not None:
                return write([self.directory], file)
            with tempfile.TemporaryDirectory() as folder:
                self._write_files(Path(folder))
                return write([Path(folder)], file)
        except OutputError as error:
            raise OutputError(str(error).replace("choose another --out", "choose another path")) from error


class Event(NamedTuple):
    """One event of a run.

    Args:
        kind: start, task, warning, round or end.
        round: number of the round.
        rounds: number of rounds of the run.
        phase: phase of the task: train, distill, evaluate, …
        done: finished tasks of this phase in this round.
        total: submitted tasks of this phase in this round.
        accuracy: the last known test accuracy.
        seconds: since the run began.
        text: sentence of a warning.
    """

    kind: str
    round: int
    rounds: int
    phase: str = ""
    done: int = 0
    total: int = 0
    accuracy: float | None = None
    seconds: float = 0.0
    text: str = ""


class Progress:
    """Counts finished tasks and calls `watch`; without one it does nothing."""

    def __init__(self, watch: Callable[[Event], None] | None, rounds: int) -> None:
        self.watch, self.rounds = watch, rounds
        self.began = time.time()
        self.accuracy: float | None = None  # the last known
        self._finished: Counter[tuple[int, str]] = Counter()  # tasks of open rounds, by round and phase

    def say(self, kind: str, number: int, phase: str = "", done: int = 0, total: int = 0, text: str = "") -> None:
        if self.watch:
            seconds = time.time() - self.began
            self.watch(Event(kind, number, self.rounds, phase, done, total, self.accuracy, seconds, text))

    def task(self, done: Done, submitted: Mapping[tuple[int, str], int]) -> None:
        key = (done.round, done.phase)
        self._finished[key] += len(done.notes)
        self.say("task", *key, self._finished[key], max(self._finished[key], submitted[key]))

    def round_closed(self, number: int) -> None:
        for key in [key for key in self._finished if key[0] <= number]:
            del self._finished[key]
        self.say("round", number)
