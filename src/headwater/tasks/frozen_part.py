"""The frozen part of an architecture, as every process builds it for itself, its hash, and features under it."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from headwater.core.params import digest, frozen_bytes, frozen_tensors, frozen_views
from headwater.core.rng import derive
from headwater.errors import ConfigError
from headwater.models.base import ModelSpec

ROOM = 1 << 30  # bytes of tables that are kept; the one that was not used for longest goes first


class FeatureTables:
    """Tables of features by the content of their rows, so that a table serves whoever has the same rows.

    What is in memory never changes a number: a table that is not kept is computed again in the same way.

    Args:
        room: bytes that may be kept.
    """

    def __init__(self, room: int = ROOM) -> None:
        self._room, self._kept = room, OrderedDict[tuple[object, ...], Tensor]()

    def of(self, x: Tensor, make: Callable[[], Tensor]) -> Tensor:
        """The table of these rows, made if it is not known. Treat it as immutable."""
        key = (tuple(x.shape), x.dtype, _sha256(x))
        if key not in self._kept:
            self._kept[key] = make()
            while len(self._kept) > 1 and sum(table.nbytes for table in self._kept.values()) > self._room:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def _sha256(x: Tensor) -> bytes:
    return hashlib.sha256(x.contiguous().cpu().view(-1).view(torch.uint8).numpy().data).digest()


FIXED = 0  # seed for the hash, which is to be the same for every seed of a run


class FrozenPart:
    """What the models of one architecture never change. All modules of a process share it.

    Args:
        spec: of the model.
        arch: name of its architecture.
        seed: of the run.
        start: the tensors, if the run starts from a given model.

    Attributes:
        tables: features of rows, where the whole extractor is frozen.
    """

    def __init__(self, spec: ModelSpec, arch: str, seed: int, start: Mapping[str, Tensor] | None = None) -> None:
        self._spec, self._arch, self._seed, self._start = spec, arch, seed, start
        self.tables = FeatureTables()

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """By their state names: of the start of the run, or as its first draw has them."""
        return self._start or drawn_frozen(self._spec, self._arch, self._seed)


class FrozenParts:
    """The frozen parts of a run by architecture, built when they are needed.

    Args:
        start: architecture → the tensors, where the run starts from a given model.
    """

    def __init__(self, start: Mapping[str, Mapping[str, Tensor]] | None = None) -> None:
        self._start = dict(start or {})
        self._made: dict[tuple[str, int], FrozenPart] = {}

    def of(self, spec: ModelSpec, arch: str, seed: int) -> FrozenPart:
        """The frozen part of an architecture; it has no tensors if nothing is frozen."""
        if (arch, seed) not in self._made:
            self._made[arch, seed] = FrozenPart(spec, arch, seed, self._start.get(arch))
        return self._made[arch, seed]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_made": {}}


def drawn_frozen(spec: ModelSpec, arch: str, seed: int) -> dict[str, Tensor]:
    """The frozen tensors of the model that a run with this seed starts from.

    Args:
        spec: of the model.
        arch: name of its architecture.
        seed: of the run.
    """
    if not frozen_views(spec.outline()):
        return {}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, "model", arch))
        return frozen_tensors(spec.build())


def frozen_size(spec: ModelSpec) -> int:
    """Bytes of what is frozen in a model."""
    return frozen_bytes(spec.outline())


def frozen_sha256(specs: Mapping[str, ModelSpec]) -> str:
    """Hash of what is frozen in some models, drawn with a fixed seed; empty if nothing is.

    It differs for other weights in files and for other versions of libraries, and does not depend on the seed of a run.
    """
    parts = {arch: drawn_frozen(spec, arch, FIXED) for arch, spec in specs.items()}
    tensors = {f"{arch}/{name}": tensor for arch, part in parts.items() for name, tensor in part.items()}
    return digest(tensors) if tensors else ""


_CHECKED: set[tuple[str, str]] = set()


def check_frozen_once(sha256: str, specs: Sequence[ModelSpec]) -> None:
    """`checked_frozen`, once per process for the same models.

    Args:
        sha256: the hash that they must have; empty for any.
        specs: the models.

    Raises:
        ConfigError: they have another hash.
    """
    if sha256 and (key := (sha256, repr(specs))) not in _CHECKED:
        checked_frozen(sha256, {spec.name: spec for spec in specs})
        _CHECKED.add(key)


def checked_frozen(sha256: str, specs: Mapping[str, ModelSpec]) -> str:
    """`frozen_sha256` of some models, compared with the hash that is known.

    Args:
        sha256: the hash that they must have; empty for any.
        specs: architecture → its model.

    Raises:
        ConfigError: they have another hash.
    """
    known = frozen_sha256(specs)
    if sha256 and sha256 != known:
        now = f"now it is {known[:12]}…" if known else "now nothing is frozen"
        raise ConfigError(
            f"the frozen part of model {next(iter(specs))!r} is not the one that this run was configured with "
            f"(model.frozen_sha256 begins with {sha256[:12]!r}, {now}); bring back the same weights and library "
            "versions, or remove model.frozen_sha256 and begin another run"
        )
    return known
