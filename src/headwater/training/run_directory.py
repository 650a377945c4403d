"""The directory of a run: configuration, rows, time line, result and model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from headwater.config import Config
from headwater.core.records import to_json
from headwater.errors import OutputError
from headwater.training.checkpoint import write_whole


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
        if file.exists():
            self._compare(Config.from_toml(file.read_text(encoding="utf-8")), config)
        else:
            write_whole(file, config.to_toml())

    def _compare(self, there: Config, asked: Config) -> None:
        found = there.difference(asked)
        if found:
            key, old, new = found
            raise OutputError(
                f"{self.path} holds another run ({key} is {old!r} there and {new!r} now); "
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
        write_model(self.path / "model.safetensors", tensors, about)


def write_model(path: Path, tensors: dict[str, Tensor], about: dict[str, str]) -> None:
    """Write a model atomically.

    Args:
        path: the file.
        tensors: by name.
        about: its metadata, from `describe_model`.
    """
    draft = path.with_name(f".{path.stem}.draft")
    try:
        draft.write_bytes(save(_without_sharing(tensors), metadata=about))
        draft.replace(path)
    except OSError:  # on a full disk the draft only takes up room
        draft.unlink(missing_ok=True)
        raise


def _without_sharing(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory, which safetensors refuses. Clients that never trained share one model."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        shared = tensor.numel() > 0 and tensor.data_ptr() in seen
        seen.add(tensor.data_ptr())
        separate[name] = tensor.clone() if shared else tensor.contiguous()
    return separate
