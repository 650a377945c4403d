"""The directory of a run: configuration, rows, time line, result and model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from headwater.config import Config
from headwater.config.plain_tables import differences
from headwater.core.records import parse_json, to_json
from headwater.errors import ConfigError, OutputError
from headwater.training.checkpoint import write_whole

CONFIG, RESULT, DEVICES = "config.toml", "result.json", "devices"
NEEDED = {"algorithm", "label", "data", "accuracy", "ledger", "model_sha256"}  # keys of every result


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
                draft.mkdir(exist_ok=True)  # a killed process of the same number may have left it
                write_whole(draft / CONFIG, config.to_toml())
                try:
                    draft.rename(path)
                except OSError:
                    (draft / CONFIG).unlink()
                    draft.rmdir()
                    if not path.is_dir():  # else another process was quicker, and the lock decides who trains
                        raise
        except (FileExistsError, NotADirectoryError) as error:
            raise OutputError(
                f"{path} cannot be a run's directory, since part of it is a file; choose another --out"
            ) from error
        except OSError as error:
            raise OutputError(
                f"{str(path)[:200]} cannot be a run's directory ({str(error.strerror).lower()}); choose another --out"
            ) from error
        file = path / CONFIG
        if file.exists():
            there = Config.from_toml(file.read_text(encoding="utf-8"))
            self._check_unedited(there)
            self._compare(there, config)
        else:
            write_whole(file, config.to_toml())
        if not self._begun.exists() and self.result is None:
            self.checkpoints.mkdir(exist_ok=True)
            write_whole(self._begun, file.read_text(encoding="utf-8"))

    @property
    def _begun(self) -> Path:
        """A copy of the configuration as it was when the run began."""
        return self.checkpoints / CONFIG

    def _check_unedited(self, there: Config) -> None:
        """Refuse a config.toml that was edited since the run began: what was trained so far follows the old one."""
        if not self._begun.exists():  # a run of an earlier version
            return
        try:
            begun = Config.from_toml(self._begun.read_text(encoding="utf-8"))
        except (ConfigError, UnicodeDecodeError) as error:
            raise OutputError(
                f"{self._begun} cannot be read ({error}); copy {self.path / CONFIG} there if that was never edited, or "
                "begin anew with --force"
            ) from None
        if edits := [f"{key} from {old!r} to {new!r}" for key, old, new in differences(begun.tree(), there.tree())]:
            raise OutputError(
                f"{self.path / CONFIG} was edited after the run began ({', '.join(edits)}); undo that ({self._begun} "
                "is the configuration as it was), or train with the new one in another directory: headwater run "
                f"{self.path / CONFIG} --out DIR"
            )

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
            recorded = parse_json(path.read_text(encoding="utf-8")).get("sha256") if path.exists() else sha256
        except (ValueError, AttributeError):
            recorded = sha256  # the file is truncated, and will be written again
        if recorded != sha256:
            raise OutputError(
                f"{self.path} was begun on another split of the data, so its data has changed since; bring that back, "
                "choose another --out, or begin anew with --force"
            )

    @property
    def devices(self) -> tuple[str, ...]:
        """Kinds of device that the run was computed on, in order."""
        path = self.checkpoints / DEVICES
        return tuple(path.read_text(encoding="utf-8").split()) if path.exists() else ()

    def check_device(self, kind: str, begun: bool) -> None:
        """Refuse to resume on another kind of device than the run was computed on so far.

        Args:
            kind: of the device that is used now.
            begun: whether there are rounds that will not run again.
        """
        known = (self.devices or ("cpu",)) if begun else ()  # a run of an earlier version was on the CPU
        if known and known[-1] != kind:
            raise OutputError(
                f"{self.path} was computed on {known[-1]!r} so far and this is {kind!r}, so its last digits would "
                f"differ from those of a run on one of them; use --device {known[-1]}, or carry on all the same with: "
                f"headwater resume {self.path} --force"
            )
        self._write_devices(known or (kind,))

    def allow_device(self, kind: str) -> None:
        """Let the run carry on on this kind of device."""
        known = self.devices or ("cpu",)
        if known[-1] != kind and self.checkpoints.is_dir():
            self._write_devices((*known, kind))

    def _write_devices(self, kinds: tuple[str, ...]) -> None:
        if kinds != self.devices:
            write_whole(self.checkpoints / DEVICES, " ".join(kinds) + "\n")

    @property
    def result(self) -> dict[str, Any] | None:
        """What result.json holds; None if there is none, or an unreadable one, which the run will write again."""
        try:
            found = parse_json((self.path / RESULT).read_bytes())
        except (FileNotFoundError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) and found.keys() >= NEEDED else None

    def resume(self, until: int) -> list[dict[str, Any]]:
        """Return the rows up to a round. Later rows and spans are removed: their rounds will run again.

        Raises:
            OutputError: a row of an earlier round is damaged or missing.
        """
        rows = {row["round"]: row for row in self._trim(self.rows_path, until)}
        for number in range(1, until + 1):
            if number not in rows:
                raise OutputError(
                    f"{self.rows_path} has no readable row of round {number}, which the run has finished; restore the "
                    "file, or begin anew with --force"
                )
        for path, kept in ((self.spans_path, self._trim(self.spans_path, until)), (self.rows_path, [*rows.values()])):
            if path.exists():
                write_whole(path, "".join(to_json(row) + "\n" for row in kept))
        return [*rows.values()]

    def _trim(self, path: Path, until: int) -> list[dict[str, Any]]:
        """The rows up to a round; lines that are no rows are left out, such as one cut short by a kill."""
        kept = []
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                row = parse_json(line)
                if row["round"] <= until:
                    kept.append(row)
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
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


def write_model(path: Path, tensors: dict[str, Tensor], about: dict[str, str]) -> None:
    """Write a .safetensors file in one piece.

    Args:
        path: of the file.
        tensors: by name.
        about: metadata of the file.
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
