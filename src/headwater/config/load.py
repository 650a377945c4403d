"""Reads a configuration from layers: presets and files with `extends`, KEY=VALUE pairs, direct options."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from headwater import presets
from headwater.config import catalog
from headwater.config.plain_tables import Tree, merge, unknown, without_unused
from headwater.core.records import parse_toml
from headwater.errors import ConfigError, nearest
from headwater.registry import path_exists, short_name


def read(source: str | Path | None, sets: Sequence[str], direct: Mapping[str, Any]) -> tuple[Tree, Tree]:
    """The merged tables, not yet checked, and the source's tables of stages that the method does not have.

    Args:
        source: a method, a preset or the path of a file; None: the defaults.
        sets: KEY=VALUE pairs, which override the source.
        direct: options by `key` or `section__key`, which override `sets`. None means not given.
    """
    from_source, overrides = _written(source), _asked(sets, direct)
    method = catalog.chosen(overrides if "name" in overrides.get("algorithm", {}) else from_source, "algorithm")
    used = without_unused(from_source, [method])
    return merge(used, overrides), _left_out(from_source, used)


def read_each(
    methods: Sequence[str], source: str | Path | None, sets: Sequence[str], direct: Mapping[str, Any]
) -> list[tuple[Tree, Tree]]:
    """What `read` gives, for each method; arguments as for `read`."""
    for method in methods:
        catalog.check_name("algorithm", method)
    written, asked = _written(source), _asked(sets, direct)
    # Options of the file's own method are dropped for the others, but every option must belong to some method.
    _check_options(written, [*methods, catalog.chosen(written, "algorithm")])
    trees = []
    for method, fitting in zip(methods, settings_by_method(asked, methods), strict=True):
        used = without_unused(written, [method])
        tree = merge(used, {"algorithm": {"name": method}})
        trees.append((merge(tree, fitting), _left_out(written, used)))
    return trees


def _left_out(tree: Tree, used: Tree) -> Tree:
    """The tables that `without_unused` took away."""
    return {key: table for key, table in tree.items() if key not in used}


def settings_by_method(asked: Tree, methods: Sequence[str]) -> list[Tree]:
    """The settings that each method can use, one table per method.

    Raises:
        ConfigError: none of the methods can use a setting.
    """
    _check_options(asked, methods)
    used = {method: catalog.stages(method) for method in methods}
    for stage in catalog.STAGES:
        if asked.get(stage) and not any(stage in stages for stages in used.values()):
            key = f"{stage}.{next(iter(asked[stage]))}"
            raise ConfigError(f"{key} has no effect, since none of {', '.join(methods)} has a {stage} stage; remove it")
    trees = []
    for method in methods:
        options = catalog.own("algorithm", method) or {}
        tree = {key: value for key, value in asked.items() if key not in catalog.STAGES or key in used[method]}
        tree["algorithm"] = {key: value for key, value in asked.get("algorithm", {}).items() if key in options}
        trees.append(tree)
    return trees


def _check_options(tree: Tree, methods: Sequence[str]) -> None:
    known = {key: None for method in methods for key in ("name", *(catalog.own("algorithm", method) or {}))}
    for key in tree.get("algorithm", {}):
        if key not in known:
            raise ConfigError(unknown(key, "algorithm", list(known)))


def pairs(sets: Sequence[str]) -> Tree:
    """KEY=VALUE pairs as one layer. Values are TOML; a bare word is a string."""
    tree: Tree = {}
    for pair in sets:
        key, equals, text = pair.partition("=")
        parts = [part.strip() for part in key.split(".")]
        if not equals or not all(parts):
            raise ConfigError(f"--set takes KEY=VALUE, such as local.lr=0.05, got {short_name(pair)}")
        if parts == ["extends"]:
            raise ConfigError("extends is a key of files, not of --set; name the preset as the command's argument")
        table = tree
        for part in parts[:-1]:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--set gives {part!r} both a value and keys of its own, got {short_name(pair)}")
        table[parts[-1]] = _value(key, text.strip())
    return tree


def _value(key: str, text: str) -> Any:
    try:
        parsed = parse_toml(f"value = {text}")
    except ValueError as error:
        if text[:1] in ("[", "{", '"', "'"):
            raise ConfigError(f"--set {key}: {short_name(text)} is not a TOML value ({error})") from None
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _written(source: str | Path | None) -> Tree:
    return reduce(merge, (tree for _, tree in layers(source)), {})


def _asked(sets: Sequence[str], direct: Mapping[str, Any]) -> Tree:
    return merge(pairs(sets), nested({key: value for key, value in direct.items() if value is not None}))


def nested(direct: Mapping[str, Any]) -> Tree:
    tree: Tree = {}
    for key, value in direct.items():
        section, _, last = key.rpartition("__")
        (tree.setdefault(section, {}) if section else tree)[last] = value
    return tree


def layers(source: str | Path | None) -> list[tuple[str, Tree]]:
    """Name and content of a source and of all that it extends, the most general first."""
    found: list[tuple[str, Tree]] = []
    seen: list[str] = []
    here: Path | None = None
    while source is not None:
        name, tree, here = _find(source, here)
        if name in seen:
            raise ConfigError(f"extends goes round in a circle: {' → '.join([*seen[seen.index(name) :], name])}")
        seen.append(name)
        source = tree.pop("extends", None)
        if source is not None and not isinstance(source, str):
            raise ConfigError(f"extends must be the name of a preset or the path of a file, got {source!r} in {name}")
        found.insert(0, (name, tree))
    return found


def _find(source: str | Path, here: Path | None) -> tuple[str, Tree, Path | None]:
    """The name, content and directory of a preset, a method, or a file (relative to the one that extends it)."""
    path = Path(source).expanduser()
    path = path if here is None else here / path
    if isinstance(source, str) and source in presets.names():
        return source, _parse(presets.text(source), f"preset {source}"), None
    if isinstance(source, str) and (source in catalog.methods() or (":" in source and not path_exists(path))):
        return source, {"algorithm": {"name": source}}, None
    if path_exists(path) and path.is_dir():
        inside = path / "config.toml"
        carry_on = f"name the file {inside}, or carry on with: headwater resume {shlex.quote(str(path))}"
        way_out = carry_on if inside.exists() else "name a file"
        raise ConfigError(f"{source} is a directory, not a configuration; {way_out}")
    if not path_exists(path):
        name, known = str(source), list(presets.names())
        methods = list(catalog.methods()) if here is None else []
        raise ConfigError(
            f"there is no {'method, ' if methods else ''}preset or file called {short_name(name)}"
            f"{nearest(name, [*methods, *known], most=3)} (headwater list presets shows all presets"
            f"{', headwater list algorithms all methods' if methods else ''})"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} could not be read as text ({error})") from None
    return str(path.resolve()), _parse(text, str(path)), path.parent


def _parse(text: str, what: str) -> Tree:
    try:
        return parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{what} is not valid TOML: {error}") from None
