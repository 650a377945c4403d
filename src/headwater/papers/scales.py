"""Scales: reduced versions of a table's printed setting that fit into a minute or an hour.

A scale preserves what a table varies: rounds, epochs and steps are multiplied by a factor, and different values stay
different.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any

from headwater.config import catalog
from headwater.config.plain_tables import merge
from headwater.config.sections import network
from headwater.data import HOLDOUT, UNUSED
from headwater.errors import ConfigError, nearest
from headwater.papers.table import ScaleOverride
from headwater.sweep import DataSummary

Tree = dict[str, Any]
# Unit of a stage's length → keys of the stage that are counted in it.
FOLLOWERS = {"steps": ("patience", "eval_every", "swa_from", "swa_every"), "epochs": ("patience", "eval_every")}
NO_LENGTHS = (".batch", ".min_size", ".reference_size")  # keys that do not say how long training is
LABELLED = ("algorithm.pretrain_epochs",)  # lengths that need a labelled reference set
SMALL_NETS = ("cnn", "mlp", "linear")  # for clients with different architectures


@dataclass(frozen=True)
class ShrinkRule:
    """Multiplies a length by a factor, within bounds."""

    factor: float
    least: int = 1
    most: int = 10**9

    def shrunk(self, values: Iterable[int], more: float = 1.0) -> dict[int, int]:
        """The new value of each value: distinct, in the same order, and never larger than before.

        Args:
            values: the values of a key in all cells of a table.
            more: further factor.
        """
        found: dict[int, int] = {}
        last = -1
        for value in sorted(set(values)):
            wanted = max(round(min(value * self.factor, self.most) * more), self.least)
            last = found[value] = min(value, max(wanted, last + 1)) if value else 0
        return found


@dataclass(frozen=True)
class Scale:
    """A scale of scales.toml, which describes the fields."""

    name: str
    about: str
    seeds: int | None = None
    samples: int | None = None
    least_samples: int = 1000
    most_samples: int = 10**9
    test: int | None = None
    final_only: bool = False
    minutes: float | None = None
    grow: tuple[float, ...] = ()
    shrink: Mapping[str, ShrinkRule] = field(default_factory=dict)
    unset: Mapping[str, int] = field(default_factory=dict)
    networks: Mapping[str, Tree] = field(default_factory=dict)
    set: Tree = field(default_factory=dict)
    metric: Mapping[str, str] = field(default_factory=dict)

    def over(self, table: ScaleOverride | None) -> Scale:
        """This scale with the changes that a table makes to it."""
        if table is None:
            return self
        rules = {}
        for key, value in table.shrink.items():
            try:
                rule = value if isinstance(value, dict) else {"factor": float(str(value).removeprefix("x"))}
                rules[key] = ShrinkRule(**rule)
            except (TypeError, ValueError):
                raise ConfigError(
                    f"scale.{self.name}.shrink.{key} must be a factor such as 'x0.1', or a table of factor, least and "
                    f"most, got {value!r}"
                ) from None
        keys = ("samples", "most_samples", "test", "seeds")
        changed = {key: value for key in keys if (value := getattr(table, key)) is not None}
        changed["most_samples"] = max(changed.get("most_samples", self.most_samples), changed.get("samples", 0))
        return replace(
            self, **changed, shrink={**self.shrink, **rules}, set=merge(self.set, table.set), metric=dict(table.metric)
        )


@cache
def settings() -> Tree:
    """The content of scales.toml."""
    return tomllib.loads(files("headwater.papers").joinpath("scales.toml").read_text(encoding="utf-8"))


def names() -> list[str]:
    """Names of all scales."""
    return [name for name in settings() if name not in ("standins", "cost")]


def find(name: str) -> Scale:
    """The scale of this name."""
    if name not in names():
        raise ConfigError(f"there is no scale {name!r}{nearest(name, names())} (there are: {', '.join(names())})")
    tree = dict(settings()[name])
    tree["grow"] = tuple(tree.get("grow", ()))
    tree["shrink"] = {key: ShrinkRule(**rule) for key, rule in tree.get("shrink", {}).items()}
    return Scale(name, **tree)


def standins() -> dict[str, str]:
    """Substitute by name of a data set."""
    return dict(settings()["standins"])


def shrink(
    trees: Sequence[Tree],
    scale: Scale,
    sizes: Callable[[Tree], DataSummary],
    *,
    every_round: bool,
    more: float = 1.0,
    networks: bool = True,
) -> list[Tree]:
    """The configurations of all cells of a table at a scale.

    Args:
        trees: configurations of the printed setting.
        scale: the scale.
        sizes: returns the size of the data set of a configuration.
        every_round: evaluate after every round, even if the scale evaluates the last model only.
        more: further factor for all lengths; above 1 for epochs and steps only.
        networks: replace networks by smaller ones.
    """
    found = [dict(tree) for tree in trees]
    for dotted, rule in scale.shrink.items():
        old = [get(tree, dotted) for tree in trees]
        longer = more <= 1 or dotted.endswith((".epochs", ".steps"))
        times = more if longer and not dotted.endswith(NO_LENGTHS) else 1.0
        new = rule.shrunk((value for value in old if type(value) is int and value >= 0), times)
        both = zip(found, old, strict=True)
        found = [put(tree, dotted, new[was]) if type(was) is int else tree for tree, was in both]
    for dotted, value in scale.unset.items():
        found = [put(tree, dotted, value) if _left_open(tree, dotted) else tree for tree in found]
    found = [_followed(new, old) for new, old in zip(found, trees, strict=True)]
    if scale.samples is not None:
        found = _sampled(found, scale, sizes, min(more, 1.0))
    if networks:
        found = [_network(tree, scale.networks) for tree in found]
    if scale.final_only:
        found = [put(tree, "eval_every", 1 if every_round else tree["rounds"]) for tree in found]
    return [_fitting(tree, scale.set) for tree in found]


def get(tree: Mapping[str, Any], dotted: str) -> Any:
    section, _, key = dotted.rpartition(".")
    values = tree.get(section, {}) if section else tree
    return values.get(key) if isinstance(values, Mapping) else None


def put(tree: Tree, dotted: str, value: Any) -> Tree:
    section, _, key = dotted.rpartition(".")
    return {**tree, section: {**tree.get(section, {}), key: value}} if section else {**tree, key: value}


def _left_open(tree: Tree, dotted: str) -> bool:
    """Whether a key is a length that the configuration has but leaves unset."""
    section, _, key = dotted.partition(".")
    method = catalog.chosen(tree, "algorithm")
    if section in catalog.STAGES:
        stage = tree.get(section, {})
        return section in catalog.stages(method) and stage.get("epochs") is None and stage.get("steps") is None
    if dotted in LABELLED and not (
        tree["data"]["reference"] in (HOLDOUT, UNUSED) or tree["data"]["reference_labelled"]
    ):
        return False
    return key in (catalog.own(section, method) or {}) and tree.get(section, {}).get(key) is None


def _followed(new: Tree, old: Tree) -> Tree:
    """Reduce the keys whose unit is a stage's steps or epochs by the same factor as these."""
    for stage, (unit, keys) in product(catalog.STAGES, FOLLOWERS.items()):
        was, now = get(old, f"{stage}.{unit}"), get(new, f"{stage}.{unit}")
        for key in keys if type(was) is int and was and now != was else ():
            value = get(old, f"{stage}.{key}")
            if type(value) is int and value:
                least = max(1, now // 5) if (unit, key) == ("steps", "eval_every") else 1
                new = put(new, f"{stage}.{key}", max(least, round(value * now / was)))
    return new


def _sampled(trees: list[Tree], scale: Scale, sizes: Callable[[Tree], DataSummary], more: float) -> list[Tree]:
    """Set data.fraction and data.test_fraction such that the scale's numbers of samples result."""
    shares = [float(get(tree, "data.fraction") or 1.0) for tree in trees]
    smallest, found = min(shares), []
    base = max(scale.least_samples, round((scale.samples or 0) * more)) if more < 1 else scale.samples or 0
    for tree, share in zip(trees, shares, strict=True):
        size = sizes(tree)
        whole = share * size.train
        wanted = min(base * share / smallest, max(base, scale.most_samples * more))
        part = min(1.0, wanted / whole) if whole else 1.0
        tree = put(tree, "data.fraction", _four_digits(min(share, part * share)))
        if tree["data"]["reference"] != HOLDOUT:  # as many as could be held out
            most = max(1, round(tree["data"]["fraction"] * size.train)) // 5
            tree = put(tree, "data.reference_size", min(tree["data"]["reference_size"], most))
        held = get(tree, "data.validation")
        if type(held) is int and held >= 1:
            few = min(held, 50, int(part * whole // 5))
            tree = put(tree, "data.validation", max(few, round(held * part)))
        if scale.test is not None and size.test > scale.test:
            tree = put(tree, "data.test_fraction", _four_digits(scale.test / size.test))
        found.append(tree)
    return found


def _four_digits(share: float) -> float:
    return float(f"{share:.4g}") or share


def _network(tree: Tree, networks: Mapping[str, Tree]) -> Tree:
    model = tree.get("model", {})
    other = networks.get(model.get("name", "auto"))
    if other is not None and not (other["name"] == model.get("name") and all(model.get(k) == other[k] for k in other)):
        options = catalog.own("model", other["name"]) or {}
        kept = {key: model[key] for key in ("norm", "groups") if key in model and key in options}
        tree = merge(tree, {"model": {**other, **kept}})
    also = tree.get("model", {}).get("also")
    if also and any(network(entry)[0] in networks for entry in also):
        free = [net for net in SMALL_NETS if net != tree["model"]["name"]]
        tree = put(tree, "model.also", free[: len(also)])
    return tree


def _fitting(tree: Tree, layer: Mapping[str, Any]) -> Tree:
    """A configuration with the scale's own settings; stages that the method does not have are left out."""
    used = catalog.stages(catalog.chosen(tree, "algorithm"))
    return merge(tree, {key: value for key, value in layer.items() if key not in catalog.STAGES or key in used})
