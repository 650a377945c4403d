"""From what a configuration calls its data to the data: a listed set, a file or folder of one's own, or a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.data import DATASETS, UNLABELLED, columns, kind_of_path
from headwater.data.base import Data
from headwater.errors import ConfigError, DataError, nearest
from headwater.registry import load as load_object

if TYPE_CHECKING:
    from headwater.config.sections import DataConfig

_kept: dict[tuple[str, str, str], Data] = {}  # what was read last, in a process that keeps it
_most = 0


def keep(most: int) -> None:
    """From now on this process keeps the last so many sets that it has read: for one that trains many runs."""
    global _most
    _most = most


def open_data(wanted: DataConfig) -> Data:
    """The data that a configuration names, with the options that it gives."""
    if wanted.name in UNLABELLED:
        raise ConfigError(
            f"data.name is {wanted.name!r}, which has no labels to learn from; name it as data.reference, "
            "and a set with labels as data.name"
        )
    return load(wanted.name, Path(wanted.dir) if wanted.dir else None, asked_of(wanted))


def asked_of(wanted: DataConfig) -> dict[str, Any]:
    """What a configuration says of its data beside the name: columns of a table, and the data's own options."""
    return {key: getattr(wanted, key) for key in columns(wanted.name)} | wanted.options


def load(name: str, data_dir: Path | None = None, options: Mapping[str, Any] | None = None) -> Data:
    """A listed data set, a path, or what "package.module:function" returns."""
    key = (name, str(data_dir), repr(sorted((options or {}).items())))
    found = _kept.pop(key, None)
    if found is None:
        found = _read(name, data_dir, dict(options or {}))
    if _most:
        _kept[key] = found  # the newest stands last
        while len(_kept) > _most:
            del _kept[next(iter(_kept))]
    return found


def _read(name: str, data_dir: Path | None, given: dict[str, Any]) -> Data:
    loader = path_loader(name)
    if name in DATASETS:
        made = DATASETS[name].load()(data_dir, **given)
    elif loader is not None:
        made = loader(Path(name).expanduser(), **given)
    elif ":" in name and not Path(name).exists():
        function = load_object(name)
        if not callable(function):
            raise ConfigError(f"{name!r} is not callable; it must be a function that returns hw.Data")
        try:
            made = function(**given)
        except TypeError as error:
            if not given:
                raise
            raise ConfigError(f"{name!r} cannot be called with {given} ({error})") from error
    else:
        raise ConfigError(
            f"there is no data set called {name!r}{nearest(name, DATASETS)} (known: {', '.join(DATASETS)}; or the path "
            "of a .npz, .csv or .parquet file or of a folder, or 'package.module:function')"
        )
    if not isinstance(made, Data):
        raise DataError(
            f"{name!r} gave a {type(made).__name__}; it must return hw.Data(x_train, y_train, x_test, y_test)"
        )
    return made


def like(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of another set's options that this one has too, so that both are read alike."""
    loader = DATASETS[name].load() if name in DATASETS else path_loader(name)
    known = inspect.signature(loader).parameters if loader is not None else {}
    return {key: value for key, value in options.items() if key in known}


def path_loader(name: str) -> Callable[..., Data] | None:
    """The function that reads a path of this kind; none if the name is not a path."""
    target = kind_of_path(name)
    found: Callable[..., Data] | None = None if target is None else load_object(target)
    return found
