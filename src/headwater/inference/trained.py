"""A trained model that can be used: `load` reads it from a run's directory or file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from headwater.core.records import parse_json
from headwater.data.reading import Reading
from headwater.errors import ConfigError, OutputError, nearest, said
from headwater.inference.several_models import FILE as MEMBERS
from headwater.inference.several_models import Ensemble, built, spec_of
from headwater.models.base import ModelSpec
from headwater.registry import path_exists

if TYPE_CHECKING:
    from headwater.inference.inputs import InputReader

Array = np.ndarray[Any, np.dtype[Any]]
FILE = "model.safetensors"
MOST_NAMED = 6  # runs that a message names
KEY = "headwater"  # of the metadata that describes the model
BATCH = 256  # rows of a forward pass


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A trained model with the preparation of its inputs. Returned by `hw.load`.

    Args:
        spec: its architecture; that of the clients' model if there are several.
        class_names: names of the classes.
        tensors: state of the module; with the member's name as a prefix if there are several models.
        specs: architecture of each member, where the method keeps several models and no single one.
        reading: how the training data was read.
        words: how many token numbers the model knows, if its inputs are tokens.
        source: where the model is from, for messages.
        voting: how the members predict together: the further arguments of `Ensemble`.
        further: architectures of models that are kept too and do not vote.
        same: member → the member whose tensors it shares, where two are equal.
        beside: models that the method keeps beside a single one, or their file, which is read when it is needed.

    Example:
        >>> import headwater as hw
        >>> run = hw.run("fedavg", clients=3, sectors=1, rounds=1, local__epochs=1)
        >>> run.predict(np.zeros((2, 1, 8, 8), dtype=np.float32)).shape
        (2,)
    """

    spec: ModelSpec
    class_names: tuple[str, ...]
    tensors: Mapping[str, Tensor]
    specs: Mapping[str, ModelSpec] = field(default_factory=dict)
    reading: Reading = field(default_factory=Reading)
    words: int | None = None
    source: str = "the model"
    voting: Mapping[str, Any] = field(default_factory=dict)
    further: Mapping[str, ModelSpec] = field(default_factory=dict)
    same: Mapping[str, str] = field(default_factory=dict)
    beside: TrainedModel | Path | None = None

    def __repr__(self) -> str:
        several = f", {len(self.specs)} members" if self.specs else ""
        return f"<TrainedModel {self.spec.name}{several}, {len(self.class_names)} classes, from {self.source}>"

    @cached_property
    def classes_(self) -> Array:
        """The classes in the order of `predict_proba`: numbers if their names are 0, 1, 2, …, else the names."""
        numbered = all(name == str(number) for number, name in enumerate(self.class_names))
        return np.arange(len(self.class_names)) if numbered else np.array(self.class_names)

    @cached_property
    def members(self) -> dict[str, nn.Module]:
        """The models of clients or ensemble members by name, in evaluation mode; empty if there is a single model."""
        if not self.specs:
            return self._kept.members if self._kept else {}
        return {name: self._built(name, spec) for name, spec in self.specs.items()}

    @cached_property
    def others(self) -> dict[str, nn.Module]:
        """Further models at the server, such as those of other architectures, by name, in evaluation mode."""
        mine = {name: self._built(name, spec) for name, spec in self.further.items()}
        return mine | (self._kept.others if self._kept else {})

    @cached_property
    def ensemble(self) -> nn.Module | None:
        """All members as one classifier, which averages as the method does; None if there is a single model."""
        if not self.specs:
            return self._kept.ensemble if self._kept else None
        return Ensemble(self.members, **self.voting).eval()

    @cached_property
    def module(self) -> nn.Module:
        """The model that predicts, in evaluation mode: the single model, or the ensemble of all members without one."""
        return (self.specs and self.ensemble) or built(self.spec, self._state(""), self.source)

    def member(self, name: str) -> TrainedModel:
        """One member, or other model, as a model of its own, such as the personal model of a client.

        Args:
            name: of the member; see `members` and `others`.

        Raises:
            ConfigError: there is no such member.
        """
        known = {**self.specs, **self.further}
        if name in known:
            alone: dict[str, Any] = {"specs": {}, "further": {}, "voting": {}, "same": {}, "beside": None}
            state = self._state(f"{self.same.get(name, name)}.")
            return replace(self, spec=known[name], tensors=state, source=f"{name} of {self.source}", **alone)
        if self._kept and not known:
            return self._kept.member(name)
        has = f"members: {', '.join([*known][:12])}" if known else "it is a single model"
        raise ConfigError(f"{self.source} has no member {name!r}{nearest(name, known)} ({has})")

    def as_ensemble(self) -> TrainedModel:
        """The ensemble of all members as a model of its own: `predict` is that of `ensemble`.

        Raises:
            ConfigError: there is a single model.
        """
        if self.specs:
            return self
        if self._kept and self._kept.specs:
            return self._kept
        raise ConfigError(f"{self.source} has no ensemble: the method keeps a single model; predict without it")

    def predict_proba(self, x: Any, *, batch: int = BATCH) -> Array:
        """The probability of each class for each row, as an array (rows, classes).

        Args:
            x: numpy array, tensor, DataFrame, `DataLoader`, a list of image files or texts, or the path of a .csv,
                .parquet or .npz file, of an image or of a folder of images. It is prepared as in training.
            batch: rows of a forward pass.

        Raises:
            DataError: the data does not fit the model; the message names the column, shape or file.
        """
        parts = [*self.probabilities(x, batch)]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.class_names)), dtype=np.float32)

    def predict(self, x: Any, *, batch: int = BATCH) -> Array:
        """The class of each row, as in `classes_`.

        Args:
            x: as for `predict_proba`.
            batch: rows of a forward pass.
        """
        classes: Array = self.classes_[self.predict_proba(x, batch=batch).argmax(1)]
        return classes

    def probabilities(self, x: Any, batch: int = BATCH, say: Callable[[str], None] = warnings.warn) -> Iterator[Array]:
        """`predict_proba` in batches, for data that does not fit into memory at once.

        Args:
            x: as for `predict_proba`.
            batch: rows of a forward pass.
            say: called with a sentence about values that are accepted but may be a mistake.
        """
        if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
            raise ConfigError(f"batch must be at least 1, a whole number, got {batch!r}")
        module = self.module
        with torch.no_grad():
            for rows in self.reader(say).batches(x, batch):
                yield torch.softmax(module(rows), 1).numpy()

    def reader(self, say: Callable[[str], None] = warnings.warn) -> InputReader:
        """Reads new data for this model; `say` as for `probabilities`."""
        from headwater.inference.inputs import InputReader  # training needs no reader of image files

        return InputReader(self.spec, self.reading, self.words, say)

    @cached_property
    def _kept(self) -> TrainedModel | None:
        """The models kept beside the single model, read from their file on first use."""
        if not isinstance(self.beside, Path):
            return self.beside
        return _read(self.beside, self.source, self.spec.builder) if path_exists(self.beside) else None

    def _built(self, name: str, spec: ModelSpec) -> nn.Module:
        return built(spec, self._state(f"{self.same.get(name, name)}."), self.source)

    def _state(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): t for name, t in self.tensors.items() if name.startswith(prefix)}


def load(source: str | Path, model: Callable[[], nn.Module] | None = None) -> TrainedModel:
    """Load a trained model.

    Args:
        source: a run's directory, or its model.safetensors.
        model: builds the module, for a run whose model was given as a function.

    Returns:
        The model, with `predict` and `predict_proba`.

    Raises:
        OutputError: there is no model there, or the file is damaged.
    """
    if not isinstance(source, str | os.PathLike):
        raise OutputError(f"hw.load takes the directory of a finished run, or its {FILE}, got {source!r}")
    path = Path(source).expanduser()
    file = path / FILE if path_exists(path) and path.is_dir() else path
    if not path_exists(file) or not file.is_file():
        raise OutputError(_no_model(path, file))
    found = _read(file, str(source), model)
    return replace(found, beside=file.with_name(MEMBERS)) if file.name == FILE else found


def _read(file: Path, source: str, build: Callable[[], nn.Module] | None) -> TrainedModel:
    from safetensors import safe_open

    try:
        with safe_open(str(file), framework="pt") as opened:
            about = (opened.metadata() or {}).get(KEY)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
    except Exception as error:  # safetensors raises an error of its own, which is not public
        raise OutputError(f"{file} is damaged ({said(error)}); copy it again, or train again") from error
    if about is None:
        raise OutputError(f"{file} was not written by a run: it does not say which model it holds")
    return from_metadata(about, tensors, source, build)


def from_metadata(
    text: str, tensors: Mapping[str, Tensor], source: str, build: Callable[[], nn.Module] | None = None
) -> TrainedModel:
    """The model of some tensors and the metadata that a run writes with them.

    Args:
        text: the metadata as JSON.
        tensors: state of the module, or of all members.
        source: where it is from, for messages.
        build: builds the module of a model that was given as a function.
    """
    try:
        about = parse_json(text)
        members, further, same = (about.pop(key, {}) for key in ("members", "further", "same"))
        class_names, words = about.pop("class_names"), about.pop("words", None)
        if not isinstance(class_names, list) or not all(isinstance(name, str) for name in class_names):
            raise TypeError("class_names is no list of names")
        reading, voting = Reading.of(about.pop("preparation", {})), about.pop("voting", {})
        specs = {name: spec_of(fields, build, source) for name, fields in members.items()}
        rest = {name: spec_of(fields, build, source) for name, fields in further.items()}
        known = (tuple(class_names), tensors, specs, reading, words, source)
        spec = spec_of(about, build, source)
        if len(class_names) < spec.classes:
            raise ValueError(f"{len(class_names)} names for {spec.classes} classes")
        return TrainedModel(spec, *known, voting=voting, further=rest, same=same)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise OutputError(f"{source} does not say which model it holds ({said(error)}); train again") from error


def _no_model(path: Path, file: Path) -> str:
    """The message for a path without a model: what is there instead, and which path to give."""
    if not path_exists(path):
        return f"there is no {str(path)[:200]!r}; name the directory of a finished run, or its {FILE}"
    if path_exists(path / "config.toml"):
        return f"there is no {file}, and this run is not finished; carry it on with: headwater resume {path}"
    inside: list[str] = []
    with suppress(OSError):  # of a folder that is removed while it is searched
        inside = sorted(str(found.parent) for depth in ("*", "*/*", "*/*/*") for found in path.glob(f"{depth}/{FILE}"))
    if inside:
        more = f" and {len(inside) - MOST_NAMED} more" if len(inside) > MOST_NAMED else ""
        return f"{path} holds several runs; name one of them: {', '.join(inside[:MOST_NAMED])}{more}"
    return f"there is no {str(file)[:200]}; a finished run leaves it in its directory"
