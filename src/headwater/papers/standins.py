"""Data that stands in for data that is not there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headwater.config.tree import merge
from headwater.data import DATASETS
from headwater.errors import DataError
from headwater.papers.scales import standins
from headwater.sweep import Size

Tree = dict[str, Any]
Ask = Callable[[Sequence[tuple[Mapping[str, Any], bool]]], list[Size]]
PHOTOGRAPHS, COLOUR = "cifar10", (3, 32, 32)


class Library:
    """What is known of data sets; asked for once each."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._known: dict[str, Size] = {}

    def learn(self, wanted: Iterable[tuple[Mapping[str, Any], bool]]) -> None:
        """Find out about several at once."""
        new = {key: each for each in wanted if (key := _key(*each)) not in self._known}
        self._known |= dict(zip(new, self._ask(list(new.values())), strict=True))

    def size(self, tree: Mapping[str, Any], reference: bool = False) -> Size:
        """Of the data of a cell, or of its reference set."""
        section = tree["data"]
        self.learn([(section, reference)])
        found = self._known[_key(section, reference)]
        if found.wrong:
            raise DataError(found.wrong)
        return found


def with_standins(trees: Sequence[Tree], library: Library) -> tuple[list[Tree], list[str]]:
    """The cells with data that is there, and a sentence for each replacement. What has none either is refused."""
    library.learn([(tree["data"], False) for tree in trees])
    told: dict[str, None] = {}
    found = [_data(tree, library, told) for tree in trees]
    library.learn([(tree["data"], True) for tree in found if tree["data"]["reference"] in DATASETS])
    return [_reference(tree, library, told) for tree in found], list(told)


def _data(tree: Tree, library: Library, told: dict[str, None]) -> Tree:
    size, name = library.size(tree), tree["data"]["name"]
    if not size.absent:
        return tree
    other = standins().get(name)
    if other is None:
        raise DataError(size.absent)
    replaced = merge(tree, {"data": {"name": other}})
    if library.size(replaced).absent:
        raise DataError(f"{size.absent}; {other!r}, which could stand in for it, is not there either")
    told[f"{other} stands in for {name}, which is not in the data directory."] = None
    return replaced


def _reference(tree: Tree, library: Library, told: dict[str, None]) -> Tree:
    """A reference set that is absent, does not fit or has become the clients' own data is replaced."""
    data = tree["data"]
    name = wanted = data["reference"]
    if name not in DATASETS:
        return tree
    own = library.size(tree)

    def usable(other: str) -> bool:
        if other == data["name"]:
            return False
        there = library.size({"data": {**data, "reference": other}}, reference=True)
        return not there.absent and (there.shape, there.tokens) == (own.shape, own.tokens)

    if usable(name):
        return tree
    choices = [standins().get(name, ""), PHOTOGRAPHS if own.shape == COLOUR else ""]
    wanted = next((other for other in choices if other in DATASETS and usable(other)), "holdout")
    absent = library.size(tree, reference=True).absent
    reason = "is not in the data directory" if absent else "does not go with it"
    if name == data["name"]:
        reason = "is what clients hold"
    what = "a part of the data that is set aside" if wanted == "holdout" else wanted
    told[f"{what} stands in for {name} as the reference set of {data['name']}: {name} {reason}."] = None
    return merge(tree, {"data": {"reference": wanted}})


def _key(section: Mapping[str, Any], reference: bool) -> str:
    apart = ("fraction", "test_fraction", "validation", "reference_size", "reference_fraction", "reference_classes")
    kept = {k: v for k, v in section.items() if k not in apart and (reference or k != "reference")}
    return json.dumps([kept, reference], sort_keys=True, default=str)
