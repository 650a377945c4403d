"""Splits that are not drawn: data that came with its clients, and a split that was written down before."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass as plain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import model_validator
from pydantic.dataclasses import dataclass

from headwater.errors import ConfigError, DataError
from headwater.partition.base import Ints, Partition, fingerprint
from headwater.specs import STRICT

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.data.owners import Owners

MANIFEST = "partition.json"
MADE_WITH = ("name", "fraction", "validation", "reference", "reference_size")  # keys of [data] that decide who is left


@plain(frozen=True)
class Given:
    """Rows by client and, where they are known, their sectors and the names that the data has for both."""

    indices: Sequence[Ints]
    sectors: tuple[int, ...] | None = None
    client_names: tuple[str, ...] = ()
    sector_names: tuple[str, ...] = ()


@dataclass(frozen=True, config=STRICT)
class Natural:
    """Everybody holds what the data says is theirs."""

    def given(self, labels: Ints, owners: Owners | None) -> Given:
        if owners is None:
            raise ConfigError(
                "partition.scheme = 'natural' is for data that is already split: name the column with data.client, use "
                "a folder or file for each client, or give hw.Data its client=...; or choose another scheme"
            )
        return Given(owners.indices(), owners.sectors, owners.clients, owners.sector_names)

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> Sequence[Ints]:
        """There is nothing to draw."""
        return self.given(labels, None).indices


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Manifest:
    """The clients and sectors of a partition.json, which `headwater partition` writes and every run leaves in its
    directory. `manifest` is its path, or the directory that it is in.

    It numbers the rows that were left to clients when it was made, so the validation and the reference set are carved
    out by its seed, whatever the run's own. With `sha256`, as in a run's own configuration, no other split is taken.
    """

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
        """Where it is, from the root on, so that a configuration means the same wherever it is used."""
        path = Path(self.manifest).expanduser().absolute()
        return path / MANIFEST if path.is_dir() else path

    @property
    def seed(self) -> int | None:
        """The one that the data was carved by; none if the file does not say."""
        return _seed(self._read())

    def given(self, labels: Ints, owners: Owners | None) -> Given:
        found = self._read()
        self._check_data(found, labels)
        try:
            made = Partition.from_manifest(found, labels)
        except DataError as error:
            raise DataError(f"partition.manifest {self.file}: {error}") from error
        if self.sha256 and made.sha256 != self.sha256:
            raise DataError(
                f"partition.manifest {self.file} holds the split {made.sha256[:12]}…, but partition.sha256 asks for "
                f"{self.sha256[:12]}…; bring that file back, or set partition.sha256 = '' to take what is there"
            )
        if made.rule is None:
            highest = max((int(rows[-1]) for rows in made.indices if len(rows)), default=-1)
            if highest >= len(labels):
                raise DataError(
                    f"partition.manifest {self.file} is a split of other data: it names sample {highest}, but there "
                    f"are only {len(labels)} training samples here"
                )
        if owners is not None and not _same(made.indices, owners.indices()):
            raise ConfigError(
                f"this data says itself who holds which row, and partition.manifest {self.file} says otherwise; use "
                "partition.scheme = 'natural', or data without clients of its own"
            )
        return Given(made.indices, made.sectors, made.client_names, made.sector_names)

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> Sequence[Ints]:
        """There is nothing to draw, and the file says how many clients there are."""
        return self.given(labels, None).indices

    def _read(self) -> Mapping[str, Any]:
        if not self.file.exists():
            raise DataError(
                f"partition.manifest: there is no file {self.file}; write one with `headwater partition`, or name the "
                f"{MANIFEST} in a run's directory"
            )
        try:
            found = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"partition.manifest {self.file} could not be read as JSON ({error})") from error
        if not isinstance(found, dict):
            raise DataError(
                f"partition.manifest {self.file} holds no table of keys, so it is no split; name another file"
            )
        return found

    def _check_data(self, found: Mapping[str, Any], labels: Ints) -> None:
        told, here = found.get("labels_sha256"), fingerprint(labels)
        if told is None or told == here:
            return
        settings = found.get("made_with")
        told_of = settings.items() if isinstance(settings, dict) else ()
        words = ", ".join(f"{key} = {value!r}" for key, value in told_of if key != "seed")  # that is taken from here
        raise DataError(
            f"partition.manifest {self.file} is a split of other data: of {found.get('samples')} training samples "
            f"whose labels have SHA-256 {str(told)[:12]}…, while here are {len(labels)} with {here[:12]}…; use what it "
            f"was made with{f': {words}' if words else ''}"
        )


def carving_seed(config: Config) -> int:
    """The seed by which the data is cut into public parts and the clients': the run's, but for a written split."""
    if config.partition.scheme != "manifest":
        return config.seed
    found = Manifest(**config.partition.options).seed
    return config.seed if found is None else found


def made_with(config: Config) -> dict[str, Any]:
    """The settings that decide which rows are left to clients, for a manifest to name."""
    of_data = {f"data.{key}": getattr(config.data, key) for key in MADE_WITH}
    return {"seed": carving_seed(config)} | of_data


def settled(config: Config, partition: Partition) -> dict[str, Any]:
    """What a resolved configuration says of a written split: where it is, from anywhere, and which one it is."""
    if config.partition.scheme != "manifest":
        return {}
    return {"manifest": str(Manifest(**config.partition.options).file), "sha256": partition.sha256}


def _seed(found: Mapping[str, Any]) -> int | None:
    told = found.get("made_with")
    seed = told.get("seed") if isinstance(told, dict) else None
    return seed if isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 else None


def _same(one: Sequence[Ints], other: Sequence[Ints]) -> bool:
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
