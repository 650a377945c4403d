"""`hw.compare(tune=...)`: settings of each method, chosen on the validation set before the comparison."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from headwater.api.progress import ProgressBar
from headwater.config import Config
from headwater.config.load import pairs
from headwater.config.plain_tables import merge
from headwater.errors import ConfigError
from headwater.sweep.tuning import Axis, Watch, budget_of, grid_for, points_of, thinned, tune
from headwater.training.experiment import Experiment


def axes_of(asked: Iterable[str] | Mapping[str, Iterable[Any]]) -> list[Axis]:
    """Keys and values, from a list of keys or a mapping to values; `local__lr` stands for `local.lr`.

    Raises:
        ConfigError: it is neither, or a key has no values.
    """
    if isinstance(asked, str) or not isinstance(asked, Iterable):
        raise ConfigError(
            f"tune takes a list of keys, such as tune=['local.lr'], or keys with values, such as "
            f"tune={{'local.lr': [0.01, 0.1]}}, got {asked!r}"
        )
    pairs_of_axes = asked.items() if isinstance(asked, Mapping) else ((key, None) for key in asked)
    axes: list[Axis] = []
    for key, values in pairs_of_axes:
        listed = () if values is None else tuple(map(str, values))
        if values is not None and not listed:
            raise ConfigError(f"tune names {key} without values; leave the values out for a default grid")
        axes.append((str(key).replace("__", "."), listed))
    return axes


def tune_tree(
    tree: Mapping[str, Any],
    axes: Sequence[Axis],
    prepare: Callable[[Config], Experiment],
    out: Path | None,
    bar: ProgressBar,
    most: int,
) -> dict[str, Any]:
    """Tune one method; returns the content of tune.json, or nothing if the method has none of the keys.

    Args:
        tree: the configuration as tables.
        axes: keys and values.
        prepare: makes an experiment of a configuration.
        out: directory for tune.json; None keeps nothing.
        bar: shows the progress.
        most: how many settings are tried.
    """

    def configured(point: Mapping[str, str]) -> Config:
        return Config(**merge(tree, pairs([f"{key}={value}" for key, value in point.items()])))

    config = configured({})
    resolved = prepare(config).config
    grid = grid_for(resolved, axes)
    if not grid:
        return {}
    points = thinned(points_of(grid), most, resolved)

    @contextmanager
    def trial(name: str) -> Iterator[Watch]:
        bar.begin(f"{config.method} {name}")
        yield bar.event

    with tempfile.TemporaryDirectory() if out is None else nullcontext(str(out)) as folder:
        rounds = budget_of(config.rounds)
        return tune(points, [configured(point) for point in points], prepare, Path(folder), rounds, trial)


def with_choice(tree: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with the chosen settings."""
    return merge(tree, pairs([f"{key}={value}" for key, value in found.get("best", {}).items()]))
