"""Public Python API: `run()` and `compare()`.

Keyword arguments set configuration keys: by the last part of a key where it is unique (`alpha`, `leader`), else as
`section__key` (`local__lr`).
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.config import ARRAYS, CUSTOM, Config, catalog
from headwater.config.fields import NONE, shown
from headwater.config.load import nested, share
from headwater.config.tree import Tree, merge
from headwater.data.base import Data
from headwater.data.in_memory import data_from
from headwater.data.loading import open_data
from headwater.errors import ConfigError, nearest
from headwater.training.experiment import prepare
from headwater.training.loop import Event, open_engine, train

if TYPE_CHECKING:
    from torch import nn

    from headwater.algorithms.base import Method as AnyMethod
    from headwater.report.method_table import MethodTable
    from headwater.report.runs import RunRecord
    from headwater.training.result import Run

    Method = str | AnyMethod
    Source = str | Path | Data | Any  # or data in memory, see `headwater.data.in_memory`
    Maker = str | Callable[[], nn.Module] | None


PYTHON_NAMES = {  # keywords of other libraries, and what serves here
    "verbose": "give watch=… a function that is called with every event",
    "n_clients": "use clients=20",
    "num_clients": "use clients=20",
    "num_rounds": "use rounds=10",
    "batch_size": "use local__batch=32",
    "dataset": "use data=…",
    "force": "choose another out=…, or remove that folder",
}


def run(
    method: Method = catalog.DEFAULT_METHOD,
    *,
    data: Source = "digits",
    model: Maker = None,
    out: str | Path | None = None,
    engine: str | None = None,
    watch: Callable[[Event], None] | None = None,
    standardize: bool | str = "auto",
    **settings: Any,
) -> Run:
    """Train one method.

    Args:
        method: name of a method ("fedhead"), an instance (`hw.FedHead(leader="fixed")`), or "package.module:Name".
        data: name of a data set, path of a file or folder, `hw.Data`, arrays `(X, y)` or
            `(X_train, y_train, X_test, y_test)`, a DataFrame with `label="column"`, a torch or a Hugging Face data set.
        model: name of a model, or a function that returns an `nn.Module` with one logit per class. None chooses a
            model that suits the data.
        out: directory for the run's files; an interrupted run there is resumed. None leaves nothing on disk.
        engine: "inline", "pool" or "ray"; None chooses. Results do not depend on it.
        watch: called with every `Event` of the run, for progress displays.
        standardize: whether rows of numbers given as arrays get mean 0 and deviation 1 over all clients, as columns of
            a table do; "auto" does it for two-dimensional floats. `hw.Data` is used as it is.
        **settings: configuration keys, such as `clients=20`, `alpha=0.1`, `local__lr=0.05`.

    Returns:
        The finished run: accuracy, history, ledger and the trained model.

    Raises:
        ConfigError: if a name or value is not accepted; the message says what is.
        DataError: if the data cannot be read.

    Example:
        >>> import headwater as hw
        >>> hw.run("fedavg", clients=3, sectors=1, rounds=1, local__epochs=1).result["clients"]
        3
    """
    base, data = _of_method(method), _in_memory(data, settings, standardize)
    config = Config(**merge(base, _asked(settings, data, model, engine, [base["algorithm"]["name"]])))
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
    standardize: bool | str = "auto",
    **settings: Any,
) -> Comparison:
    """Train several methods on the same data, split and seeds.

    Args:
        methods: names or instances, as for `run`.
        seeds: seeds; every method runs once with each.
        data: as for `run`.
        model: as for `run`.
        out: directory; each run is written to `out/<method>/seed-<n>`. None leaves nothing on disk.
        engine: as for `run`.
        watch: as for `run`.
        standardize: as for `run`.
        **settings: configuration keys that all methods share.

    Returns:
        The runs side by side.

    Example:
        >>> import headwater as hw
        >>> both = hw.compare(["fedavg", "fedprox"], clients=3, sectors=1, rounds=1, local__epochs=1)
        >>> [row["method"] for row in both.rows()]
        ['fedavg', 'fedprox']
    """
    if isinstance(methods, str) or not isinstance(methods, Iterable):
        raise ConfigError(f"hw.compare takes a list of methods, such as ['fedavg', 'fedhead'], got {shown(methods)}")
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        raise ConfigError(f"hw.compare takes a list of seeds, such as seeds=[0, 1, 2], got seeds={shown(seeds)}")
    chosen, numbers = list(methods), list(seeds)
    data = _in_memory(data, settings, standardize)
    if not chosen or not numbers or len(set(numbers)) < len(numbers):
        raise ConfigError(f"a comparison needs at least one method, and seeds that differ, got seeds={numbers}")
    if "seed" in settings:
        raise ConfigError("a comparison takes seeds=[...], not seed")
    bases = [_of_method(each) for each in chosen]
    names = [base["algorithm"]["name"] for base in bases]
    parts = share(_asked(settings, data, model, engine, names), names)
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
    """Runs side by side. Returned by `hw.compare`.

    Args:
        runs: the runs, by seed and then by method.
    """

    runs: tuple[Run, ...]

    def rows(self, target: float | None = None) -> list[dict[str, Any]]:
        """One row per method: mean accuracy over seeds with its interval, and the cost.

        Args:
            target: accuracy; rows then also tell the rounds and bytes until it was reached.
        """
        from headwater.report.method_table import dicts

        return dicts(self._summary(target))

    def table(self, target: float | None = None) -> str:
        """The rows as a Markdown table, the best of each column in bold.

        Args:
            target: as for `rows`.
        """
        from headwater.report.method_table import markdown

        return markdown(self._summary(target))

    def _summary(self, target: float | None) -> MethodTable:
        from headwater.report.method_table import tabulate

        return tabulate([_record(each) for each in self.runs], target)


def _in_memory(data: Source, settings: dict[str, Any], standardize: bool | str) -> str | Path | Data:
    """Names and paths as they are; all other data as `Data`. Settings about its columns are taken out."""
    if isinstance(data, str | Path):
        return data
    if standardize not in (True, False, "auto"):
        raise ConfigError(f"standardize must be True, False or 'auto', got {shown(standardize)}")
    return data_from(data, settings, standardize)


def _asked(settings: Mapping[str, Any], data: Source, model: Maker, engine: str | None, methods: Sequence[str]) -> Tree:
    """Keyword arguments as nested configuration tables."""
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
            named[_key(keyword, methods)] = value
    # None in Python is "none" in TOML; at the top level it means that the setting was left out.
    kept = {key: NONE if value is None else value for key, value in named.items() if value is not None or "__" in key}
    return nested(kept)


def _key(keyword: str, methods: Sequence[str]) -> str:
    """The `section__key` of a keyword argument."""
    if keyword in catalog.TOP or "__" in keyword:
        return keyword
    if keyword in PYTHON_NAMES:
        raise ConfigError(f"there is no setting called {keyword!r}; {PYTHON_NAMES[keyword]}")
    keys = catalog.every_key([name for name in methods if ":" in name])
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


def _loaded(config: Config, data: Source) -> Data:
    return data if isinstance(data, Data) else open_data(config.data)


def _maker(model: Maker) -> Callable[[], nn.Module] | None:
    """The function that builds the model, if `model` is one."""
    if model is None or isinstance(model, str):
        return None
    if not callable(model) or (hasattr(model, "state_dict") and not isinstance(model, type)):
        raise ConfigError(
            f"model must be a name or a function that makes a model, such as lambda: MyNet(), got {shown(model)}"
        )
    return model


def _record(run: Run) -> RunRecord:
    """A run as reports read it, with or without a directory."""
    from headwater.report.runs import RunRecord

    facts = run.result
    path = run.directory or Path()
    config = tomllib.loads(run.config)
    return RunRecord(path, facts["label"], facts["algorithm"], facts["seed"], config, run.history, facts, run.partition)
