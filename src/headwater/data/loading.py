"""Load the data that a configuration names: a listed set, a file, a folder, or a function of the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.data import DATASETS, columns, kind_of_path
from headwater.data.base import FOUR, Data, fifth_of, held_out
from headwater.data.files import read_npz
from headwater.errors import ConfigError, DataError, nearest
from headwater.registry import cannot_return, path_exists, short_name
from headwater.registry import load as load_object

if TYPE_CHECKING:
    from headwater.config.sections import DataConfig

_cache: dict[tuple[str, str, str], Data] = {}  # the sets that were read last; see `keep`
_most = 0


def keep(most: int) -> None:
    """Cache the last `most` data sets from now on, in a process that trains many runs.

    Args:
        most: how many; 0 turns the cache off.
    """
    global _most
    _most = most


def open_data(wanted: DataConfig) -> Data:
    """Load the data of a configuration's section [data].

    Args:
        wanted: the section.
    """
    if wanted.name in DATASETS and DATASETS[wanted.name].info.unlabelled:
        raise ConfigError(
            f"data.name is {wanted.name!r}, which has no labels to learn from; name it as data.reference, "
            "and a set with labels as data.name"
        )
    return load(wanted.name, Path(wanted.dir) if wanted.dir else None, options_of(wanted))


def options_of(wanted: DataConfig) -> dict[str, Any]:
    """The options of a configuration's data: columns of a table, and the loader's own options.

    Args:
        wanted: the section [data].
    """
    return {key: getattr(wanted, key) for key in columns(wanted.name)} | wanted.options


def load(name: str, data_dir: Path | None = None, options: Mapping[str, Any] | None = None) -> Data:
    """Load a data set.

    Args:
        name: a listed set, a path, or "package.module:function".
        data_dir: the data directory; None for the default one.
        options: keyword arguments of the loader.

    Raises:
        ConfigError: there is no such set or option.
        DataError: the data is missing, damaged or not usable.
    """
    key = (name, str(data_dir), repr(sorted((options or {}).items())))
    data = _cache.pop(key, None)
    if data is None:
        data = _read(name, data_dir, dict(options or {}))
    if _most:
        _cache[key] = data  # the newest is last
        while len(_cache) > _most:
            del _cache[next(iter(_cache))]
    return data


def _read(name: str, data_dir: Path | None, options: dict[str, Any]) -> Data:
    loader = path_loader(name)
    if name in DATASETS:
        data = DATASETS[name].load()(data_dir, **options)
    elif loader is not None:
        data = loader(Path(name).expanduser(), **options)
    elif ":" in name and not path_exists(name):
        data = _called(name, own_function(name), options)
    else:
        raise ConfigError(
            f"there is no data set called {short_name(name)}{nearest(name, DATASETS)} (known: "
            f"{', '.join(DATASETS)}; or the path of a .npz, .csv or .parquet file or of a folder, or "
            "'package.module:function')"
        )
    if not isinstance(data, Data):
        raise DataError(
            f"{name!r} gave a {type(data).__name__}; it must return hw.Data(x_train, y_train, x_test, y_test)"
        )
    return data


def _called(name: str, function: Callable[..., Data], options: dict[str, Any]) -> Data:
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        raise ConfigError(f"{name!r} cannot be called with {options or 'no options'} ({error})") from error
    return function(**options)


def own_function(name: str) -> Callable[..., Data]:
    """The user's function at "package.module:function", to be called by the caller.

    A function that is annotated to return something else than `hw.Data` is refused. So is one of Python's or
    Headwater's own, unless it is annotated to return `hw.Data`.

    Args:
        name: of the function.

    Raises:
        ConfigError: it cannot be imported, or is refused.
    """
    function: Callable[..., Data] = load_object(name)
    if not callable(function):
        raise ConfigError(f"{name!r} is not callable; it must be a function that returns hw.Data")
    if cannot_return(function, Data):
        raise ConfigError(
            f"{name!r} is not called, since it does not say that it returns data; if it does, write so where it is "
            f"defined: def {name.rpartition(':')[2]}(...) -> hw.Data"
        )
    return function


def options_for(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of another set that this one has too, so that both are read alike.

    Args:
        name: of this set.
        options: of the other set.
    """
    loader = DATASETS[name].load() if name in DATASETS else path_loader(name)
    known = inspect.signature(loader).parameters if loader is not None else {}
    return {key: value for key, value in options.items() if key in known}


def path_loader(name: str) -> Callable[..., Data] | None:
    """The function that reads a path of this kind; None if the name is not a path."""
    target = kind_of_path(name)
    loader: Callable[..., Data] | None = None if target is None else load_object(target)
    return loader


def npz(path: Path) -> Data:
    """Read a .npz file with x_train, y_train, x_test and y_test, or with x and y, of which a fixed fifth is for tests.

    Further arrays are optional: class_names; client, with a name or number for each (training) sample, for data that is
    already split; and sector, with the sector of that client for each sample.

    Args:
        path: of the file.
    """
    path = path.expanduser()
    arrays = read_npz(path)
    about: dict[str, Any] = {"name": str(path)} | {key: arrays.get(key) for key in ("class_names", "client", "sector")}
    divided, whole = (all(key in arrays for key in keys) for keys in (FOUR, ("x", "y")))
    if not divided and not whole:
        raise DataError(
            f"{path} holds {', '.join(arrays) or 'nothing'}; it needs x_train, y_train, x_test and y_test, or x and y"
        )
    for_tests = None if divided else fifth_of(arrays["x"], arrays["y"], str(path), about["client"])
    try:
        if for_tests is None:
            return Data(*(arrays[key] for key in FOUR), **about)
        return held_out(arrays["x"], arrays["y"], for_tests, **about)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
