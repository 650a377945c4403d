"""Partition: which training sample is whose, and which client is in which sector."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from headwater.errors import ConfigError, DataError

Ints = np.ndarray[Any, np.dtype[np.int64]]
VERSION = 1


class Partitioner(Protocol):
    """What a scheme does: labels in, sorted indices by client out, every index at most once.

    A scheme that looks at sectors has `split_tree(labels, sector_of, rng)` too, with the sector of each client; clients
    are then put into sectors before the samples are dealt.
    """

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> list[Ints]: ...


@dataclass(frozen=True, eq=False)
class Partition:
    """Sample numbers by client, and each client's sector. Equal when both are."""

    indices: tuple[Ints, ...]
    sectors: tuple[int, ...]

    def __post_init__(self) -> None:
        indices = tuple(_frozen(client) for client in self.indices)
        object.__setattr__(self, "indices", indices)
        object.__setattr__(self, "sectors", tuple(int(sector) for sector in self.sectors))
        if len(indices) != len(self.sectors):
            raise DataError(f"a partition of {len(indices)} clients names the sectors of {len(self.sectors)}")
        if not indices or sorted(set(self.sectors)) != list(range(max(self.sectors) + 1)):
            raise DataError("a partition needs at least one client, and sectors numbered from 0 without gaps")
        together = np.concatenate(indices)
        if len(together) and (together.min() < 0 or len(np.unique(together)) < len(together)):
            raise DataError("a partition may give each sample to one client only, and sample numbers start at 0")

    @property
    def clients(self) -> int:
        return len(self.indices)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of samples of each client."""
        return tuple(len(client) for client in self.indices)

    @cached_property
    def sha256(self) -> str:
        """Over all sample numbers and sectors, as little-endian 64-bit numbers: the same on every platform."""
        digest = hashlib.sha256(b"headwater partition 1\n")
        for client, sector in zip(self.indices, self.sectors, strict=True):
            digest.update(np.array([sector, len(client)], dtype="<i8").tobytes())
            digest.update(client.astype("<i8").tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partition) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    def counts(self, labels: Ints, classes: int) -> Ints:
        """How many samples of each class each client holds: (clients, classes)."""
        labels = np.asarray(labels)
        highest = max((int(client[-1]) for client in self.indices if len(client)), default=-1)
        if highest >= len(labels):
            raise DataError(f"the partition names sample {highest}, but there are only {len(labels)} labels")
        return np.stack([np.bincount(labels[client], minlength=classes) for client in self.indices]).astype(np.int64)

    def manifest(self) -> dict[str, Any]:
        """Everything as plain lists for JSON, with the hash that `from_manifest` checks."""
        return {
            "version": VERSION,
            "sha256": self.sha256,
            "sectors": list(self.sectors),
            "indices": [client.tolist() for client in self.indices],
        }

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Partition:
        """The partition that was written; one whose content no longer fits its hash is refused."""
        missing = [key for key in ("version", "sha256", "sectors", "indices") if key not in manifest]
        if missing:
            raise DataError(f"this is no partition manifest: it lacks {', '.join(missing)}")
        if manifest["version"] != VERSION:
            raise DataError(f"the partition manifest has version {manifest['version']!r}, but {VERSION} is read here")
        try:
            made = cls(tuple(np.array(c, dtype=np.int64) for c in manifest["indices"]), tuple(manifest["sectors"]))
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(f"the partition manifest does not hold lists of whole numbers ({error})") from error
        if made.sha256 != manifest["sha256"]:
            raise DataError(
                f"the partition manifest was changed: its content has SHA-256 {made.sha256[:12]}…, "
                f"but it says {str(manifest['sha256'])[:12]}…; write it anew instead of editing it"
            )
        return made


def check(labels: Ints, clients: int) -> Ints:
    """The labels as numbers, or a sentence if there is nothing to share or nobody to share it with."""
    found = np.asarray(labels)
    if found.ndim != 1 or len(found) < 1 or found.dtype.kind not in "iu":
        raise DataError(
            f"a split needs one whole-number label a sample and at least one sample, got shape {found.shape}"
        )
    if clients < 1:
        raise ConfigError(f"partition.clients must be at least 1, got {clients}")
    return found.astype(np.int64)


def gather(parts: Sequence[Sequence[Ints]]) -> list[Ints]:
    """Each client's pieces as one sorted array."""
    return [np.sort(np.concatenate([np.empty(0, np.int64), *pieces])) for pieces in parts]


def _frozen(client: Ints) -> Ints:
    copy = np.sort(np.asarray(client, dtype=np.int64))
    copy.flags.writeable = False
    return copy
