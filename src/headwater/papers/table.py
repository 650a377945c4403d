"""A paper's table as its TOML file describes it, checked before any run starts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from headwater import papers, presets
from headwater.config.fields import Setting, check, describe, settings_of, shown
from headwater.core.records import parse_toml
from headwater.errors import ConfigError, nearest
from headwater.papers.measures import Measure

Tree = dict[str, Any]
Kind = TypeVar("Kind")
Picture = Literal["", "curves", "before_after", "fusion", "boundaries", "bars"]
PARTS = ("row", "column", "printed", "spread", "order", "scale")


@dataclass(frozen=True)
class PaperRow:
    """A row: usually one method.

    Args:
        name: its name.
        set: configuration of its runs, as nested tables.
        preset: preset to start from, if another than the table's.
    """

    name: str
    set: dict[str, Any] = field(default_factory=dict)
    preset: str = ""


@dataclass(frozen=True)
class PaperColumn:
    """A column: a setting, a metric, or both.

    Args:
        name: its name.
        set: configuration of its runs, as nested tables.
        metric: metric, if another than the table's.
        unit: unit, if another than the table's.
        rows: the rows that have this column; empty for all.
    """

    name: str
    set: dict[str, Any] = field(default_factory=dict)
    metric: str = ""
    unit: str | None = None
    rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A claim of the paper: a row is better than others in some columns, or a column than others in some rows."""

    better: str
    than: tuple[str, ...]
    columns: tuple[str, ...] = ()  # empty for all
    rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScaleOverride:
    """Changes that a table makes to a scale."""

    set: dict[str, Any] = field(default_factory=dict)
    samples: int | None = None
    most_samples: int | None = None
    test: int | None = None
    seeds: int | None = None  # number of the table's seeds to use
    shrink: dict[str, Any] = field(default_factory=dict)
    metric: dict[str, str] = field(default_factory=dict)  # other metrics, such as rounds to a lower target


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """The keys at the top of a table's file."""

    preset: str
    metric: str = "accuracy"
    unit: str = "%"
    seeds: tuple[int, ...] = (0,)
    note: str = ""
    picture: Picture = ""


@dataclass(frozen=True, kw_only=True)
class PaperTable(TableSettings):
    """A table: one cell for each row and column, one run for each cell and seed."""

    name: str  # paper/table, or the path of a file
    title: str
    rows: tuple[PaperRow, ...]
    columns: tuple[PaperColumn, ...]
    printed: Mapping[tuple[str, str], float] = field(default_factory=dict)  # by row and column
    spread: Mapping[tuple[str, str], float] = field(default_factory=dict)
    order: tuple[Claim, ...] = ()
    scale: Mapping[str, ScaleOverride] = field(default_factory=dict)

    def has(self, row: PaperRow, column: PaperColumn) -> bool:
        return not column.rows or row.name in column.rows

    def column(self, name: str) -> PaperColumn:
        return next(column for column in self.columns if column.name == name)

    def measure(self, column: PaperColumn) -> Measure:
        return Measure.of(column.metric or self.metric)

    def unit_of(self, column: PaperColumn) -> str:
        return self.unit if column.unit is None else column.unit


def load(name: str, scales: Iterable[str]) -> PaperTable:
    """Load a table.

    Args:
        name: PAPER/TABLE, or the path of a TOML file.
        scales: names of the known scales.
    """
    if name in papers.names():
        return parse(papers.text(name), name, scales)
    path = Path(name).expanduser()
    try:
        table = parse(path.read_text(encoding="utf-8"), name, scales)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} could not be read as text ({error})") from None
    rows = tuple(replace(row, preset=_beside(row.preset, path)) for row in table.rows)
    return replace(table, preset=_beside(table.preset, path), rows=rows)


def _beside(preset: str, path: Path) -> str:
    """The name of a preset, or the path of a file, relative to that of the table."""
    file = path.parent / preset
    return str(file.resolve()) if preset not in presets.names() and preset and file.is_file() else preset


def parse(text: str, name: str, scales: Iterable[str]) -> PaperTable:
    """Parse a table.

    Args:
        text: the TOML text.
        name: name of the table, which starts error messages.
        scales: names of the known scales.

    Raises:
        ConfigError: if the text is not a valid table.
    """
    try:
        tree = parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{name} is not valid TOML: {error}") from None
    try:
        return _table(tree, name, papers.title(text), list(scales))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def _table(tree: Tree, name: str, title: str, scales: list[str]) -> PaperTable:
    known = [*(each.name for each in fields(TableSettings)), *PARTS]
    for key in tree:
        if key not in known:
            raise ConfigError(f"a table has no key {key!r}{nearest(key, known)} (accepted: {', '.join(known)})")
    top = _filled(TableSettings, {key: value for key, value in tree.items() if key not in PARTS}, "")
    rows = tuple(_filled(PaperRow, each, f"row {at}") for at, each in _several(tree, "row"))
    columns = tuple(_filled(PaperColumn, each, f"column {at}") for at, each in _several(tree, "column"))
    for what, named in (("row", rows), ("column", columns)):
        if not named:
            raise ConfigError(f"a table needs at least one [[{what}]]")
        _once(what, [each.name for each in named])
    if not top.seeds or len(set(top.seeds)) < len(top.seeds):
        raise ConfigError(f"seeds must be whole numbers, each once and at least one, got {list(top.seeds)}")
    lines, heads = [row.name for row in rows], [column.name for column in columns]
    for column in columns:
        _known(column.rows, lines, f"column {column.name!r}: rows")
        Measure.of(column.metric or top.metric)
    claims = tuple(_filled(Claim, each, f"order {at}") for at, each in _several(tree, "order"))
    for at, claim in enumerate(claims, 1):
        _check_claim(claim, lines, heads, f"order {at}")
    printed, spread = (_numbers(tree.get(key, {}), key, lines, heads) for key in ("printed", "spread"))
    scale = {
        key: _filled(ScaleOverride, each, f"scale.{key}")
        for key, each in _section(tree.get("scale", {}), "scale").items()
    }
    _known(scale, scales, "scale")
    for key, each in scale.items():
        for old, new in each.metric.items():
            if Measure.of(old).name != Measure.of(new).name:
                raise ConfigError(
                    f"scale.{key}: metric puts {new} in place of {old}, which is a measure of another kind; "
                    f"another number of {Measure.of(old).name} is accepted"
                )
    parts: Tree = {"printed": printed, "spread": spread, "order": claims, "scale": scale}
    return PaperTable(**vars(top), name=name, title=title, rows=rows, columns=columns, **parts)


def _check_claim(claim: Claim, rows: list[str], columns: list[str], where: str) -> None:
    named = (claim.better, *claim.than)
    by_row = all(name in rows for name in named)
    if not by_row and not all(name in columns for name in named):
        known = rows if claim.better in rows or claim.better not in columns else columns
        _known(named, known, f"{where}: better and than")
    if not claim.than or claim.better in claim.than:
        raise ConfigError(f"{where} must name others in `than`, got {list(claim.than)}")
    _known(claim.columns, columns, f"{where}: columns")
    _known(claim.rows, rows, f"{where}: rows")
    if claim.rows if by_row else claim.columns:
        kind = "rows" if by_row else "columns"
        raise ConfigError(f"{where} compares {kind}, so it cannot be limited to some {kind}; remove its `{kind}`")


def _filled(kind: type[Kind], values: Any, where: str) -> Kind:
    """An instance of a dataclass from checked values; `where` starts error messages."""
    values = _section(values, where)
    accepted: dict[str, Setting] = settings_of(kind)
    checked: Tree = {}
    for key, value in values.items():
        dotted = f"{where}: {key}" if where else key
        if key not in accepted:
            raise ConfigError(
                f"there is no {dotted!r}{nearest(key, accepted)} (accepted{f' in {where}' if where else ''}: "
                f"{', '.join(accepted)})"
            )
        checked[key] = check(dotted, accepted[key], value)
    for each in fields(kind):  # type: ignore[arg-type]
        if each.default is MISSING and each.default_factory is MISSING and each.name not in checked:
            wanted = describe(accepted[each.name].annotation)
            raise ConfigError(f"{f'{where}: ' if where else ''}{each.name} is needed and must be {wanted}")
    return kind(**checked)


def _several(tree: Tree, key: str) -> Iterable[tuple[int, Any]]:
    found = tree.get(key, [])
    if not isinstance(found, list):
        raise ConfigError(f"write [[{key}]], with two brackets, since a table has several; got {shown(found)}")
    return enumerate(found, 1)


def _section(values: Any, where: str) -> Tree:
    if not isinstance(values, dict):
        raise ConfigError(f"{where or 'the file'} must be a table with keys, got {shown(values)}")
    return values


def _numbers(values: Any, key: str, rows: list[str], columns: list[str]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    _known(_section(values, key), rows, key)
    for row, numbers in values.items():
        fit = isinstance(numbers, list) and all(type(number) in (int, float) for number in numbers)
        if not fit or len(numbers) != len(columns):
            got = f"{len(numbers)} values" if fit else shown(numbers)
            raise ConfigError(
                f"{key}.{row} must be a number for each of the {len(columns)} columns, nan where there is none, "
                f"got {got}"
            )
        found |= {(row, column): float(n) for column, n in zip(columns, numbers, strict=True) if not math.isnan(n)}
    return found


def _known(names: Iterable[str], known: Sequence[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"{where} names {name!r}{nearest(name, known)} (there are: {', '.join(known)})")


def _once(what: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two {what}s are called {name!r}; give each a name of its own")
