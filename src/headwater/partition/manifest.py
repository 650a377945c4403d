"""A split that was written to a file before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import model_validator
from pydantic.dataclasses import dataclass

from headwater.core.records import parse_json
from headwater.errors import ConfigError, DataError
from headwater.partition.base import FixedSplit, Ints, Partitioner
from headwater.partition.partition import Partition, fingerprint
from headwater.registry import Info
from headwater.specs import STRICT

if TYPE_CHECKING:
    from headwater.data.arrays import Owners

MANIFEST = "partition.json"


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Manifest(Partitioner):
    """The clients and sectors of a partition.json, which `headwater partition` and every run write.

    Its sample numbers count the rows that were left to clients when it was made, so the validation and the reference
    set are cut out by the seed that it names, not by the run's own.

    Args:
        manifest: path of the file, or of the directory that it is in.
        sha256: the hash of the split; a file with another split is refused. Empty to accept any. The resolved
            configuration of a run has it.
    """

    INFO = Info(
        "manifest",
        "exactly the split of a partition.json, from `headwater partition` or a run's directory (manifest, sha256)",
    )

    manifest: str = ""
    sha256: str = ""

    @model_validator(mode="after")
    def _named(self) -> Manifest:
        if not self.manifest:
            raise ConfigError(
                f"partition.scheme = 'manifest' needs partition.manifest, the path of a {MANIFEST} that `headwater "
                "partition` wrote or a run left in its directory"
            )
        return self

    @property
    def file(self) -> Path:
        """Absolute path of the file, so that a resolved configuration works from any directory."""
        path = Path(self.manifest).expanduser().absolute()
        return path / MANIFEST if path.is_dir() else path

    @property
    def carving_seed(self) -> int | None:
        """The seed that the validation and reference set were drawn with; None if the file has none."""
        return _seed(self._read())

    def fixed_split(self, labels: Ints, owners: Owners | None) -> FixedSplit:
        content = self._read()
        self._check_data(content, labels)
        try:
            partition = Partition.from_manifest(content, labels)
        except DataError as error:
            raise DataError(f"partition.manifest {self.file}: {error}") from error
        if self.sha256 and partition.sha256 != self.sha256:
            raise DataError(
                f"partition.manifest {self.file} holds the split {partition.sha256[:12]}…, but partition.sha256 asks "
                f"for {self.sha256[:12]}…; bring that file back, or set partition.sha256 = '' to take what is there"
            )
        if partition.rule is None:
            highest = max((int(rows[-1]) for rows in partition.indices if len(rows)), default=-1)
            if highest >= len(labels):
                raise DataError(
                    f"partition.manifest {self.file} is a split of other data: it names sample {highest}, but there "
                    f"are only {len(labels)} training samples here"
                )
        if owners is not None and not _same(partition.indices, owners.indices()):
            raise ConfigError(
                f"this data says itself who holds which row, and partition.manifest {self.file} says otherwise; use "
                "partition.scheme = 'natural', or data without clients of its own"
            )
        return FixedSplit(partition.indices, partition.sectors, partition.client_names, partition.sector_names)

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> Sequence[Ints]:
        """The file's split; it also decides the number of clients."""
        return self.fixed_split(labels, None).indices

    def resolved(self, partition: Partition) -> dict[str, Any]:
        """The absolute path and the hash of this split."""
        return {"manifest": str(self.file), "sha256": partition.sha256}

    def _read(self) -> Mapping[str, Any]:
        if not self.file.exists():
            raise DataError(
                f"partition.manifest: there is no file {self.file}; write one with `headwater partition`, or name the "
                f"{MANIFEST} in a run's directory"
            )
        try:
            content = parse_json(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"partition.manifest {self.file} could not be read as JSON ({error})") from error
        if not isinstance(content, dict):
            raise DataError(
                f"partition.manifest {self.file} is not a JSON object, so it holds no split; name another file"
            )
        return content

    def _check_data(self, content: Mapping[str, Any], labels: Ints) -> None:
        written, here = content.get("labels_sha256"), fingerprint(labels)
        if written is None or written == here:
            return
        settings = content.get("made_with")
        known = settings.items() if isinstance(settings, dict) else ()
        words = ", ".join(
            f"{key} = {value!r}" for key, value in known if key != "seed"
        )  # the seed is taken from the file
        raise DataError(
            f"partition.manifest {self.file} is a split of other data: of {content.get('samples')} training samples "
            f"whose labels have SHA-256 {str(written)[:12]}…, while here are {len(labels)} with {here[:12]}…; use what "
            f"it was made with{f': {words}' if words else ''}"
        )


def _seed(content: Mapping[str, Any]) -> int | None:
    settings = content.get("made_with")
    seed = settings.get("seed") if isinstance(settings, dict) else None
    return seed if isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 else None


def _same(one: Sequence[Ints], other: Sequence[Ints]) -> bool:
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
