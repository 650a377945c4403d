"""Keyword arguments of the Python API as configuration tables, data and functions."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.config import ARRAYS, CUSTOM, Config, catalog
from headwater.config.fields import NONE, check, settings_of, shown
from headwater.config.load import nested
from headwater.config.plain_tables import Tree
from headwater.data.base import Data
from headwater.data.in_memory import data_from
from headwater.data.loading import open_data
from headwater.data.tables import TableOptions
from headwater.errors import ConfigError, UserError, nearest

if TYPE_CHECKING:
    from torch import nn

    from headwater.algorithms.base import Method as AnyMethod

    Method = str | AnyMethod
    Source = str | Path | Data | Any  # or data in memory, see `headwater.data.in_memory`
    Maker = str | Callable[[], nn.Module] | None

PYTHON_NAMES = {  # keywords of other libraries, and what to use here
    "verbose": "progress=False hides the progress bar; callbacks=[…] get every round",
    "quiet": "progress=False hides the progress bar",
    "n_clients": "use clients=20",
    "num_clients": "use clients=20",
    "num_rounds": "use rounds=10",
    "n_rounds": "use rounds=10",
    "batch_size": "use local__batch=32",
    "learning_rate": "use local__lr=0.05",
    "random_state": "use seed=0",
    "dataset": "use data=…",
    "output": "use out=…",
    "force": "choose another out=…, or remove that folder",
}
ARGUMENTS = ("callbacks", "data", "engine", "model", "out", "progress", "seeds", "standardize", "watch")
# Sections whose keys give way to the same key of another section: a bare `share` or `sector` is not that of an attack.
WHOLE = ("deploy__", "privacy__", "robust__", "attack__", "links__")
COUNTS = {"client": "clients", "sector": "sectors"}  # keyword that names a column → keyword that is a number
# Advice in messages to users of the command, and the same advice for Python.
COMMAND_WORDS = (
    (r"choose another --out, or replace that run with --force", "choose another out=…, or remove that folder"),
    (r"(start|begin)( the run)? anew with --force", "remove that folder to begin anew"),
    (r": headwater run .* --out DIR", ", with another out=…"),
    (r"take the lock over with: headwater resume .* --force \(or delete (.*)\)", r"delete \1"),
    (r"name another directory with --data-dir", "name another directory with data__dir=…"),
    (r"choose another --out", "choose another out=…"),
    (r"--engine (\w+)", r"engine='\1'"),
    (r"--address", "engine__address=…"),
    (r"--data-dir", "data__dir=…"),
    (r"--out directory", "directory"),
)


@contextmanager
def in_python() -> Iterator[None]:
    """Rewrites messages that name options of the command so that they name keywords of Python."""
    try:
        yield
    except UserError as error:
        text = str(error)
        for words, instead in COMMAND_WORDS:
            text = re.sub(words, instead, text)
        error.args = (text, *error.args[1:])
        raise


def in_memory(data: Source, settings: dict[str, Any], standardize: bool | str) -> str | Path | Data:
    """Names and paths as they are; all other data as `Data`. Settings about its columns are taken out."""
    if not isinstance(standardize, bool) and not (isinstance(standardize, str) and standardize == "auto"):
        raise ConfigError(f"standardize must be True, False or 'auto', got {shown(standardize)}")
    _refuse_counts(settings)
    if not isinstance(data, str | Path):
        return _with_roles(data, settings, standardize)
    if data == "":
        raise ConfigError("data is empty; give the name of a data set, such as 'digits', or a path")
    if standardize != "auto":
        raise ConfigError(
            f"standardize={standardize} is for arrays such as (X, y), and data is {shown(str(data))}: columns of a "
            "table are always standardised, other files never; leave it out"
        )
    return data


def _with_roles(data: Any, settings: dict[str, Any], standardize: bool | str) -> Data:
    """Check the keywords that name columns, and take them out for a table. `sector` may be a section as well."""
    roles = settings_of(TableOptions)
    sections = {key: value for key, value in settings.items() if key in roles and _is_section(value)}
    rest = {key: value for key, value in settings.items() if key not in sections}
    for key in roles.keys() & rest.keys():
        number = key == "label" and type(rest[key]) is int  # a column of a DataFrame that was made of an array
        check(f"data.{key}", roles[key], str(rest[key]) if number else rest[key])
    loaded_data = data_from(data, rest, standardize)
    settings.clear()
    settings.update(rest | sections)
    return loaded_data


def _is_section(value: Any) -> bool:
    return isinstance(value, Mapping) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def _refuse_counts(settings: Mapping[str, Any]) -> None:
    """Refuse `client=4`, which names a column, where `clients=4` is meant."""
    for keyword, count in COUNTS.items():
        value = settings.get(keyword)
        if isinstance(value, Number):
            raise ConfigError(
                f"data.{keyword} must be text, the name of a column, got {shown(value)}; did you mean {count}={value}?"
            )


def asked(settings: Mapping[str, Any], data: Source, model: Maker, engine: str | None, methods: Sequence[str]) -> Tree:
    """Keyword arguments as nested configuration tables."""
    named: dict[str, Any] = {"data__name": ARRAYS if isinstance(data, Data) else str(data)}
    if model is not None:
        named["model__name"] = model if isinstance(model, str) else CUSTOM
    if engine is not None:
        named["engine__name"] = engine
    for keyword, value in settings.items():
        if _is_section(value) and not isinstance(value, Mapping):
            value = dataclasses.asdict(value)
        if keyword in catalog.STAGES and not isinstance(value, str | Mapping):
            raise ConfigError(
                f"{keyword} is a section with keys of its own, got {shown(value)}; give {keyword}__lr=0.05, or a dict"
            )
        if keyword in catalog.ORDER and isinstance(value, Mapping):
            named |= {f"{keyword}__{key}": item for key, item in value.items()}
        else:
            named[_key(keyword, methods)] = value
    # None in Python is "none" in TOML; at the top level it means that the setting was left out.
    kept = {key: NONE if value is None else value for key, value in named.items() if value is not None or "__" in key}
    return nested(kept)


def _key(keyword: str, methods: Sequence[str]) -> str:
    """The `section__key` of a keyword argument."""
    if keyword in catalog.TOP or "__" in keyword:
        return keyword
    keys = catalog.every_key([name for name in methods if ":" in name])
    meant = [key.replace(".", "__") for key in keys.get(keyword, [])]
    meant = [key for key in meant if not key.startswith(WHOLE)] or meant
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise ConfigError(f"{keyword!r} could mean several settings; write {' or '.join(meant)}")
    if keyword in ARGUMENTS:
        raise ConfigError(f"{keyword} is not an argument of this function; leave it out, or see hw.run and hw.compare")
    if keyword in PYTHON_NAMES:
        raise ConfigError(f"there is no setting called {keyword!r}; {PYTHON_NAMES[keyword]}")
    raise ConfigError(
        f"there is no setting called {keyword!r}{nearest(keyword, [*keys, *ARGUMENTS])} "
        "(a keyword is the last part of a configuration key, or section__key)"
    )


def of_method(method: Method) -> Tree:
    """Configuration tables of a method: its name, or the fields of an instance."""
    if isinstance(method, str):
        return {"algorithm": {"name": method}}
    if isinstance(method, type) or not dataclasses.is_dataclass(method):
        raise ConfigError(
            f"a method is a name such as 'fedhead' or an instance such as hw.FedHead(...), got {shown(method)}"
        )
    target = f"{type(method).__module__}:{type(method).__qualname__}"
    listed = [name for name, entry in catalog.methods().items() if entry.target == target]
    tree: Tree = {"algorithm": {"name": listed[0] if listed else target}}
    stages = {name: stage for stage, name in catalog.stage_fields(type(method)).items()}
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        if field.name in stages and value != field.default:  # a stage with default settings adapts to the data
            tree[stages[field.name]] = dataclasses.asdict(value)
        elif field.name not in stages:
            tree["algorithm"][field.name] = value
    return tree


def loaded(config: Config, data: Source) -> Data:
    """The data of a run: that in memory, else what the configuration names."""
    return data if isinstance(data, Data) else open_data(config.data)


def maker(model: Maker) -> Callable[[], nn.Module] | None:
    """The function that builds the model, if `model` is one."""
    if model is None or isinstance(model, str):
        return None
    if not callable(model) or (hasattr(model, "state_dict") and not isinstance(model, type)):
        raise ConfigError(
            f"model must be a name or a function that makes a model, such as lambda: MyNet(), got {shown(model)}"
        )
    return model


def folder(out: str | Path | None) -> Path | None:
    """The directory for results, or None.

    Raises:
        ConfigError: it is no path.
    """
    if out is None:
        return None
    if not isinstance(out, str | os.PathLike) or not str(out) or "\0" in str(out):
        raise ConfigError(f"out must be the path of a directory, got {shown(out)}; leave it out to write nothing")
    return Path(out).expanduser()


def flag(name: str, value: Any) -> bool:
    """A keyword that is True or False.

    Raises:
        ConfigError: it is neither.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {shown(value)}")
    return value


def watcher(watch: Any) -> Any:
    """The function that gets every event, or None.

    Raises:
        ConfigError: it cannot be called.
    """
    if watch is not None and not callable(watch):
        raise ConfigError(f"watch must be a function that takes an event, got {shown(watch)}")
    return watch
