"""The runs of a paper's table at a scale."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.config import Config, catalog
from headwater.config.fields import plain, shown
from headwater.config.load import nested, pairs, read, settings_by_method
from headwater.config.plain_tables import differences, merge
from headwater.config.sections import network
from headwater.errors import ConfigError
from headwater.papers.claims import join_names
from headwater.papers.estimate import estimated_seconds
from headwater.papers.measures import Measure
from headwater.papers.scales import Scale, ShrinkRule, get, shrink
from headwater.papers.standins import Ask, DatasetSizes, with_standins
from headwater.papers.table import PaperColumn, PaperRow, PaperTable
from headwater.sweep import Cell, identity

Tree = dict[str, Any]
CORES = 2  # cores of the machine that the minutes of a scale refer to
LADDER = [0.8**step for step in range(30)]  # factors to try until a table fits into its minutes
ROUNDS_SHOWN = ("curves", "before_after", "fusion")


@dataclass(frozen=True)
class TablePlan:
    """The runs of a table; equal configurations share one run.

    Args:
        table: the table.
        scale: name of the scale.
        seeds: the seeds.
        cells: the runs.
        at: index into `cells` by row, column and seed.
        measures: what each column shows.
        remarks: sentences on the differences from the printed setting.
    """

    table: PaperTable
    scale: str
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    at: Mapping[tuple[str, str, int], int]
    measures: Mapping[str, Measure]
    remarks: tuple[str, ...]

    def shows_printed(self, column: str) -> bool:
        """Whether a column shows the printed measure, not that of another round or target."""
        return self.measures[column].text == self.table.measure(self.table.column(column)).text

    @property
    def seconds(self) -> float:
        """Estimated time of all runs on one core."""
        return sum(cell.weight for cell in self.cells)


def plan_table(
    table: PaperTable,
    scale: Scale,
    out: Path,
    ask: Ask,
    *,
    sets: Sequence[str] = (),
    direct: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
) -> TablePlan:
    """Plan the runs of a table.

    Args:
        table: the table.
        scale: the scale.
        out: directory of the table.
        ask: determines the sizes of data sets, see `DatasetSizes`.
        sets: configuration of the user as KEY=VALUE, which overrides all other.
        direct: configuration of the user with `section__key`.
        seeds: seeds to use instead of the table's.
    """
    scale = scale.over(table.scale.get(scale.name))
    kinds, places = _kinds(table)
    direct = dict(direct or {})
    where = {"data__dir": direct["data__dir"]} if "data__dir" in direct else {}
    printed = [_printed(table, row, column, where) for row, column in kinds]
    _check_used(table, kinds, [tree["algorithm"]["name"] for tree in printed])
    sizes = DatasetSizes(ask)
    whole, replaced = with_standins(printed, sizes)
    every_round = table.picture in ROUNDS_SHOWN or any(table.measure(c).needs_every_round for c in table.columns)
    trees, count, changed = _scaled(whole, scale, sizes, every_round=every_round, printed=len(table.seeds))
    chosen = tuple(seeds) if seeds is not None else table.seeds[:count]
    configs = _with_settings([Config(**tree) for tree in trees], sets, direct)
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
                weight = estimated_seconds(config.tree(), sizes.size(config.tree()))
                cells.append(Cell(f"{row.name} · {column.name} · seed {seed}", path, config, weight))
            at[row.name, column.name, seed] = known[key]
    measures, moved = _measures(table, scale, printed, configs, places)
    remarks = (*replaced, *changed, *_set_remarks(whole, trees, scale.set), *moved)
    return TablePlan(table, scale.name, chosen, tuple(cells), at, measures, remarks)


def _kinds(table: PaperTable) -> tuple[list[tuple[PaperRow, PaperColumn]], list[tuple[PaperRow, PaperColumn, int]]]:
    """The distinct settings (row and column), and every cell of the table with the index of its setting."""
    kinds: dict[str, tuple[int, PaperRow, PaperColumn]] = {}
    places = []
    for row in table.rows:
        for column in table.columns:
            if table.has(row, column):
                key = json.dumps([row.name, column.set], sort_keys=True)
                number, *_ = kinds.setdefault(key, (len(kinds), row, column))
                places.append((row, column, number))
    return [(row, column) for _, row, column in kinds.values()], places


def _printed(table: PaperTable, row: PaperRow, column: PaperColumn, where: Mapping[str, Any]) -> Tree:
    """A cell's configuration in the printed setting, checked, with all defaults."""
    source = row.preset or table.preset
    named = [layer["algorithm"]["name"] for layer in (row.set, column.set) if "name" in layer.get("algorithm", {})]
    try:
        method = named[-1] if named else Config.load(source).method
        catalog.check_name("algorithm", method)
        tree, _ = read(source, [], {"algorithm__name": method, **where})
        for layer in (row.set, column.set):
            tree = merge(tree, _fitting(layer, method))
        return Config(**tree).tree()
    except ConfigError as error:
        raise ConfigError(f"{table.name}, {row.name}, {column.name}: {error}") from None


def _fitting(layer: Mapping[str, Any], method: str) -> Tree:
    """The settings of a row or column that a method has; a column may set keys that only some rows have."""
    used, options = catalog.stages(method), catalog.own("algorithm", method) or {}
    found = {key: value for key, value in layer.items() if key not in catalog.STAGES or key in used}
    if "algorithm" in found:
        found["algorithm"] = {key: value for key, value in found["algorithm"].items() if key in ("name", *options)}
    return found


def _check_used(table: PaperTable, kinds: Sequence[tuple[PaperRow, PaperColumn]], methods: Sequence[str]) -> None:
    """Refuse a setting of a row or column that none of its methods has, as it is probably misspelt."""
    for what, each, at in [("row", row, 0) for row in table.rows] + [("column", column, 1) for column in table.columns]:
        met = list(dict.fromkeys(m for kind, m in zip(kinds, methods, strict=True) if kind[at].set == each.set))
        for section in ("algorithm", *catalog.STAGES):
            for key in each.set.get(section, {}):
                if met and not any(key in _fitting({section: {key: 0}}, method).get(section, {}) for method in met):
                    where = f"{table.name}, {what} {each.name}"
                    raise ConfigError(f"{where}: {section}.{key} means nothing to {', '.join(met)}; remove it")


def _scaled(
    trees: list[Tree], scale: Scale, sizes: DatasetSizes, *, every_round: bool, printed: int
) -> tuple[list[Tree], int, list[str]]:
    """The configurations at a scale, the number of seeds, and sentences on what was changed."""
    seeds = min(printed, scale.seeds) if scale.seeds is not None else printed

    def shrunk(more: float, networks: bool) -> list[Tree]:
        return shrink(trees, scale, sizes.size, every_round=every_round, more=more, networks=networks)

    def seconds(found: list[Tree], count: int) -> float:
        once = {json.dumps(tree, sort_keys=True, default=str): tree for tree in found}
        return count * sum(estimated_seconds(tree, sizes.size(tree)) for tree in once.values())

    budget = (scale.minutes or 0.0) * 60 * CORES
    if scale.minutes is None or scale.grow:
        found = next((each for more in scale.grow if seconds(each := shrunk(more, True), seeds) <= budget), None)
        found = shrunk(1.0, True) if found is None else found
        return found, seeds, _network_remarks(trees, found)
    # Keeping the networks is preferred to several seeds, and several seeds to longer runs.
    for networks, count in ((False, seeds), (False, 1), (True, seeds), (True, 1)):
        floor = shrunk(0.0, networks)
        if seconds(floor, count) <= budget:
            for more in LADDER:
                found = shrunk(more, networks)
                if seconds(found, count) <= budget:
                    return found, count, _network_remarks(trees, found)
            return floor, count, _network_remarks(trees, floor)
    return floor, 1, _network_remarks(trees, floor)


def _network_remarks(before: Sequence[Tree], after: Sequence[Tree]) -> list[str]:
    remarks: dict[str, None] = {}
    for old, new in zip(before, after, strict=True):
        was, now = old["model"], new["model"]
        if was["name"] == now["name"] and was != now:
            remarks[f"At this scale the {now['name']} is smaller than the paper's."] = None
        elif was != now and now.get("also"):
            nets = [[network(net)[0] for net in (each["name"], *each["also"])] for each in (now, was)]
            remarks[f"At this scale {join_names(nets[0])} stand in for {join_names(nets[1])}."] = None
        elif was != now:
            remarks[f"At this scale a small {now['name']} stands in for {was['name']}."] = None
    return list(remarks)


def _set_remarks(before: Sequence[Tree], after: Sequence[Tree], layer: Mapping[str, Any]) -> list[str]:
    """One sentence per key that the scale's own settings changed."""
    remarks = []
    for dotted, value, _ in differences(layer, {}):
        both = [(get(plain(old), dotted), get(plain(new), dotted)) for old, new in zip(before, after, strict=True)]
        changed = [old for old, new in both if new == value != old]
        was = list(dict.fromkeys(shown(old) for old in changed if old is not None))
        if changed:
            remarks.append(
                f"At this scale {dotted} is {shown(value)}{f' in place of {join_names(was)}' if was else ''}."
            )
    return remarks


def _with_settings(configs: list[Config], sets: Sequence[str], direct: Mapping[str, Any]) -> list[Config]:
    """Apply the user's settings; keys that only some methods have are set for those only."""
    settings = merge(pairs(sets), nested(direct))
    if "name" in settings.get("algorithm", {}):
        raise ConfigError("algorithm.name is what a table compares, so --set cannot change it; use `headwater run`")
    if "seed" in settings:
        raise ConfigError("a table has several seeds; give them with --seeds")
    methods = [config.method for config in configs]
    parts = settings_by_method(settings, methods)
    return [config.merged(part) if part else config for config, part in zip(configs, parts, strict=True)]


def _measures(
    table: PaperTable,
    scale: Scale,
    printed: Sequence[Tree],
    configs: Sequence[Config],
    places: Sequence[tuple[PaperRow, PaperColumn, int]],
) -> tuple[dict[str, Measure], list[str]]:
    """The measure of each column; a round of the printed setting becomes a round of the shorter run."""
    found, remarks = {}, []
    rounds_shown = {int(m.number or 0) for c in table.columns if (m := table.measure(c)).name == "accuracy_at"}
    for column in table.columns:
        first = next((kind for _, own, kind in places if own is column), None)
        measure = table.measure(column)
        if measure.text in scale.metric:
            measure = Measure.of(scale.metric[measure.text])
            remarks.append(f"{column.name}: {measure.text} in place of {table.measure(column).text}.")
        elif measure.name == "accuracy_at" and first is not None:
            whole, rounds = printed[first]["rounds"], configs[first].rounds
            if rounds < whole:
                new = ShrinkRule(rounds / whole, 1, rounds).shrunk(rounds_shown)
                measure = Measure(measure.name, float(min(new[int(measure.number or 0)], rounds)))
                remarks.append(f"{column.name}: after round {measure.number:g} of {rounds}.")
        found[column.name] = measure
    if any(found[name] != table.measure(table.column(name)) for _, name in table.printed):
        remarks.append("A column that shows another measure than the paper's is without the paper's values.")
    return found, remarks


def _folders(names: Sequence[str]) -> dict[str, str]:
    """Directory name by name, distinct on file systems that ignore case."""
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
