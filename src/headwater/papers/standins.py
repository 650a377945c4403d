"""Substitutes for data sets that are not in the data directory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headwater.config.plain_tables import merge
from headwater.data import DATASETS
from headwater.errors import DataError
from headwater.papers.scales import standins
from headwater.sweep import DataSummary

Tree = dict[str, Any]
Ask = Callable[[Sequence[tuple[Mapping[str, Any], bool]]], list[DataSummary]]
PHOTOGRAPHS, COLOUR = "cifar10", (3, 32, 32)  # reference set for colour images of this shape


class DatasetSizes:
    """Sizes of data sets, each determined once.

    Args:
        ask: determines the sizes of several data sets; each is a `data` section, and whether its reference set is
            meant.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._known: dict[str, DataSummary] = {}

    def learn(self, sections: Iterable[tuple[Mapping[str, Any], bool]]) -> None:
        """Determine the sizes of several data sets in one call."""
        new = {key: each for each in sections if (key := _key(*each)) not in self._known}
        self._known |= dict(zip(new, self._ask(list(new.values())), strict=True))

    def size(self, tree: Mapping[str, Any], reference: bool = False) -> DataSummary:
        """The size of the data of a configuration, or of its reference set."""
        section = tree["data"]
        self.learn([(section, reference)])
        found = self._known[_key(section, reference)]
        if found.wrong:
            raise DataError(found.wrong)
        return found


def with_standins(trees: Sequence[Tree], sizes: DatasetSizes) -> tuple[list[Tree], list[str]]:
    """Replace data sets that are absent.

    Args:
        trees: configurations of the cells of a table.
        sizes: sizes of data sets.

    Returns:
        The configurations with data that is available, and one sentence per replacement.

    Raises:
        DataError: if a data set and its substitute are both absent.
    """
    sizes.learn([(tree["data"], False) for tree in trees])
    remarks: dict[str, None] = {}
    found = [_data(tree, sizes, remarks) for tree in trees]
    sizes.learn([(tree["data"], True) for tree in found if tree["data"]["reference"] in DATASETS])
    return [_reference(tree, sizes, remarks) for tree in found], list(remarks)


def _data(tree: Tree, sizes: DatasetSizes, remarks: dict[str, None]) -> Tree:
    size, name = sizes.size(tree), tree["data"]["name"]
    if not size.absent:
        return tree
    other = standins().get(name)
    if other is None:
        raise DataError(size.absent)
    replaced = merge(tree, {"data": {"name": other}})
    if sizes.size(replaced).absent:
        raise DataError(f"{size.absent}; {other!r}, which could stand in for it, is not there either")
    remarks[f"{other} stands in for {name}, which is not in the data directory."] = None
    return replaced


def _reference(tree: Tree, sizes: DatasetSizes, remarks: dict[str, None]) -> Tree:
    """Replace a reference set that is absent, does not match the data, or is the clients' own data."""
    data = tree["data"]
    name = data["reference"]
    if name not in DATASETS:
        return tree
    own = sizes.size(tree)

    def usable(other: str) -> bool:
        if other == data["name"]:
            return False
        there = sizes.size({"data": {**data, "reference": other}}, reference=True)
        return not there.absent and (there.shape, there.tokens) == (own.shape, own.tokens)

    if usable(name):
        return tree
    choices = [standins().get(name, ""), PHOTOGRAPHS if own.shape == COLOUR else ""]
    chosen = next((other for other in choices if other in DATASETS and usable(other)), "holdout")
    absent = sizes.size(tree, reference=True).absent
    reason = "is not in the data directory" if absent else "does not go with it"
    if name == data["name"]:
        reason = "is what clients hold"
    what = "a part of the data that is set aside" if chosen == "holdout" else chosen
    remarks[f"{what} stands in for {name} as the reference set of {data['name']}: {name} {reason}."] = None
    return merge(tree, {"data": {"reference": chosen}})


def _key(section: Mapping[str, Any], reference: bool) -> str:
    ignored = ("fraction", "test_fraction", "validation", "reference_size", "reference_fraction", "reference_classes")
    kept = {k: v for k, v in section.items() if k not in ignored and (reference or k != "reference")}
    return json.dumps([kept, reference], sort_keys=True, default=str)
