"""Write everything that lists methods or configuration keys from the place that defines them.

`python tools/docs_tables.py` rewrites the tables between `<!-- table: NAME -->` and `<!-- /table -->` in the
documentation, docs/configuration.md as a whole, and the type stub of the package; `--check` only says what is out of
date, and then ends with status 1.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from headwater.algorithms import ALGORITHMS, BEFORE, FAMILIES, ROUND, MethodInfo
from headwater.config import catalog
from headwater.config.fields import MISSING, NONE, Setting, describe, settings_of
from headwater.config.sections import SECTIONS, Top
from headwater.data import PATHS
from headwater.registry import load

ROOT = Path(__file__).parent.parent
CONFIGURATION = "docs/configuration.md"
STUB = "src/headwater/__init__.pyi"
COMMAND = "python tools/docs_tables.py"


# -- docstrings


def arguments_of(thing: Any) -> dict[str, str]:
    """The entries of `Args:` in the docstring of a class, of the classes that it extends, or of a function."""
    found: dict[str, str] = {}
    for each in reversed(thing.__mro__) if isinstance(thing, type) else (thing,):
        section = re.search(r"^Args:\n((?:    .*\n|\n)+)", inspect.cleandoc(each.__doc__ or "") + "\n", re.MULTILINE)
        entries = section.group(1) if section else ""
        found |= {
            name: " ".join(told.split())
            for name, told in re.findall(r"^    (\w+): (.*\n(?:        .*\n)*)", entries, re.MULTILINE)
        }
    return found


# -- Markdown


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    head = [*headings]
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |".replace("  |", " |") for line in lines)


def infos() -> list[MethodInfo]:
    return [part.info for part in ALGORITHMS.values()]


def grouped(cells: Callable[[MethodInfo], tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """One row for all methods with the same cells, their names in the first one."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for info in infos():
        rows.setdefault(cells(info), []).append(f"`{info.name}`")
    return ((" ".join(names), *row) for row, names in rows.items())


def families() -> str:
    members = {family: [f"`{info.name}`" for info in infos() if info.family == family] for family in FAMILIES}
    rows = [(family, " ".join(members[family]), what) for family, what in FAMILIES.items() if members[family]]
    return table(("family", "methods", "what they have in common"), rows)


def methods() -> str:
    head = ("method", "what it does", "local training", "who teaches", "consolidation", "models per round", "needs")
    rows = ((f"`{i.name}`", i.summary, *i.stages, i.models, ", ".join(i.needs)) for i in infos())
    return table(head, rows)


def trust() -> str:
    def cells(info: MethodInfo) -> tuple[str, ...]:
        sees = [info.sees[party] for party in ("server", "host", "client")]
        if info.pooled:
            sees[0] = f"*cannot be deployed*: {sees[0]}"
        return info.moves.get(ROUND, ""), info.moves.get(BEFORE, ""), *sees

    head = ("methods", "moves a round", BEFORE, "the server sees", "a sector's host sees", "a client sees")
    return table(head, grouped(cells))


def places() -> str:
    def cells(info: MethodInfo) -> tuple[str, ...]:
        return info.sees["server"], info.sees.get("leader", "—"), info.sees["client"]

    return table(("methods", "the server sees", "a leader sees", "a client sees"), grouped(cells))


TABLES = {"families": families, "methods": methods, "trust": trust, "places": places}
PAGES = {"README.md": "families", "docs/methods.md": "methods", "docs/trust.md": "trust", "docs/places.md": "places"}


def page(name: str) -> str:
    """A page with its table renewed."""
    text, wanted = (ROOT / name).read_text(encoding="utf-8"), PAGES[name]
    before, start, rest = text.partition(f"<!-- table: {wanted} -->\n")
    _, end, after = rest.partition("<!-- /table -->")
    if not end:
        sys.exit(f"{name} has no place for its table: add '<!-- table: {wanted} -->' and '<!-- /table -->'")
    return f"{before}{start}{TABLES[wanted]()}\n{end}{after}"


# -- configuration


def shown(default: Any) -> str:
    if default is MISSING:
        return "required"
    if default is None:
        return f"`{NONE}`"
    text = str(default).lower() if isinstance(default, bool) else repr(default).replace("'", '"')
    return f"`{'[]' if default == () else text}`"


def keys(settings: Mapping[str, Setting], told: Mapping[str, str]) -> str:
    rows = (
        (f"`{key}`", describe(setting.annotation), shown(setting.default), told.get(key, ""))
        for key, setting in settings.items()
    )
    return table(("key", "accepted", "default", "meaning"), rows)


def choices(section: str) -> Iterator[str]:
    """What each choice of a section adds to it."""
    registry = catalog.REGISTRIES[section]
    tables: dict[str, list[str]] = {}
    for name in registry:
        if options := catalog.own(section, name):
            tables.setdefault(keys(options, arguments_of(registry.load(name))), []).append(f'`"{name}"`')
    for made, names in tables.items():
        yield f"### `{catalog.SELECTORS[section]}` = {', '.join(names)}\n\n{made}"


def paths() -> Iterator[str]:
    """What each kind of file or folder adds to the section `[data]`."""
    for kind, target in zip(("a .npz file", "a table", "a folder"), PATHS, strict=True):
        reader = load(target)
        if own := {key: setting for key, setting in settings_of(reader).items() if key not in catalog.common("data")}:
            yield f"### `name` is the path of {kind}\n\n{keys(own, arguments_of(reader))}"


def configuration() -> str:
    """The whole reference of keys."""
    parts = [
        "# Configuration reference",
        f"Written by `{COMMAND}` from the code; do not edit. A configuration is a TOML file; keys can also be given as "
        "`--set section.key=value` and as keywords in Python. `headwater run` writes all of it to `config.toml`. The "
        f'text `"{NONE}"` stands for no value.',
        "## Top level",
        keys(catalog.TOP, arguments_of(Top)),
    ]
    for section in catalog.ORDER:
        parts.append(f"## `[{section}]`")
        kind = catalog.STAGES.get(section) or SECTIONS.get(section)
        if kind is not None:
            parts.append(inspect.cleandoc(kind.__doc__ or "").partition("\n\nArgs:")[0].replace("\n", " "))
        if section in catalog.STAGES:
            parts.append("Keys that are not set follow from the data and the method; below are the defaults in Python.")
        if common := catalog.common(section):
            told = {"name": "method, see `headwater list algorithms`, or `package.module:Name`."}
            parts.append(keys(common, told if kind is None else arguments_of(kind)))
        if section in catalog.SELECTORS:
            parts += choices(section)
        if section == "data":
            parts += paths()
    return "\n\n".join(parts) + "\n"


# -- the type stub


def stub() -> str:
    """Public names for type checkers, since the package itself imports them lazily."""
    import headwater

    modules: dict[str, list[str]] = {}
    for name, home in sorted(vars(headwater)["_homes"]().items()):
        modules.setdefault(f"headwater.{home}", []).append(name)
    lines = [f"# Written by `{COMMAND}`; do not edit."]
    for module, names in sorted(modules.items()):
        line = f"from {module} import {', '.join(names)}"
        lines += [line] if len(line) <= 120 else [f"from {module} import (", *(f"    {name}," for name in names), ")"]
    every = [f'    "{name}",' for name in headwater.__all__]
    return "\n".join([*lines, "", "__version__: str", "", "__all__ = [", *every, "]", ""])


def outputs() -> dict[str, str]:
    """Every generated file with the text that it should have."""
    return {name: page(name) for name in PAGES} | {CONFIGURATION: configuration(), STUB: stub()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say what is out of date")
    check = parser.parse_args().check
    stale = []
    for name, text in outputs().items():
        path = ROOT / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    if check and stale:
        print(f"out of date: {', '.join(stale)}; run `{COMMAND}` (or `make docs-tables`) and commit the result")
    elif not check:
        print(f"written: {', '.join(stale)}" if stale else "all tables were up to date")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
