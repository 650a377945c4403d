"""The reference of configuration keys: for `headwater config`, `headwater list KIND NAME` and docs/configuration.md.

Everything is read from where a key is declared: its type, its default and its line under `Args:`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headwater.config import catalog
from headwater.config.fields import MISSING, NONE, Setting, describe, settings_of
from headwater.config.sections import SECTIONS, Top
from headwater.config.stage_defaults import WORDS
from headwater.data import PATHS
from headwater.registry import load

PATH_KINDS = dict(zip(("a .npz file", "a table", "a folder"), PATHS, strict=True))
LISTS = {"data": "datasets", "partition": "partitions", "model": "models", "algorithm": "algorithms"}
# A paper's symbol at the beginning of a line under `Args:`, such as "μ, strength of …", "κ2 (E in MTGC), …", "σ of …".
_SYMBOL = re.compile(r"([A-Z]|[Α-Ωα-ω]\w{0,2}|[A-Z]_\w+)(?: \([^)]*\))?(?=[,.] | of |\.$)")


@dataclass(frozen=True)
class KeyRow:
    """One key.

    Args:
        key: its name inside its section.
        accepted: what values it takes, in words.
        default: the value that is used if the key is left out, as TOML or in words; empty if it is required.
        meaning: one line.
        symbol: the paper's symbol for it, if it has one.
    """

    key: str
    accepted: str
    default: str
    meaning: str
    symbol: str = ""


@dataclass(frozen=True)
class SectionKeys:
    """The keys of a section that do not depend on a choice.

    Args:
        name: of the section; empty for the keys before any section.
        about: one line.
        keys: the keys.
        selector: the key that chooses a part with further keys; empty if there is none.
    """

    name: str
    about: str
    keys: tuple[KeyRow, ...]
    selector: str = ""


def sections() -> list[SectionKeys]:
    """All sections, the keys before them first."""
    return [section(name) for name in ("", *catalog.ORDER)]


def section(name: str) -> SectionKeys:
    """One section; the empty name is for the keys before any section."""
    if not name:
        return SectionKeys("", "Before any section.", _rows(catalog.TOP, arguments_of(Top)))
    kind = catalog.STAGES.get(name) or SECTIONS.get(name)
    if kind is None:
        about, meanings = "The method, and its own options.", {"name": "the method, or `package.module:Name`."}
    else:
        about = inspect.cleandoc(kind.__doc__ or "").partition("\n\nArgs:")[0].replace("\n", " ")
        meanings = arguments_of(kind)
    keys = _rows(catalog.common(name), meanings, WORDS.get(name, {}))
    return SectionKeys(name, about, keys, catalog.SELECTORS.get(name, ""))


def own_keys(name: str, choice: str) -> tuple[KeyRow, ...]:
    """The keys that a choice (a data set, a partition scheme, a model, a method) adds to its section."""
    part = catalog.REGISTRIES[name].load(choice)
    return _rows(catalog.own(name, choice) or {}, arguments_of(part))


def path_keys(kind: str) -> tuple[KeyRow, ...]:
    """The keys that a kind of path adds to `[data]`.

    Args:
        kind: a key of `PATH_KINDS`.
    """
    reader = load(PATH_KINDS[kind])
    own = {key: setting for key, setting in settings_of(reader).items() if key not in catalog.common("data")}
    return _rows(own, arguments_of(reader))


def method_defaults(name: str) -> Iterator[tuple[str, str, list[str]]]:
    """Key, value and methods of the defaults of `[local]`, `[sector]` or `[server]` that only some methods have."""
    found: dict[tuple[str, str], list[str]] = {}
    for method, part in catalog.methods().items():
        for key, value in part.info.defaults.get(name, {}).items():
            found.setdefault((key, toml(value)), []).append(method)
    return ((key, value, methods) for (key, value), methods in found.items())


def arguments_of(thing: Any) -> dict[str, str]:
    """The entries of `Args:` in the docstring of a class, of the classes that it extends, or of a function."""
    found: dict[str, str] = {}
    for each in reversed(thing.__mro__) if isinstance(thing, type) else (thing,):
        text = re.search(r"^Args:\n((?:    .*\n|\n)+)", inspect.cleandoc(each.__doc__ or "") + "\n", re.MULTILINE)
        entries = re.findall(r"^    (\w[\w, ]*): (.*\n(?:        .*\n)*)", text.group(1) if text else "", re.MULTILINE)
        found |= {name: " ".join(meaning.split()) for names, meaning in entries for name in re.split(r", ?", names)}
    return found


def toml(value: Any) -> str:
    """A default as it would be written in a file."""
    if value is None:
        return f'"{NONE}"'
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(toml, value))}]"
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


def _rows(
    settings: Mapping[str, Setting], meanings: Mapping[str, str], used: Mapping[str, str] | None = None
) -> tuple[KeyRow, ...]:
    rows = []
    for key, setting in settings.items():
        meaning = re.sub(r"\bNone\b", f'"{NONE}"', meanings.get(key, ""))
        default = "" if setting.default is MISSING else toml(setting.default)
        symbol = _SYMBOL.match(meaning)
        rows.append(
            KeyRow(
                key,
                describe(setting.annotation),
                (used or {}).get(key, default),
                meaning,
                symbol.group(1) if symbol else "",
            )
        )
    return tuple(rows)
