"""Registry of methods, and what a method says about itself. Imports no torch, so that methods can be listed without it.

A file in this folder is listed if it defines a class with `INFO = MethodInfo(...)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headwater.registry import Info, Registry

# Family → what its methods have in common. Methods are listed in this order.
FAMILIES: dict[str, str] = {
    "tree": "sectors average or distil on their own, and the server combines sectors",
    "ensemble": "several models teach one model at the server, or predict together",
    "averaging": "clients train from one model, and the server averages their models",
    "knowledge": "class means, prototypes or predictions are sent, next to models or instead of them",
    "composed": "any local trainer, any teachers and any consolidation, chosen by the configuration",
    "baseline": "upper and lower bounds: all data pooled, or every client alone",
    "own": "methods of the user's own",
}

REFERENCE = "reference data"
ROUND, BEFORE = "a round", "before the first round"


class SameAs(NamedTuple):
    """The method that gives the same result as another one on some data, and why: `because` follows "since"."""

    method: str
    because: str


@dataclass(frozen=True, kw_only=True)
class MethodInfo(Info):
    """Everything that lists, tables and generic modules need to know about a method. All values must be literals.

    Args:
        name: the name in configurations and on the command line.
        summary: one line for `headwater list`.
        family: one of `FAMILIES`.
        stages: what happens in the three stages of a round, as three phrases: local training; who teaches ("nobody"
            where nothing is distilled); consolidation, by which the server gets its model.
        models: models sent per round, as "up, down | up, down": first between server and sectors, then inside sectors.
            N is the number of active clients, M that of sectors that have any.
        moves: which kinds of values are sent from whom to whom, each once, however many there are:
            `{"a round": "server → client model; …", "before the first round": …}`. Further keys that begin with one of
            these two describe variants, such as "a round through sectors"; "also …" adds to it. A test compares them
            with the ledger of a run. Kinds are "model", "array" (a tensor), "number", "examples" (rows with labels),
            "models" for a dict, list or tuple with models in it, and "numbers" for one without.
        sees: what each party gets to see: keys "server", "host" (who runs a sector), "client" and, if a client acts as
            its sector, "leader".
        needs: what a run must provide, such as "reference data" or "client state".
        defaults: section → settings that suit the method, where they differ from those of the library.
        mixed_architectures: whether clients may have different models (`model.also`).
        features: whether the loss uses features, so that a model must have two parts, extractor and classifier.
        strengths: numeric options that make local training diverge if they are too large.
        grids: key → values that a paper searched for this method, as texts. `headwater tune` tries them by default,
            those of `local.lr` with plain SGD only.
        personal: whether all clients keep a model of their own, which is tested for each of them.
        pooled: whether clients' rows leave them. Such a method cannot be deployed.
        training_cost: time of a local training step, relative to plain training.
        public_passes: passes of each client over the reference set per round, in training passes.
    """

    family: str = "own"
    stages: tuple[str, str, str] = ("", "", "")
    models: str = ""
    moves: Mapping[str, str] = field(default_factory=dict)
    sees: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    mixed_architectures: bool = False
    features: bool = False
    strengths: tuple[str, ...] = ()
    grids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    personal: bool = False
    pooled: bool = False
    training_cost: float = 1.0
    public_passes: float = 0.0

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {self.family!r}")

    @property
    def position(self) -> int:
        """Where the family stands in lists."""
        return list(FAMILIES).index(self.family)


class Methods(Registry[MethodInfo]):
    """The registry of methods."""

    def load(self, name: str) -> Any:
        """Return the class of a listed method, or of "package.module:Name". Hooks that it lacks have defaults."""
        from headwater.algorithms.base import as_method  # imports torch

        return as_method(super().load(name))

    def info(self, name: str) -> MethodInfo:
        """Return the description of a method. A listed method is not imported for this."""
        if name in self:
            return self[name].info
        own: MethodInfo = self.load(name).INFO
        return own


ALGORITHMS = Methods("method", "headwater.algorithms", info=MethodInfo, order=lambda info: info.position)
