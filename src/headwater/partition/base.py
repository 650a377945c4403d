"""Partition: which training sample is whose, and which client is in which sector."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from headwater.errors import ConfigError, DataError

Ints = np.ndarray[Any, np.dtype[np.int64]]
Rule = dict[str, Any]
VERSION = 1
NAMES = ("client_names", "sector_names")
SHOWN = 1000  # clients of a population whose counts are written down, drawn and tabulated


class Lazy(Sequence[Ints]):
    """Sample numbers by client that follow from a rule and are worked out for whoever asks. Clients may share some."""

    @property
    @abstractmethod
    def rule(self) -> Rule:
        """Scheme, options, seed and pool, as plain values: all that decides who holds what."""

    @property
    @abstractmethod
    def lengths(self) -> Ints:
        """The number of samples of each client."""


class Partitioner(Protocol):
    """What a scheme does: labels in, sorted indices by client out, every index at most once (those that say
    `SHARED = True` give `Lazy` ones, in which it may be at several clients).

    A scheme that looks at sectors has `split_tree(labels, sector_of, rng)` too, with the sector of each client; clients
    are then put into sectors before the samples are dealt.
    """

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> Sequence[Ints]: ...


@dataclass(frozen=True, eq=False)
class Partition:
    """Sample numbers by client, and each client's sector. Equal when both are; names, where the data has some, are for
    people to read."""

    indices: Sequence[Ints]
    sectors: tuple[int, ...]
    client_names: tuple[str, ...] = ()
    sector_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        indices = self.indices if isinstance(self.indices, Lazy) else tuple(_frozen(c) for c in self.indices)
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
        return len(self.indices)

    def client_name(self, number: int) -> str:
        """As the data has it, else the number."""
        return self.client_names[number] if self.client_names else str(number)

    def sector_name(self, number: int) -> str:
        """As the data has it, else the number."""
        return self.sector_names[number] if self.sector_names else str(number)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of samples of each client."""
        return tuple(self.lengths.tolist())

    @property
    def lengths(self) -> Ints:
        """The same as an array."""
        if isinstance(self.indices, Lazy):
            return self.indices.lengths
        return np.array([len(client) for client in self.indices], dtype=np.int64)

    @property
    def rule(self) -> Rule | None:
        """What decides who holds what, where that is a rule and not a list of sample numbers."""
        return self.indices.rule if isinstance(self.indices, Lazy) else None

    @cached_property
    def sha256(self) -> str:
        """Over all sample numbers, or the rule that gives them, and sectors, as little-endian 64-bit numbers: the same
        on every platform."""
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
        """How many clients, the first by number, are counted and drawn: all but in a large population."""
        return self.clients if self.rule is None else min(self.clients, SHOWN)

    def counts(self, labels: Ints, classes: int, first: int | None = None) -> Ints:
        """How many samples of each class each client, or each of the first ones, holds: (clients, classes)."""
        labels, some = np.asarray(labels), self.indices[:first]
        highest = max((int(client[-1]) for client in some if len(client)), default=-1)
        if highest >= len(labels):
            raise DataError(f"the partition names sample {highest}, but there are only {len(labels)} labels")
        return np.stack([np.bincount(labels[client], minlength=classes) for client in some]).astype(np.int64)

    def manifest(self) -> dict[str, Any]:
        """Everything as plain lists for JSON, with the hash that `from_manifest` checks; a rule in place of sample
        numbers where there is one."""
        head: dict[str, Any] = {"version": VERSION, "sha256": self.sha256}
        names = {key: list(getattr(self, key)) for key in NAMES if getattr(self, key)}
        if self.rule is not None:
            return head | {"rule": self.rule, "sectors": pack(self.sectors)} | names
        return head | {"sectors": list(self.sectors), "indices": [client.tolist() for client in self.indices]} | names

    def told(
        self, labels: Ints, classes: int, names: Sequence[str], made_with: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The manifest with what a report shows, counts by class, and of how many clients, if not of all; and with what
        tells other data from that which was split."""
        found = self.manifest() | {"counts": self.counts(labels, classes, self.shown).tolist(), "classes": list(names)}
        found |= {"samples": len(labels), "labels_sha256": fingerprint(labels), "made_with": dict(made_with or {})}
        return found if self.shown == self.clients else found | {"counted": {"first": self.shown, "of": self.clients}}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], labels: Ints | None = None) -> Partition:
        """The partition that was written; one whose content no longer fits its hash is refused.

        A rule says how to draw from the labels of the training set, so these must be given with it.
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
            made = cls(indices, unpack(manifest["sectors"]), *names)
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


def fingerprint(labels: Ints) -> str:
    """The SHA-256 of the labels as little-endian 64-bit numbers, in order."""
    return hashlib.sha256(np.asarray(labels).astype("<i8").tobytes()).hexdigest()


def gather(parts: Sequence[Sequence[Ints]]) -> list[Ints]:
    """Each client's pieces as one sorted array."""
    return [np.sort(np.concatenate([np.empty(0, np.int64), *pieces])) for pieces in parts]


def pack(sectors: Sequence[int]) -> list[int] | str:
    """The sectors as a list or, of very many clients, as compressed bytes in base64."""
    if len(sectors) <= SHOWN:
        return list(sectors)
    kind = "<u1" if max(sectors) < 256 else "<i4"
    return f"{kind}:" + base64.b64encode(zlib.compress(np.array(sectors, dtype=kind).tobytes())).decode()


def unpack(given: Sequence[int] | str) -> tuple[int, ...]:
    if not isinstance(given, str):
        return tuple(given)
    kind, _, packed = given.partition(":")
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
        made: Lazy = scheme.population(labels, rule["clients"], rule["seed"])
    except (KeyError, AttributeError) as error:
        raise DataError(f"the partition manifest holds a rule that cannot be followed ({error})") from error
    if made.rule != rule:
        raise DataError("the partition manifest draws from other labels than those given; use the data it was made of")
    return made


def _frozen(client: Ints) -> Ints:
    copy = np.sort(np.asarray(client, dtype=np.int64))
    copy.flags.writeable = False
    return copy
