"""What a run gives out: events while it runs, the files of its directory, and the result."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from safetensors.torch import save
from torch import Tensor, nn

from headwater.config import Config
from headwater.core.ledger import Ledger
from headwater.core.params import Params
from headwater.core.records import to_json
from headwater.engines.base import Done
from headwater.errors import OutputError
from headwater.models.base import ModelSpec
from headwater.training.checkpoint import write_whole

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
        return cast(list[float] | None, self.result["accuracy_ci95"])

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
            lines = {"rounds.jsonl": self.history, "timeline.jsonl": self.timeline}
            files = {name: "".join(json.dumps(row) + "\n" for row in rows) for name, rows in lines.items()}
            files |= {"config.toml": self.config, "result.json": json.dumps(self.result)}
            files["partition.json"] = json.dumps(self.partition)
            for name, text in files.items():
                (Path(folder) / name).write_text(text, encoding="utf-8")
            return write([Path(folder)], Path(path))


def named(members: Mapping[Any, Item]) -> dict[str, Item]:
    """Members under distinct names that are valid in an `nn.ModuleDict`."""
    distinct: dict[str, Item] = {}
    taken = dir(nn.ModuleDict())
    for key, member in members.items():
        name = re.sub(r"\W", "_", str(key)) or "member"
        while name in distinct or name in taken:
            name += "_"
        distinct[name] = member
    return distinct


def describe_model(experiment: Experiment, params: Mapping[str, Params]) -> dict[str, str]:
    """Metadata of model.safetensors: what is needed to build the model, or each member, and to use it."""

    def described(spec: ModelSpec) -> dict[str, Any]:
        return {f.name: getattr(spec, f.name) for f in fields(spec) if f.name != "builder"}

    about = described(experiment.model) | {"class_names": list(experiment.class_names)}
    if experiment.exchange is not None:
        about["preparation"] = experiment.exchange.described()
    if "" not in params:
        models = experiment.models
        about["members"] = {name: described(models[p.layout.arch]) for name, p in params.items()}
    return {"headwater": json.dumps(about)}


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


class RunDirectory:
    """Directory of one run. Opening a directory that holds another run is refused.

    Args:
        path: the directory; created with its configuration if absent.
        config: the resolved configuration of the run.
    """

    def __init__(self, path: Path, config: Config) -> None:
        self.path, self.checkpoints = path, path / "checkpoints"
        self.rows_path, self.spans_path = path / "rounds.jsonl", path / "timeline.jsonl"
        try:
            if path.exists():
                path.mkdir(exist_ok=True)
            else:  # created under another name and renamed, so that it always has a configuration to resume from
                path.parent.mkdir(parents=True, exist_ok=True)
                draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
                draft.mkdir()
                write_whole(draft / "config.toml", config.to_toml())
                draft.rename(path)
        except (FileExistsError, NotADirectoryError) as error:
            raise OutputError(
                f"{path} cannot be a run's directory, since part of it is a file; choose another --out"
            ) from error
        file = path / "config.toml"
        if not file.exists():
            write_whole(file, config.to_toml())
        elif difference := Config.from_toml(file.read_text(encoding="utf-8")).difference(config):
            key, old, new = difference
            raise OutputError(
                f"{path} holds another run ({key} is {old!r} there and {new!r} now); "
                "choose another --out, or replace that run with --force"
            )

    def check_split(self, sha256: str) -> None:
        """Refuse to resume with other data than the run began with."""
        path = self.path / "partition.json"
        try:
            recorded = json.loads(path.read_text(encoding="utf-8")).get("sha256") if path.exists() else sha256
        except (ValueError, AttributeError):
            recorded = sha256  # the file is truncated, and will be written again
        if recorded != sha256:
            raise OutputError(
                f"{self.path} was begun on another split of the data, so its data has changed since; bring that back, "
                "choose another --out, or begin anew with --force"
            )

    @property
    def result(self) -> dict[str, Any] | None:
        path = self.path / "result.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def resume(self, until: int) -> list[dict[str, Any]]:
        """Return the rows up to a round. Later rows and spans are removed: their rounds will run again."""
        self._trim(self.spans_path, until)
        return self._trim(self.rows_path, until)

    def _trim(self, path: Path, until: int) -> list[dict[str, Any]]:
        if not path.exists():
            return []
        kept = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # a line cut short by a kill
                continue
            if row["round"] <= until:
                kept.append(row)
        write_whole(path, "".join(to_json(row) + "\n" for row in kept))
        return kept

    def sync(self) -> None:
        """Flush the rows to disk, before a checkpoint that relies on them."""
        with self.rows_path.open("ab") as file:
            os.fsync(file.fileno())

    def add_row(self, row: dict[str, Any]) -> None:
        with self.rows_path.open("a", encoding="utf-8") as file:
            file.write(to_json(row) + "\n")

    def add_spans(self, spans: list[dict[str, Any]]) -> None:
        with self.spans_path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(span) + "\n" for span in spans))  # without `to_json`: no NaN can occur

    def write(self, name: str, content: dict[str, Any]) -> None:
        write_whole(self.path / name, to_json(content, indent=1))

    def write_model(self, tensors: dict[str, Tensor], about: dict[str, str]) -> None:
        write_whole(self.path / "model.safetensors", save(_without_sharing(tensors), metadata=about))


def _without_sharing(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory, which safetensors refuses. Clients that never trained share one model."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        shared = tensor.numel() > 0 and tensor.data_ptr() in seen
        seen.add(tensor.data_ptr())
        separate[name] = tensor.clone() if shared else tensor.contiguous()
    return separate
