"""`headwater list`: methods, data sets, models, partition schemes and presets by name, and one of them in detail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from headwater.cli.options import Json
from headwater.cli.terminal import as_json, console, pairs, print_lines, table
from headwater.errors import ConfigError, nearest

KINDS = ("algorithms", "datasets", "models", "partitions", "presets")
Kind = Annotated[str | None, typer.Argument(metavar="|".join(KINDS), show_default=False)]
Name = Annotated[str | None, typer.Argument(metavar="[NAME]", show_default=False)]
SECTIONS = {"algorithms": "algorithm", "datasets": "data", "models": "model", "partitions": "partition"}
WIDE = 140  # columns of a terminal in which a method's stages are listed too, and each preset has a line


def list_(kind: Kind = None, name: Name = None, json: Json = False) -> None:
    """List methods, data sets, models, partition schemes or presets; with a name, show one of them.

    Examples: `headwater list algorithms`, `headwater list algorithms fedhead` (its options, what it sends and who sees
    what), `headwater list presets fedhead/table2`.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"there is nothing to list called {kind!r}{_meant(kind)} (accepted: {', '.join(KINDS)})")
    if kind is not None and name is not None:
        _show_preset(name, json=json) if kind == "presets" else _show_part(kind, name, json=json)
        return
    listed = {each: _rows(each) for each in KINDS if kind in (None, each)}
    if json:
        as_json(listed[kind] if kind else listed)
        return
    for each, rows in listed.items():
        screen, wide = console(), console().width >= WIDE
        headings = [key for key in rows[0] if key != "stages"]
        stages = list(rows[0].get("stages", {})) if wide else []
        cells = [[row[key] for key in headings] + [row["stages"][stage] for stage in stages] for row in rows]
        if not wide:
            cells = list(_by_folder(rows)) if each == "presets" else [[row["name"], _in_short(row)] for row in rows]
        screen.print(table([*headings, *stages], cells, title="" if kind else each))
        if kind:
            print_lines(f"headwater list {each} NAME shows one of them")


def _meant(kind: str) -> str:
    """The hint for a word that is no kind; methods are listed as algorithms."""
    return "; did you mean 'algorithms'?" if nearest(kind, ("method", "methods"), cutoff=0.8) else nearest(kind, KINDS)


def _rows(kind: str) -> list[dict[str, Any]]:
    """Name and summary of each part of a kind; of a method also what its stages do."""
    from headwater import presets
    from headwater.algorithms import ALGORITHMS
    from headwater.data import DATASETS
    from headwater.models import MODELS
    from headwater.partition import PARTITIONS

    if kind == "presets":
        return [{"name": name, "summary": summary} for name, summary in presets.names().items()]
    registries: dict[str, Any] = {"datasets": DATASETS, "models": MODELS, "partitions": PARTITIONS}
    if kind in registries:
        return [{"name": name, "summary": part.summary} for name, part in registries[kind].items()]
    return [{"name": name, "summary": part.summary, "stages": _stages(part.info)} for name, part in ALGORITHMS.items()]


def _stages(info: Any) -> dict[str, str]:
    stages = dict(zip(("local", "teachers", "consolidation"), info.stages, strict=True))
    return stages | {"models a round": info.models, "needs": ", ".join(info.needs) or "nothing"}


def _in_short(row: dict[str, Any]) -> str:
    """The summary of a part and, of a method, what it needs."""
    needs = row.get("stages", {}).get("needs", "nothing")
    return str(row["summary"]) if needs == "nothing" else f"{row['summary']}; needs {needs}"


def _by_folder(rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    """One row per folder of presets with all of their names, to keep the list short."""
    folders: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        folders.setdefault(row["name"].partition("/")[0], []).append(row)
    for folder, inside in folders.items():
        if len(inside) == 1:
            yield [inside[0]["name"], inside[0]["summary"]]
        else:
            yield [f"{folder}/", " ".join(row["name"] for row in inside)]


def _show_preset(name: str, *, json: bool) -> None:
    """The file of a preset, or the presets of a folder."""
    from headwater import presets

    known = presets.names()
    inside = {each: summary for each, summary in known.items() if each.startswith(f"{name.rstrip('/')}/")}
    if name not in known and not inside:
        raise ConfigError(f"there is no preset called {name!r}{nearest(name, known)}; headwater list presets lists all")
    if json:
        as_json(
            [{"name": each, "summary": summary} for each, summary in inside.items()]
            if name not in known
            else {"name": name, "summary": known[name], "toml": presets.text(name)}
        )
    elif name in known:
        print_lines(presets.text(name).rstrip(), "", f"# all of it: headwater run {name} --show")
    else:
        console().print(table(["name", "summary"], [[*row] for row in inside.items()]))


def _show_part(kind: str, name: str, *, json: bool) -> None:
    """What a method, data set, model or partition scheme says about itself, and its keys."""
    from dataclasses import asdict

    from headwater.cli.config import key_table
    from headwater.config import catalog, reference

    section = SECTIONS[kind]
    catalog.REGISTRIES[section].check(name)
    keys = reference.own_keys(section, name)
    info = catalog.REGISTRIES[section].load(name).INFO if section == "algorithm" else None
    registry = catalog.REGISTRIES[section]
    summary = registry[name].summary if name in registry else getattr(info, "summary", "")
    facts: dict[str, Any] = {"name": name, "summary": summary}
    if info is not None:
        facts |= {"family": info.family, "stages": _stages(info), "moves": dict(info.moves), "sees": dict(info.sees)}
        facts |= {"sections": list(catalog.stages(name)), "defaults": {k: dict(v) for k, v in info.defaults.items()}}
    if json:
        as_json(facts | {"keys": [asdict(row) for row in keys]})
        return
    console().print(pairs(_lines(facts), name))
    if keys:
        console().print(key_table(keys, f'keys of [{section}] with {catalog.SELECTORS[section]} = "{name}"'))
    else:
        print_lines("", f"{name} has no keys of its own")
    print_lines(f"keys that do not depend on it: headwater config {section}")


def _lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if facts["summary"]:
        yield "summary", facts["summary"]
    if "family" not in facts:
        return
    from headwater.algorithms import FAMILIES

    yield "family", f"{facts['family']}: {FAMILIES[facts['family']]}"
    yield from ((name, text) for name, text in facts["stages"].items() if text)
    yield from ((f"sent {when}", text) for when, text in facts["moves"].items())
    whom = {"host": "a sector's host", "client": "a client", "leader": "a leader"}
    yield from ((f"{whom.get(party, f'the {party}')} sees", text) for party, text in facts["sees"].items())
    yield "sections", ", ".join(f"[{name}]" for name in facts["sections"]) or "none of [local], [sector], [server]"
    from headwater.config.reference import toml

    for section, values in facts["defaults"].items():
        yield "own defaults", ", ".join(f"{section}.{key} = {toml(value)}" for key, value in values.items())
