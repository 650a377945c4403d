"""Callbacks of a run: the base class, and ready ones for TensorBoard, MLflow and Weights & Biases.

A callback sees what a run has computed and cannot change it: with and without callbacks a run gives the same bits.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.training.result import Run

__all__ = ["Callback", "MLflow", "StopRun", "TensorBoard", "WandB"]

MOST_PARAMS = 100  # parameters that MLflow takes at a time


class StopRun(Exception):  # noqa: N818
    """Raise it in `Callback.round_end` to end the run after this round.

    The run that `hw.run` returns has the rounds and the model so far. A directory given as `out` keeps the state and
    gets no result: the same call carries on from there.

    Example:
        >>> import headwater as hw
        >>> class Enough(hw.Callback):
        ...     def round_end(self, row):
        ...         raise hw.StopRun
        >>> len(hw.run("fedavg", clients=3, rounds=5, local__epochs=1, callbacks=[Enough()]).history)
        1
    """


class Callback:
    """Base class of callbacks, for `hw.run(..., callbacks=[...])`. Override what you need.

    An exception in a callback ends the run with a `CallbackError` that names the callback; its state is saved if the
    run has a directory.

    Example:
        >>> import headwater as hw
        >>> class Shown(hw.Callback):
        ...     def round_end(self, row):
        ...         print("round", row["round"])
        >>> run = hw.run("fedavg", clients=3, rounds=2, local__epochs=1, callbacks=[Shown()])
        round 1
        round 2
    """

    def run_begin(self, config: Config) -> None:
        """Called before the first round, also when a run is resumed.

        Args:
            config: the complete configuration of the run.
        """

    def round_end(self, row: dict[str, Any]) -> None:
        """Called after each round.

        Args:
            row: the round's row, as in `run.history`; a copy.
        """

    def run_end(self, run: Run) -> None:
        """Called when the run is finished or was ended by `StopRun`.

        Args:
            run: what `hw.run` is going to return.
        """

    def run_failed(self, error: BaseException) -> None:
        """Called instead of `run_end` when an exception or Ctrl-C ends the run, to close files and connections.

        Args:
            error: what ended the run; it is raised afterwards.
        """


def scalars(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers in a row or result; those of inner tables under names such as `bytes/server_sector/up`."""
    found: dict[str, float] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= scalars(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"{prefix}{key}"] = float(value)
    return found


def texts(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The settings of a configuration as texts, under names such as `local.lr`."""
    found: dict[str, str] = {}
    for key, value in values.items():
        found |= texts(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": str(value)[:500]}
    return found


def run_name(config: Config) -> str:
    """The name of a run at the trackers: method, data and seed."""
    return f"{config.method.replace(':', '.')}-{Path(config.data.name).name[:100]}-seed{config.seed}"


def _library(module: str, what: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(what, extra) from error


class TensorBoard(Callback):
    """Writes every round's numbers as TensorBoard events (extra `tensorboard`).

    Args:
        folder: where events go, one folder per run: `tensorboard --logdir FOLDER` shows them.

    Example:
        >>> import headwater as hw
        >>> hw.run("fedavg", callbacks=[hw.callbacks.TensorBoard("events")])  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path = "runs/tensorboard") -> None:
        self.folder = Path(folder)
        self._module = _library("torch.utils.tensorboard", "the callback TensorBoard", "tensorboard")
        self._writer: Any = None

    def run_begin(self, config: Config) -> None:
        self._writer = self._module.SummaryWriter(str(self.folder / run_name(config)))
        self._writer.add_text("config", f"```toml\n{config.to_toml()}\n```")

    def round_end(self, row: dict[str, Any]) -> None:
        for name, value in scalars(row).items():
            if name != "round":
                self._writer.add_scalar(name, value, row["round"])
        self._writer.flush()

    def run_end(self, run: Run) -> None:
        self._writer.close()

    def run_failed(self, error: BaseException) -> None:
        if self._writer is not None:
            self._writer.close()


class MLflow(Callback):
    """Logs the configuration as parameters and every round's numbers as metrics to MLflow (extra `mlflow`).

    Args:
        experiment: name of MLflow's experiment; created if absent.
        uri: tracking server or folder; None for MLflow's own setting.

    Example:
        >>> import headwater as hw
        >>> hw.run("fedavg", callbacks=[hw.callbacks.MLflow("digits")])  # doctest: +SKIP
    """

    def __init__(self, experiment: str = "headwater", uri: str | None = None) -> None:
        self._module = _library("mlflow", "the callback MLflow", "mlflow")
        self.experiment, self.uri = experiment, uri
        self._client: Any = None
        self._run = ""

    def run_begin(self, config: Config) -> None:
        self._client = self._module.MlflowClient(self.uri)
        found = self._client.get_experiment_by_name(self.experiment)
        number = found.experiment_id if found else self._client.create_experiment(self.experiment)
        self._run = self._client.create_run(number, run_name=run_name(config)).info.run_id
        params = [self._module.entities.Param(*item) for item in texts(config.tree()).items()]
        for at in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._run, params=params[at : at + MOST_PARAMS])

    def round_end(self, row: dict[str, Any]) -> None:
        now, made = int(1000 * time.time()), self._module.entities.Metric
        numbers = [made(key, value, now, row["round"]) for key, value in scalars(row).items() if key != "round"]
        self._client.log_batch(self._run, metrics=numbers)

    def run_end(self, run: Run) -> None:
        self._client.log_metric(self._run, "final_accuracy", run.accuracy)
        self._client.set_terminated(self._run)
        self._run = ""

    def run_failed(self, error: BaseException) -> None:
        if self._run:
            self._client.set_terminated(self._run, status="FAILED")


class WandB(Callback):
    """Logs the configuration and every round's numbers to Weights & Biases (extra `wandb`).

    Args:
        project: name of the project.
        mode: "offline" writes files only, which `wandb sync` can upload later; "online" sends as it goes.
        folder: where the files go; None for wandb's own setting.

    Example:
        >>> import headwater as hw
        >>> hw.run("fedavg", callbacks=[hw.callbacks.WandB("digits")])  # doctest: +SKIP
    """

    def __init__(self, project: str = "headwater", mode: str = "offline", folder: str | Path | None = None) -> None:
        self._module = _library("wandb", "the callback WandB", "wandb")
        if mode not in ("offline", "online"):
            raise ConfigError(f"mode of WandB must be 'offline' or 'online', got {mode!r}")
        self.project, self.mode, self.folder = project, mode, folder
        self._run: Any = None

    def run_begin(self, config: Config) -> None:
        place = None if self.folder is None else str(self.folder)
        if place is not None:
            Path(place).mkdir(parents=True, exist_ok=True)
        self._run = self._module.init(
            project=self.project,
            name=run_name(config),
            config=config.tree(),
            mode=self.mode,
            dir=place,
            reinit="create_new",
            settings=self._module.Settings(silent=True),
        )

    def round_end(self, row: dict[str, Any]) -> None:
        numbers = {name: value for name, value in scalars(row).items() if name != "round"}
        self._run.log(numbers, step=row["round"])

    def run_end(self, run: Run) -> None:
        self._run.summary["final_accuracy"] = run.accuracy
        self._run.finish()
        self._run = None

    def run_failed(self, error: BaseException) -> None:
        if self._run is not None:
            self._run.finish(exit_code=1)


RECORDERS = (TensorBoard, MLflow, WandB)  # callbacks that never raise StopRun
