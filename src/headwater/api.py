"""Python's door: `run` and `compare`, with keywords for configuration keys.

A keyword is a key's last part where only one key ends so (`alpha`, `rounds`, `leader`), else `section__key` (`local__lr`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.config import ARRAYS, CUSTOM, Config, catalog
from headwater.config.fields import NONE, shown
from headwater.config.load import nested
from headwater.config.tree import merge
from headwater.data.base import Data
from headwater.errors import ConfigError, nearest
from headwater.experiment import Experiment, prepare
from headwater.training import Event, open_engine, train

if TYPE_CHECKING:
    from torch import nn

    from headwater.algorithms.base import Algorithm
    from headwater.outcome import Run
    from headwater.report.tables import Summary

    Method = str | Algorithm
    Source = str | Path | Data
    Maker = str | Callable[[], nn.Module] | None


def run(
    method: Method = catalog.DEFAULT_METHOD,
    *,
    data: Source = "digits",
    model: Maker = None,
    out: str | Path | None = None,
    engine: str | None = None,
    watch: Callable[[Event], None] | None = None,
    **settings: Any,
) -> Run:
    """Train one method and return what came of it; without `out` nothing is left on disk.

    `method` is a name or an instance such as `hw.FedHead(...)`; `data` a name, a path or `hw.Data`; `model` a name or a
    function that makes an `nn.Module`. `watch` is told of every step. All other keywords are configuration keys.

    >>> import headwater as hw
    >>> hw.run("fedavg", clients=3, sectors=1, rounds=1, local__epochs=1).result["clients"]
    3
    """
    experiment = _experiment(method, data, model, engine, settings)
    return train(experiment, out=None if out is None else Path(out), watch=watch)


def compare(
    methods: Iterable[Method],
    *,
    seeds: Iterable[int] = (0,),
    data: Source = "digits",
    model: Maker = None,
    out: str | Path | None = None,
    engine: str | None = None,
    watch: Callable[[Event], None] | None = None,
    **settings: Any,
) -> Comparison:
    """Train several methods on the same data, split and seeds. With `out`, each run goes to `out/<method>/seed-<n>`."""
    chosen, numbers = list(methods), list(seeds)
    if not chosen or not numbers:
        raise ConfigError(f"a comparison needs methods and seeds, got {len(chosen)} methods and {len(numbers)} seeds")
    loaded = data if isinstance(data, Data) else None
    runs: list[Run] = []
    for seed in numbers:
        _check_all(chosen, settings)
        experiments = [
            _experiment(each, data, model, engine, {**_fitting(each, settings), "seed": seed}, loaded) for each in chosen
        ]
        with open_engine(experiments[0].config, experiments) as shared:
            for each in experiments:
                place = None if out is None else Path(out) / each.config.method.replace(":", ".") / f"seed-{seed}"
                runs.append(train(each, out=place, watch=watch, engine=shared))
    return Comparison(tuple(runs))


@dataclass(frozen=True)
class Comparison:
    """Runs side by side."""

    runs: tuple[Run, ...]

    def rows(self, target: float | None = None) -> list[dict[str, Any]]:
        """A row a method: mean accuracy over seeds with its interval, and the cost."""
        from headwater.report.tables import dicts

        return dicts(self._summary(target))

    def table(self, target: float | None = None) -> str:
        """The rows as a Markdown table, the best of each column in bold."""
        from headwater.report.tables import markdown

        return markdown(self._summary(target))

    def _summary(self, target: float | None) -> Summary:
        from headwater.report.tables import summary

        return summary([each.record() for each in self.runs], target)
