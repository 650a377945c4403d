"""Public Python API: `run()`, `compare()`, `plan()` and `partition()`.

Keyword arguments set configuration keys: by the last part of a key where it is unique (`alpha`, `leader`), else as
`section__key` (`local__lr`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.api.compare_tuning import axes_of, tune_tree, with_choice
from headwater.api.comparison import Comparison
from headwater.api.progress import ProgressBar
from headwater.api.settings import asked, flag, folder, in_memory, in_python, loaded, maker, of_method, watcher
from headwater.callbacks import Callback
from headwater.config import Config, catalog
from headwater.config.fields import plain, shown
from headwater.config.load import settings_by_method
from headwater.config.plain_tables import merge
from headwater.errors import ConfigError
from headwater.sweep.tuning import fewest, tuned_facts
from headwater.training.experiment import Experiment, prepare
from headwater.training.hooks import checked
from headwater.training.loop import Event, open_engine, train

if TYPE_CHECKING:
    from headwater.api.partition_view import PartitionView
    from headwater.api.settings import Maker, Method, Source
    from headwater.planning import Plan
    from headwater.training.result import Run

__all__ = ["Comparison", "compare", "partition", "place", "plan", "run"]


@in_python()
def run(
    method: Method = catalog.DEFAULT_METHOD,
    *,
    data: Source = "digits",
    model: Maker = None,
    out: str | Path | None = None,
    engine: str | None = None,
    watch: Callable[[Event], None] | None = None,
    callbacks: Iterable[Callback] = (),
    progress: bool = True,
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
        callbacks: `hw.Callback` objects, which get every round's row; see `headwater.callbacks` for ready ones.
        progress: whether a progress bar is shown in terminals and notebooks. Elsewhere there is none.
        standardize: whether rows of numbers given as arrays get mean 0 and deviation 1 over all clients, as columns of
            a table do; "auto" does it for two-dimensional floats. `hw.Data` is used as it is.
        **settings: configuration keys, such as `clients=20`, `alpha=0.1`, `local__lr=0.05`.

    Returns:
        The finished run: accuracy, history, ledger and the trained model.

    Raises:
        ConfigError: if a name or value is not accepted; the message says what is.
        DataError: if the data cannot be read.
        CallbackError: if a callback raised.

    Example:
        >>> import headwater as hw
        >>> hw.run("fedavg", clients=3, sectors=1, rounds=1, local__epochs=1).result["clients"]
        3
    """
    hooks, directory = checked(callbacks), folder(out)
    bar = ProgressBar(flag("progress", progress), watcher(watch))
    with bar:
        experiment = _experiment(method, data, model, engine, standardize, settings)
        bar.begin(experiment.config.method)
        return train(experiment, out=directory, watch=bar.event, callbacks=hooks)


@in_python()
def compare(
    methods: Iterable[Method],
    *,
    seeds: Iterable[int] = (0,),
    baseline: str | None = None,
    tune: Iterable[str] | Mapping[str, Iterable[Any]] = (),
    data: Source = "digits",
    model: Maker = None,
    out: str | Path | None = None,
    engine: str | None = None,
    watch: Callable[[Event], None] | None = None,
    callbacks: Iterable[Callback] = (),
    progress: bool = True,
    standardize: bool | str = "auto",
    **settings: Any,
) -> Comparison:
    """Train several methods on the same data, split and seeds.

    Args:
        methods: names or instances, as for `run`.
        seeds: seeds; every method runs once with each.
        baseline: the method that the others are compared with, paired by seed; None for the first one.
        tune: keys that are first chosen for every method on the validation set, with the same budget for each, such as
            `["local.lr"]` or `{"local.lr": [0.01, 0.1]}`.
        data: as for `run`.
        model: as for `run`.
        out: directory; each run is written to `out/<method>/seed-<n>`. None leaves nothing on disk.
        engine: as for `run`.
        watch: as for `run`.
        callbacks: as for `run`; the same objects get every run, one after the other.
        progress: as for `run`.
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
    chosen, numbers = _several("methods", methods, "['fedavg', 'fedhead']"), _several("seeds", seeds, "[0, 1, 2]")
    if not chosen or not numbers or any(number in numbers[:at] for at, number in enumerate(numbers)):
        raise ConfigError(f"a comparison needs at least one method, and seeds that differ, got seeds={shown(numbers)}")
    if "seed" in settings:
        raise ConfigError("a comparison takes seeds=[...], not seed")
    hooks, directory = checked(callbacks), folder(out)
    bar = ProgressBar(flag("progress", progress), watcher(watch))
    data = in_memory(data, settings, standardize)
    bases = [of_method(each) for each in chosen]
    names = [base["algorithm"]["name"] for base in bases]
    if baseline is not None and baseline not in names:
        raise ConfigError(f"baseline={baseline!r} is not among the methods ({', '.join(names)}); name one of them")
    for name in names:
        catalog.check_name("algorithm", name)
    parts = settings_by_method(asked(settings, data, model, engine, names), names)
    trees = [merge(base, part) for base, part in zip(bases, parts, strict=True)]
    first = [Config(**merge(tree, {"seed": numbers[0]})) for tree in trees]
    _check_places(directory, first)
    runs: list[Run] = []
    axes = axes_of(tune)
    facts: list[dict[str, Any]] = [{} for _ in trees]
    with bar:
        found = loaded(first[0], data)
        ready = partial(prepare, data=found, model=maker(model))
        most = fewest([ready(config).config for config in first], axes) if axes else 0
        for at, tree in enumerate(trees if axes else ()):
            to = None if directory is None else directory / "tune" / names[at].replace(":", ".")
            facts[at] = tune_tree(merge(tree, {"seed": numbers[0]}), axes, ready, to, bar, most)
            trees[at] = with_choice(tree, facts[at])
        for seed in numbers:
            configs = [Config(**merge(tree, {"seed": seed})) for tree in trees]
            experiments = [
                replace(prepare(config, data=found, model=maker(model)), tuned=tuned_facts(known) if known else {})
                for config, known in zip(configs, facts, strict=True)
            ]
            with open_engine(configs[0], experiments) as shared:
                for each in experiments:
                    bar.begin(f"{each.config.method} seed {each.config.seed}")
                    to = None if directory is None else place(directory, each.config)
                    runs.append(train(each, out=to, watch=bar.event, engine=shared, callbacks=hooks))
    return Comparison(tuple(runs), baseline)


@in_python()
def plan(
    method: Method = catalog.DEFAULT_METHOD,
    *,
    data: Source = "digits",
    model: Maker = None,
    engine: str | None = None,
    standardize: bool | str = "auto",
    **settings: Any,
) -> Plan:
    """What a run would send, compute and need. Trains nothing.

    Args:
        method: as for `run`.
        data: as for `run`.
        model: as for `run`.
        engine: as for `run`.
        standardize: as for `run`.
        **settings: configuration keys, as for `run`.

    Returns:
        Bytes by link and round, gradient steps, memory and time; shows itself in a notebook.

    Example:
        >>> import headwater as hw
        >>> planned = hw.plan("fedavg", clients=3, sectors=1, rounds=2, local__epochs=1)
        >>> planned.traffic.total["server_sector"]["round_trips"]
        6
    """
    from headwater.planning import plan as plan_run

    return plan_run(_experiment(method, data, model, engine, standardize, settings))


@in_python()
def partition(
    method: Method = catalog.DEFAULT_METHOD,
    *,
    data: Source = "digits",
    model: Maker = None,
    engine: str | None = None,
    standardize: bool | str = "auto",
    **settings: Any,
) -> PartitionView:
    """Who would hold what in a run with the same keywords. Trains nothing.

    Args:
        method: as for `run`; the split does not depend on it.
        data: as for `run`.
        model: as for `run`.
        engine: as for `run`.
        standardize: as for `run`.
        **settings: configuration keys, as for `run`.

    Returns:
        Counts by client and class, label distances, figure and manifest; shows itself in a notebook.

    Example:
        >>> import headwater as hw
        >>> hw.partition(data="digits", clients=4, sectors=2, alpha=0.1).counts.shape
        (4, 10)
    """
    from headwater.api.partition_view import PartitionView

    return PartitionView(_experiment(method, data, model, engine, standardize, settings))


def place(out: Path, config: Config) -> Path:
    """The directory of one run of a comparison."""
    return out / config.method.replace(":", ".") / f"seed-{config.seed}"


def _experiment(
    method: Method,
    data: Source,
    model: Maker,
    engine: str | None,
    standardize: bool | str,
    settings: dict[str, Any],
) -> Experiment:
    base, data = of_method(method), in_memory(data, settings, standardize)
    config = Config(**merge(base, asked(settings, data, model, engine, [base["algorithm"]["name"]])))
    return prepare(config, data=loaded(config, data), model=maker(model))


def _several(name: str, given: Any, example: str) -> list[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"hw.compare takes a list of {name}, such as {name}={example}, got {name}={shown(given)}")
    return [plain(each) for each in given] if name == "seeds" else [*given]


def _check_places(out: Path | None, configs: list[Config]) -> None:
    """Refuse two variants of one method that would write to the same directory."""
    names = [config.method for config in configs]
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if out is not None and twice is not None:
        raise ConfigError(
            f"{twice!r} is compared twice, and both would be written to {out / twice}; leave out= away, or compare "
            "each in a folder of its own"
        )
