"""`Partition`: which client holds which training samples, and which sector each client belongs to."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from headwater.errors import ConfigError, DataError
from headwater.partition.base import Ints

Rule = dict[str, Any]
VERSION = 1
NAMES = ("client_names", "sector_names")
SHOWN = 1000  # clients of a lazy partition whose counts are stored and shown


class LazyIndices(Sequence[Ints]):
    """Sample numbers by client, computed from a rule when they are used. Clients may hold the same samples."""

    @property
    @abstractmethod
    def rule(self) -> Rule:
        """Scheme, options, seed and labels' hash as plain values: all that the sample numbers depend on."""

    @property
    @abstractmethod
    def lengths(self) -> Ints:
        """The number of samples of each client."""


@dataclass(frozen=True, eq=False)
class Partition:
    """Sample numbers by client, and the sector of each client. Names do not count for equality.

    Args:
        indices: sample numbers of the training set, one array per client, or `LazyIndices`.
        sectors: the sector's number of each client, from 0 without gaps.
        client_names: one name per client, if the data has names.
        sector_names: one name per sector, likewise.

    Raises:
        DataError: the numbers of clients differ, sectors have gaps, or a sample is at two clients.
    """

    indices: Sequence[Ints]
    sectors: tuple[int, ...]
    client_names: tuple[str, ...] = ()
    sector_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        indices = self.indices if isinstance(self.indices, LazyIndices) else tuple(_frozen(c) for c in self.indices)
        object.__setattr__(self, "indices", indices)
        if not isinstance(self.sectors, tuple) or any(type(sector) is not int for sector in self.sectors):
            object.__setattr__(self, "sectors", tuple(int(sector) for sector in self.sectors))
        if len(indices) != len(self.sectors):
            raise DataError(f"a partition of {len(indices)} clients names the sectors of {len(self.sectors)}")
        if not len(indices) or sorted(set(self.sectors)) != list(range(max(self.sectors) + 1)):
            raise DataError("a partition needs at least one client, and sectors numbered from 0 without gaps")
        for names, number in ((self.client_names, len(indices)), (self.sector_names, max(self.sectors) + 1)):
            if names and len(names) != number:
                raise DataError(f"a partition has {len(names)} names for {number} clients or sectors; give each one")
        if self.rule is not None:
            return
        together = np.concatenate(indices)
        if len(together) and (together.min() < 0 or len(np.unique(together)) < len(together)):
            raise DataError("a partition may give each sample to one client only, and sample numbers start at 0")

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.indices)

    def client_name(self, number: int) -> str:
        """The data's own name, else the number."""
        return self.client_names[number] if self.client_names else str(number)

    def sector_name(self, number: int) -> str:
        """The data's own name, else the number."""
        return self.sector_names[number] if self.sector_names else str(number)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of samples of each client."""
        return tuple(self.lengths.tolist())

    @property
    def lengths(self) -> Ints:
        """The number of samples of each client, as an array."""
        if isinstance(self.indices, LazyIndices):
            return self.indices.lengths
        return np.array([len(client) for client in self.indices], dtype=np.int64)

    @property
    def rule(self) -> Rule | None:
        """The rule of `LazyIndices`; None if the sample numbers are a list."""
        return self.indices.rule if isinstance(self.indices, LazyIndices) else None

    @cached_property
    def sha256(self) -> str:
        """Hash of the sample numbers (or their rule) and sectors as little-endian int64, equal on every platform."""
        if self.rule is not None:
            head = b"headwater population 1\n" + json.dumps(self.rule, sort_keys=True).encode() + b"\n"
            return hashlib.sha256(head + np.array(self.sectors, dtype="<i8").tobytes()).hexdigest()
        digest = hashlib.sha256(b"headwater partition 1\n")
        for client, sector in zip(self.indices, self.sectors, strict=True):
            digest.update(np.array([sector, len(client)], dtype="<i8").tobytes())
            digest.update(client.astype("<i8").tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partition) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    @property
    def shown(self) -> int:
        """How many clients are counted and drawn: all, or the first `SHOWN` of a lazy partition."""
        return self.clients if self.rule is None else min(self.clients, SHOWN)

    def counts(self, labels: Ints, classes: int, first: int | None = None) -> Ints:
        """The number of samples per client and class: (clients, classes).

        Args:
            labels: of the training set.
            classes: how many there are.
            first: count only this many clients.
        """
        labels, some = np.asarray(labels), self.indices[:first]
        highest = max((int(client[-1]) for client in some if len(client)), default=-1)
        if highest >= len(labels):
            raise DataError(f"the partition names sample {highest}, but there are only {len(labels)} labels")
        return np.stack([np.bincount(labels[client], minlength=classes) for client in some]).astype(np.int64)

    def manifest(self) -> dict[str, Any]:
        """The partition as plain lists for JSON, with the hash that `from_manifest` checks; or with its rule."""
        head: dict[str, Any] = {"version": VERSION, "sha256": self.sha256}
        names = {key: list(getattr(self, key)) for key in NAMES if getattr(self, key)}
        if self.rule is not None:
            return head | {"rule": self.rule, "sectors": pack(self.sectors)} | names
        return head | {"sectors": list(self.sectors), "indices": [client.tolist() for client in self.indices]} | names

    def described(
        self, labels: Ints, classes: int, names: Sequence[str], made_with: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The content of partition.json: the manifest, counts by class for reports, and what identifies the data.

        Args:
            labels: of the training set.
            classes: how many there are.
            names: of the classes.
            made_with: settings that decide which samples are left to clients.
        """
        content = self.manifest() | {"counts": self.counts(labels, classes, self.shown).tolist()}
        content |= {"classes": list(names), "samples": len(labels), "labels_sha256": fingerprint(labels)}
        content |= {"made_with": dict(made_with or {})}
        if self.shown < self.clients:
            content["counted"] = {"first": self.shown, "of": self.clients}
        return content

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], labels: Ints | None = None) -> Partition:
        """The partition of a manifest.

        Args:
            manifest: as `manifest()` returns it.
            labels: of the training set; needed for a rule, which draws from them.

        Raises:
            DataError: keys are missing, or the content does not fit its hash.
        """
        content = "rule" if "rule" in manifest else "indices"
        missing = [key for key in ("version", "sha256", "sectors", content) if key not in manifest]
        if missing:
            raise DataError(f"this is no partition manifest: it lacks {', '.join(missing)}")
        if manifest["version"] != VERSION:
            raise DataError(f"the partition manifest has version {manifest['version']!r}, but {VERSION} is read here")
        try:
            indices = (
                _population(manifest["rule"], labels)
                if content == "rule"
                else tuple(np.array(c, dtype=np.int64) for c in manifest["indices"])
            )
            names = (tuple(map(str, manifest.get(key, ()))) for key in NAMES)
            partition = cls(indices, unpack(manifest["sectors"]), *names)
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(f"the partition manifest does not hold lists of whole numbers ({error})") from error
        if partition.sha256 != manifest["sha256"]:
            raise DataError(
                f"the partition manifest was changed: its content has SHA-256 {partition.sha256[:12]}…, "
                f"but it says {str(manifest['sha256'])[:12]}…; write it anew instead of editing it"
            )
        return partition


def fingerprint(labels: Ints) -> str:
    """The SHA-256 of the labels as little-endian 64-bit numbers, in order."""
    return hashlib.sha256(np.asarray(labels).astype("<i8").tobytes()).hexdigest()


def pack(sectors: Sequence[int]) -> list[int] | str:
    """The sectors as a list or, for very many clients, as compressed bytes in base64."""
    if len(sectors) <= SHOWN:
        return list(sectors)
    kind = "<u1" if max(sectors) < 256 else "<i4"
    return f"{kind}:" + base64.b64encode(zlib.compress(np.array(sectors, dtype=kind).tobytes())).decode()


def unpack(stored: Sequence[int] | str) -> tuple[int, ...]:
    """Inverse of `pack`."""
    if not isinstance(stored, str):
        return tuple(stored)
    kind, _, packed = stored.partition(":")
    if kind not in ("<u1", "<i4"):
        raise ValueError(f"sectors are packed as {kind!r}")
    try:
        return tuple(np.frombuffer(zlib.decompress(base64.b64decode(packed)), dtype=kind).tolist())
    except zlib.error as error:
        raise ValueError(str(error)) from error


def _population(rule: Rule, labels: Ints | None) -> Sequence[Ints]:
    from headwater.partition import PARTITIONS

    if labels is None:
        raise DataError("this partition manifest holds a rule; give the labels of the training set that it draws from")
    try:
        scheme = PARTITIONS.load(rule["scheme"])(**rule["options"])
        indices: LazyIndices = scheme.population(labels, rule["clients"], rule["seed"])
    except (KeyError, ConfigError) as error:
        raise DataError(f"the partition manifest holds a rule that cannot be followed ({error})") from error
    if indices.rule != rule:
        raise DataError("the partition manifest draws from other labels than those given; use the data it was made of")
    return indices


def _frozen(client: Ints) -> Ints:
    copy = np.sort(np.asarray(client, dtype=np.int64))
    copy.flags.writeable = False
    return copy
