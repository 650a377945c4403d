"""From a table and a scale to the runs that it takes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.config import Config, catalog
from headwater.config.fields import plain, shown
from headwater.config.load import nested, pairs, read, share
from headwater.config.tree import merge
from headwater.config.write import differences
from headwater.errors import ConfigError
from headwater.papers import cost
from headwater.papers.measures import Measure
from headwater.papers.scales import Rule, Scale, costs, get, shrink
from headwater.papers.standins import Ask, Library, with_standins
from headwater.papers.table import Column, Row, Table
from headwater.sweep import Cell, Size, identity

Tree = dict[str, Any]
Place = tuple[str, str]  # a row and a column
CORES = 2  # of the machine that a scale is made to fit
LADDER = [0.8**step for step in range(30)]
ROUNDS_SHOWN = ("curves", "before_after")


@dataclass(frozen=True)
class Plan:
    """The runs of a table, each configuration once, and where each place of the table finds its own."""

    table: Table
    scale: str
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    at: Mapping[tuple[str, str, int], int]  # row, column and seed → number of the cell
    measures: Mapping[str, Measure]  # by column
    remarks: tuple[str, ...]  # what differs from the printed setting, in sentences

    def shows_printed(self, column: str) -> bool:
        """Whether a column shows what the paper prints there, and not the same measure of another round or target."""
        return self.measures[column].text == self.table.measure(self.table.column(column)).text

    @property
    def seconds(self) -> float:
        """About how long all of them take on one core."""
        return sum(cell.weight for cell in self.cells)


def plan(
    table: Table,
    scale: Scale,
    out: Path,
    ask: Ask,
    *,
    sets: Sequence[str] = (),
    direct: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
) -> Plan:
    """`ask` tells about data sets; `sets` and `direct` are the user's own settings, over all others."""
    scale = scale.over(table.scale.get(scale.name))
    kinds, places = _kinds(table)
    direct = dict(direct or {})
    where = {"data__dir": direct["data__dir"]} if "data__dir" in direct else {}
    printed = [_printed(table, row, column, where) for row, column in kinds]
    _check_used(table, kinds, [tree["algorithm"]["name"] for tree in printed])
    library = Library(ask)
    whole, told = with_standins(printed, library)
    every_round = table.picture in ROUNDS_SHOWN or any(table.measure(c).needs_every_round for c in table.columns)
    trees, count, changed = _scaled(whole, scale, library, every_round=every_round, printed=len(table.seeds))
    chosen = tuple(seeds) if seeds is not None else table.seeds[:count]
    configs = _asked([Config(**tree) for tree in trees], sets, direct)
    rows, columns = _folders([row.name for row in table.rows]), _folders([c.name for c in table.columns])
    cells: list[Cell] = []
    known: dict[str, int] = {}
    at: dict[tuple[str, str, int], int] = {}
    for seed in chosen:
        seeded = [config.model_copy(update={"seed": seed}) for config in configs]
        keys = [identity(config) for config in seeded]
        for row, column, this in places:
            config, key = seeded[this], keys[this]
            if key not in known:
                known[key] = len(cells)
                path = out / "cells" / rows[row.name] / columns[column.name] / f"seed-{seed}"
                weight = cost.seconds(config.tree(), library.size(config.tree()), costs())
                cells.append(Cell(f"{row.name} · {column.name} · seed {seed}", path, config, weight))
            at[row.name, column.name, seed] = known[key]
    measures, moved = _measures(table, scale, printed, configs, places)
    remarks = (*told, *changed, *_set_remarks(whole, trees, scale.set), *moved)
    return Plan(table, scale.name, chosen, tuple(cells), at, measures, remarks)


def _kinds(table: Table) -> tuple[list[tuple[Row, Column]], list[tuple[Row, Column, int]]]:
    """Rows and columns that are different settings, and all places of the table with the number of theirs."""
    kinds: dict[str, tuple[int, Row, Column]] = {}
    places = []
    for row in table.rows:
        for column in table.columns:
            if table.has(row, column):
                key = json.dumps([row.name, column.set], sort_keys=True)
                number, *_ = kinds.setdefault(key, (len(kinds), row, column))
                places.append((row, column, number))
    return [(row, column) for _, row, column in kinds.values()], places


def _printed(table: Table, row: Row, column: Column, where: Mapping[str, Any]) -> Tree:
    """A cell's configuration as the paper has it, checked, with every default filled in."""
    source = row.preset or table.preset
    named = [layer["algorithm"]["name"] for layer in (row.set, column.set) if "name" in layer.get("algorithm", {})]
    try:
        method = named[-1] if named else Config.load(source).method
        catalog.check_name("algorithm", method)
        tree = read(source, [], {"algorithm__name": method, **where})
        for layer in (row.set, column.set):
            tree = merge(tree, _fitting(layer, method))
        return Config(**tree).tree()
    except ConfigError as error:
        raise ConfigError(f"{table.name}, {row.name}, {column.name}: {error}") from None


def _fitting(layer: Mapping[str, Any], method: str) -> Tree:
    """What of a row's or column's settings a method has a use for; a column may have some that only some rows use."""
    used, options = catalog.stages(method), catalog.own("algorithm", method) or {}
    found = {key: value for key, value in layer.items() if key not in catalog.STAGES or key in used}
    if "algorithm" in found:
        found["algorithm"] = {key: value for key, value in found["algorithm"].items() if key in ("name", *options)}
    return found


def _check_used(table: Table, kinds: Sequence[tuple[Row, Column]], methods: Sequence[str]) -> None:
    """Refuse a setting of a row or column that none of its methods has: it is most likely misspelt."""
    for what, each, at in [("row", row, 0) for row in table.rows] + [("column", column, 1) for column in table.columns]:
        met = list(dict.fromkeys(m for kind, m in zip(kinds, methods, strict=True) if kind[at].set == each.set))
        for section in ("algorithm", *catalog.STAGES):
            for key in each.set.get(section, {}):
                if met and not any(key in _fitting({section: {key: 0}}, method).get(section, {}) for method in met):
                    where = f"{table.name}, {what} {each.name}"
                    raise ConfigError(f"{where}: {section}.{key} means nothing to {', '.join(met)}; remove it")


def _scaled(
    trees: list[Tree], scale: Scale, library: Library, *, every_round: bool, printed: int
) -> tuple[list[Tree], int, list[str]]:
    """The cells at a scale, how many seeds it takes, and what was changed, in sentences."""
    seeds = min(printed, scale.seeds) if scale.seeds is not None else printed

    def size(tree: Tree) -> Size:
        return library.size(tree)

    def made(more: float, networks: bool) -> list[Tree]:
        return shrink(trees, scale, size, every_round=every_round, more=more, networks=networks)

    def takes(found: list[Tree], count: int) -> float:
        once = {json.dumps(tree, sort_keys=True, default=str): tree for tree in found}
        return count * sum(cost.seconds(tree, size(tree), costs()) for tree in once.values())

    budget = (scale.minutes or 0.0) * 60 * CORES
    if scale.minutes is None or scale.grow:
        found = next((each for more in scale.grow if takes(each := made(more, True), seeds) <= budget), None)
        found = made(1.0, True) if found is None else found
        return found, seeds, _network_remarks(trees, found)
    # The table's own networks before several seeds, several seeds before the smallest runs.
    for networks, count in ((False, seeds), (False, 1), (True, seeds), (True, 1)):
        floor = made(0.0, networks)
        if takes(floor, count) <= budget:
            for more in LADDER:
                found = made(more, networks)
                if takes(found, count) <= budget:
                    return found, count, _network_remarks(trees, found)
            return floor, count, _network_remarks(trees, floor)
    return floor, 1, _network_remarks(trees, floor)


def _network_remarks(before: Sequence[Tree], after: Sequence[Tree]) -> list[str]:
    told: dict[str, None] = {}
    for old, new in zip(before, after, strict=True):
        was, now = old["model"], new["model"]
        if was["name"] == now["name"] and was != now:
            told[f"At this scale the {now['name']} is smaller than the paper's."] = None
        elif was != now and now.get("also"):
            nets = [[each["name"], *each["also"]] for each in (now, was)]
            told[f"At this scale {_and(nets[0])} stand in for {_and(nets[1])}."] = None
        elif was != now:
            told[f"At this scale a small {now['name']} stands in for {was['name']}."] = None
    return list(told)


def _set_remarks(before: Sequence[Tree], after: Sequence[Tree], layer: Mapping[str, Any]) -> list[str]:
    """What a scale's own settings changed, key by key."""
    told = []
    for dotted, value, _ in differences(layer, {}):
        both = [(get(plain(old), dotted), get(plain(new), dotted)) for old, new in zip(before, after, strict=True)]
        changed = [old for old, new in both if new == value != old]
        was = list(dict.fromkeys(shown(old) for old in changed if old is not None))
        if changed:
            told.append(f"At this scale {dotted} is {shown(value)}{f' in place of {_and(was)}' if was else ''}.")
    return told


def _and(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def _asked(configs: list[Config], sets: Sequence[str], direct: Mapping[str, Any]) -> list[Config]:
    """The user's settings over all others; what only some methods have goes to those."""
    asked = merge(pairs(sets), nested(direct))
    if "name" in asked.get("algorithm", {}):
        raise ConfigError("algorithm.name is what a table compares, so --set cannot change it; use `headwater run`")
    if "seed" in asked:
        raise ConfigError("a table has several seeds; give them with --seeds")
    methods = [config.method for config in configs]
    parts = share(asked, methods)
    return [config.merged(part) if part else config for config, part in zip(configs, parts, strict=True)]


def _measures(
    table: Table,
    scale: Scale,
    printed: Sequence[Tree],
    configs: Sequence[Config],
    places: Sequence[tuple[Row, Column, int]],
) -> tuple[dict[str, Measure], list[str]]:
    """What each column shows; a round of the printed setting becomes one of the shorter run."""
    found, told = {}, []
    asked = {int(m.number or 0) for c in table.columns if (m := table.measure(c)).name == "accuracy_at"}
    for column in table.columns:
        first = next((kind for _, own, kind in places if own is column), None)
        measure = table.measure(column)
        if measure.text in scale.metric:
            measure = Measure.of(scale.metric[measure.text])
            told.append(f"{column.name}: {measure.text} in place of {table.measure(column).text}.")
        elif measure.name == "accuracy_at" and first is not None:
            whole, rounds = printed[first]["rounds"], configs[first].rounds
            if rounds < whole:
                new = Rule(rounds / whole, 1, rounds).shrunk(asked)
                measure = Measure(measure.name, float(min(new[int(measure.number or 0)], rounds)))
                told.append(f"{column.name}: after round {measure.number:g} of {rounds}.")
        found[column.name] = measure
    if any(found[name] != table.measure(table.column(name)) for _, name in table.printed):
        told.append("A column that shows another measure than the paper's is without the paper's values.")
    return found, told


def _folders(names: Sequence[str]) -> dict[str, str]:
    """Names that a file system takes, no two the same, however it treats capitals."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        plain = re.sub(r"[^\w.+-]+", "-", name).strip("-.")[:60] or "x"
        safe, number = plain, 1
        while safe.lower() in taken:
            number += 1
            safe = f"{plain}-{number}"
        taken.add(safe.lower())
        found[name] = safe
    return found
