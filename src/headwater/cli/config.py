"""`headwater config`: every configuration key with what it accepts, its default and its meaning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.options import Json
from headwater.cli.terminal import as_json, console, print_lines, table
from headwater.errors import ConfigError, nearest

if TYPE_CHECKING:
    from rich.table import Table

    from headwater.config.reference import KeyRow, SectionKeys

Wanted = Annotated[str | None, typer.Argument(metavar="[SECTION or KEY]", show_default=False)]
Schema = Annotated[
    bool, typer.Option("--schema", help="Print the JSON schema of configuration files, for editors, and stop.")
]
WIDE = 110  # columns of a terminal in which what a key accepts has a column of its own
TOP = "top"  # as a section's name: the keys before any section


def config(section: Wanted = None, schema: Schema = False, json: Json = False) -> None:
    """Show the configuration keys: what each accepts, its default and its meaning.

    All keys, those of one section, or those of one name. Examples: `headwater config local`, `headwater config lr`.
    `headwater config --schema > headwater.schema.json` and `#:schema headwater.schema.json` as the first line of a TOML
    file let an editor complete and check it (Even Better TOML, taplo).
    """
    from headwater.config import reference

    if schema:
        from headwater.config.json_schema import schema as make

        as_json(make())
        return
    known = {each.name or TOP: each for each in reference.sections()}
    if section is None:
        chosen = list(known.values())
    elif section in known:
        chosen = [known[section]]
    else:
        _show_key(section, known, json=json)
        return
    if json:
        as_json([_facts(each) for each in chosen])
        return
    for each in chosen:
        title = f"[{each.name}]  {each.about}" if each.name else "before any section"
        print_lines(title) if not each.keys else console().print(key_table(each.keys, title))
        print_lines(*_notes(each, whole=section is not None), "")


def key_table(rows: Sequence[KeyRow], title: str = "", names: Sequence[str] = ()) -> Table:
    """A table of keys that fits the terminal.

    Args:
        rows: the keys.
        title: shown above the table.
        names: shown instead of the keys' own names.
    """
    shown = names or [row.key for row in rows]
    wide = console().width >= WIDE
    cells = []
    for name, row in zip(shown, rows, strict=True):
        default = row.default or "required"
        if wide:
            cells.append([name, row.accepted, default, row.meaning])
        else:
            meaning = f"{row.meaning.rstrip('.')}. " if row.meaning else ""
            cells.append([name, default, f"{meaning}({row.accepted})"])
    return table(
        ["key", "accepted", "default", "meaning"] if wide else ["key", "default", "meaning"], cells, title=title
    )


def _show_key(wanted: str, known: dict[str, SectionKeys], *, json: bool) -> None:
    """All keys of this name: with its section, or its last part alone."""
    found = [each for each in _all_rows(known.values()) if wanted in (each[0], each[1].key)]
    if not found:
        raise ConfigError(_unknown(wanted, known))
    if json:
        as_json([{**asdict(row), "key": name} | ({"of": parts} if parts else {}) for name, row, parts in found])
    else:
        names = [f"{name} ({', '.join(parts)})" if parts else name for name, _, parts in found]
        console().print(key_table([row for _, row, _ in found], names=names))


def _unknown(wanted: str, known: dict[str, SectionKeys]) -> str:
    names = {word for name, row, _ in _all_rows(known.values()) for word in (name, row.key)}
    hint = nearest(wanted, [*known, *names])
    return f"there is no section or key called {wanted!r}{hint} (sections: {', '.join(known)})"


def _all_rows(sections: Iterable[SectionKeys]) -> Iterator[tuple[str, KeyRow, list[str]]]:
    """Every key with its section; the names of the parts that have it, if not all do."""
    from headwater.config import catalog, reference

    for each in sections:
        yield from ((f"{each.name}.{row.key}" if each.name else row.key, row, []) for row in each.keys)
        parts: dict[KeyRow, list[str]] = {}
        for choice in catalog.REGISTRIES[each.name] if each.selector else ():
            for row in reference.own_keys(each.name, choice):
                parts.setdefault(row, []).append(choice)
        yield from ((f"{each.name}.{row.key}", row, names) for row, names in parts.items())


def _notes(keys: SectionKeys, *, whole: bool) -> Iterator[str]:
    """Where the further keys of a section are."""
    from headwater.config import catalog, reference

    if keys.name in catalog.STAGES:
        for key, value, methods in reference.method_defaults(keys.name):
            yield f"default of {', '.join(methods)}: {key} = {value}"
    if not keys.selector:
        return
    kind = reference.LISTS[keys.name]
    yield f"What {keys.selector} chooses adds keys of its own: headwater list {kind} NAME shows them."
    if whole:
        for choice in catalog.REGISTRIES[keys.name]:
            if rows := reference.own_keys(keys.name, choice):
                yield f"  {choice}: {', '.join(row.key for row in rows)}"
        for path in reference.PATH_KINDS if keys.name == "data" else ():
            if rows := reference.path_keys(path):
                yield f"  the path of {path}: {', '.join(row.key for row in rows)}"


def _facts(keys: SectionKeys) -> dict[str, Any]:
    from headwater.config import catalog, reference

    facts = asdict(keys)
    if keys.selector:
        registry = catalog.REGISTRIES[keys.name]
        facts["choices"] = {name: [asdict(row) for row in reference.own_keys(keys.name, name)] for name in registry}
    return facts
