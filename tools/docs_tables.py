"""Write everything that lists methods or configuration keys from the place that defines them.

`python tools/docs_tables.py` rewrites the tables between `<!-- table: NAME -->` and `<!-- /table -->` in the
documentation, docs/configuration.md as a whole, and the type stub of the package; `--check` only says what is out of
date, and then ends with status 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from headwater.algorithms import ALGORITHMS, BEFORE, FAMILIES, ROUND, MethodInfo
from headwater.config import catalog, reference
from headwater.config.fields import NONE
from headwater.config.reference import KeyRow, method_defaults

sys.path.append(str(Path(__file__).parent))
import leak_tables
import proof_tables
from proof_tables import table

ROOT = Path(__file__).parent.parent
CONFIGURATION = "docs/configuration.md"
STUB = "src/headwater/__init__.pyi"
COMMAND = "python tools/docs_tables.py"


# -- Markdown


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


TABLES = {
    "families": families,
    "methods": methods,
    "trust": trust,
    "places": places,
    "fuzz": proof_tables.fuzz,
    "kills": proof_tables.kills,
    "endurance": proof_tables.endurance,
    "stateful": proof_tables.stateful,
    "leaks": leak_tables.short,
    "secure-costs": proof_tables.secure_costs,
}
PAGES = {
    "README.md": ("families",),
    "docs/methods.md": ("methods",),
    "docs/trust.md": ("trust", "leaks", "fuzz", "kills", "endurance", "stateful"),
    "docs/places.md": ("places",),
    "docs/secure.md": ("secure-costs",),
}


def page(name: str) -> str:
    """A page with its tables renewed."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for wanted in PAGES[name]:
        before, start, rest = text.partition(f"<!-- table: {wanted} -->\n")
        _, end, after = rest.partition("<!-- /table -->")
        if not end:
            sys.exit(f"{name} has no place for its table: add '<!-- table: {wanted} -->' and '<!-- /table -->'")
        text = f"{before}{start}{TABLES[wanted]()}\n{end}{after}"
    return text


# -- configuration


def shown(default: str) -> str:
    """A default as code, or in words."""
    return f"`{default}`" if " " not in default or default[0] in '["' else default


def keys(rows: Iterable[KeyRow]) -> str:
    cells = ((f"`{row.key}`", row.accepted, shown(row.default) or "required", row.meaning) for row in rows)
    return table(("key", "accepted", "default", "meaning"), cells)


def choices(section: str) -> Iterator[str]:
    """What each choice of a section adds to it."""
    tables: dict[str, list[str]] = {}
    for name in catalog.REGISTRIES[section]:
        if rows := reference.own_keys(section, name):
            tables.setdefault(keys(rows), []).append(f'`"{name}"`')
    for made, names in tables.items():
        yield f"### `{catalog.SELECTORS[section]}` = {', '.join(names)}\n\n{made}"


def paths() -> Iterator[str]:
    """What each kind of file or folder adds to the section `[data]`."""
    for kind in reference.PATH_KINDS:
        if rows := reference.path_keys(kind):
            yield f"### `name` is the path of {kind}\n\n{keys(rows)}"


def configuration() -> str:
    """The whole reference of keys."""
    parts = [
        "# Configuration reference",
        f"Written by `{COMMAND}` from the code; do not edit. A configuration is a TOML file; keys can also be given as "
        "`--set section.key=value` and as keywords in Python. `headwater run` writes all of it to `config.toml`, and "
        "`headwater run --show` prints it without a run. `headwater config` shows this page in the terminal, and "
        "`headwater config --schema` prints a JSON schema with which editors complete and check such files. The text "
        f'`"{NONE}"` stands for no value.',
    ]
    for section in reference.sections():
        parts += [f"## `[{section.name}]`", section.about] if section.name else ["## Top level"]
        if section.name in catalog.STAGES:
            others = (
                f"`{key} = {value}` with {', '.join(names)}" for key, value, names in method_defaults(section.name)
            )
            if told := "; ".join(others):
                parts.append(f"Defaults of some methods: {told}.")
        if section.keys:
            parts.append(keys(section.keys))
        if section.selector:
            parts += choices(section.name)
        if section.name == "data":
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
    lines += [f"from headwater import {name} as {name}" for name in vars(headwater)["_MODULES"]]
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
