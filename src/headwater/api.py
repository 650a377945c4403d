"""Python's door: `run` and `compare`, with keywords for configuration keys.

A keyword is a key's last part where only one key ends so (`alpha`, `leader`), else `section__key` (`local__lr`).
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.config import ARRAYS, CUSTOM, Config, catalog
from headwater.config.fields import NONE, shown
from headwater.config.load import nested, share
from headwater.config.tree import Tree, merge
from headwater.data.base import Data
from headwater.data.loading import open_data
from headwater.errors import ConfigError, nearest
from headwater.training.experiment import prepare
from headwater.training.loop import Event, open_engine, train

if TYPE_CHECKING:
    from torch import nn

    from headwater.algorithms.base import Algorithm
    from headwater.report.runs import RunRecord
    from headwater.report.tables import Summary
    from headwater.training.result import Run

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
    config = Config(**merge(_of_method(method), _asked(settings, data, model, engine)))
    experiment = prepare(config, data=_loaded(config, data), model=_maker(model))
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
    if not chosen or not numbers or len(set(numbers)) < len(numbers):
        raise ConfigError(f"a comparison needs at least one method, and seeds that differ, got seeds={numbers}")
    if "seed" in settings:
        raise ConfigError("a comparison takes seeds=[...], not seed")
    asked = _asked(settings, data, model, engine)
    bases = [_of_method(each) for each in chosen]
    parts = share(asked, [base["algorithm"]["name"] for base in bases])
    trees = [merge(base, part) for base, part in zip(bases, parts, strict=True)]
    loaded: Data | None = None
    runs: list[Run] = []
    for seed in numbers:
        configs = [Config(**merge(tree, {"seed": seed})) for tree in trees]
        loaded = loaded or _loaded(configs[0], data)
        experiments = [prepare(config, data=loaded, model=_maker(model)) for config in configs]
        with open_engine(configs[0], experiments) as shared:
            for each in experiments:
                folder = None if out is None else place(Path(out), each.config)
                runs.append(train(each, out=folder, watch=watch, engine=shared))
    return Comparison(tuple(runs))


def place(out: Path, config: Config) -> Path:
    """The directory of one run of a comparison."""
    return out / config.method.replace(":", ".") / f"seed-{config.seed}"


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

        return summary([_record(each) for each in self.runs], target)


def _asked(settings: Mapping[str, Any], data: Source, model: Maker, engine: str | None) -> Tree:
    """The keywords as tables."""
    named: dict[str, Any] = {"data__name": ARRAYS if isinstance(data, Data) else str(data)}
    if model is not None:
        named["model__name"] = model if isinstance(model, str) else CUSTOM
    if engine is not None:
        named["engine__name"] = engine
    for keyword, value in settings.items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = dataclasses.asdict(value)
        if keyword in catalog.ORDER and isinstance(value, Mapping):
            named |= {f"{keyword}__{key}": item for key, item in value.items()}
        else:
            named[_key(keyword)] = value
    # None is Python's word for what TOML calls "none"; at the top level it is a setting that was left out.
    kept = {key: NONE if value is None else value for key, value in named.items() if value is not None or "__" in key}
    return nested(kept)


def _key(keyword: str) -> str:
    """The `section__key` that a keyword stands for."""
    if keyword in catalog.TOP or "__" in keyword:
        return keyword
    keys = catalog.every_key()
    meant = [key.replace(".", "__") for key in keys.get(keyword, [])]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise ConfigError(f"{keyword!r} could mean several settings; write {' or '.join(meant)}")
    raise ConfigError(
        f"there is no setting called {keyword!r}{nearest(keyword, keys)} "
        "(a keyword is the last part of a configuration key, or section__key)"
    )


def _of_method(method: Method) -> Tree:
    """A method's name, or the tables that describe an instance of it."""
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
        if field.name in stages and value != field.default:  # a stage that was left alone follows the data
            tree[stages[field.name]] = dataclasses.asdict(value)
        elif field.name not in stages:
            tree["algorithm"][field.name] = value
    return tree


def _loaded(config: Config, data: Source) -> Data:
    return data if isinstance(data, Data) else open_data(config.data)


def _maker(model: Maker) -> Callable[[], nn.Module] | None:
    """The function that makes a model, if one was given."""
    if model is None or isinstance(model, str):
        return None
    if not callable(model) or (hasattr(model, "state_dict") and not isinstance(model, type)):
        raise ConfigError(
            f"model must be a name or a function that makes a model, such as lambda: MyNet(), got {shown(model)}"
        )
    return model


def _record(run: Run) -> RunRecord:
    """A run as reports read it, whether or not it left a directory."""
    from headwater.report.runs import RunRecord

    facts = run.result
    path = run.directory or Path()
    config = tomllib.loads(run.config)
    return RunRecord(path, facts["label"], facts["algorithm"], facts["seed"], config, run.history, facts, run.partition)
