"""A trained model that can be used: `load` reads it from a run's directory or file."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from headwater.config import CUSTOM
from headwater.data.reading import Reading
from headwater.errors import ConfigError, OutputError, nearest, said
from headwater.models.base import ModelSpec
from headwater.registry import path_exists

if TYPE_CHECKING:
    from headwater.inference.inputs import InputReader

Array = np.ndarray[Any, np.dtype[Any]]
FILE = "model.safetensors"
MOST_NAMED = 6  # runs that a message names
KEY = "headwater"  # of the metadata that describes the model
BATCH = 256  # rows of a forward pass


class Ensemble(nn.Module):
    """Several classifiers as one: its outputs are the logarithms of their mean probabilities.

    Args:
        members: the classifiers.
    """

    def __init__(self, members: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members.values())

    def forward(self, x: Tensor) -> Tensor:
        probs = torch.stack([torch.softmax(member(x), 1) for member in self.members]).mean(0)
        return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()


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
        return {name: _built(spec, self._state(f"{name}."), self.source) for name, spec in self.specs.items()}

    @cached_property
    def ensemble(self) -> nn.Module | None:
        """All members as one classifier (the mean of their probabilities); None if there is a single model."""
        return Ensemble(self.members).eval() if self.specs else None

    @cached_property
    def module(self) -> nn.Module:
        """The model that predicts, in evaluation mode: the single model, or the ensemble of all members."""
        return self.ensemble or _built(self.spec, self._state(""), self.source)

    def member(self, name: str) -> TrainedModel:
        """One member as a model of its own, such as the personal model of a client.

        Args:
            name: of the member; see `members`.

        Raises:
            ConfigError: there is no such member.
        """
        if name not in self.specs:
            has = f"members: {', '.join([*self.specs][:12])}" if self.specs else "it is a single model"
            raise ConfigError(f"{self.source} has no member {name!r}{nearest(name, self.specs)} ({has})")
        return replace(
            self,
            spec=self.specs[name],
            specs={},
            tensors=self._state(f"{name}."),
            source=f"{name} of {self.source}",
        )

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
    from safetensors import safe_open

    if not isinstance(source, str | os.PathLike):
        raise OutputError(f"hw.load takes the directory of a finished run, or its {FILE}, got {source!r}")
    path = Path(source).expanduser()
    file = path / FILE if path_exists(path) and path.is_dir() else path
    if not path_exists(file) or not file.is_file():
        raise OutputError(_no_model(path, file))
    try:
        with safe_open(str(file), framework="pt") as opened:
            about = (opened.metadata() or {}).get(KEY)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
    except Exception as error:  # safetensors raises an error of its own, which is not public
        raise OutputError(f"{file} is damaged ({said(error)}); copy it again, or train again") from error
    if about is None:
        raise OutputError(f"{file} was not written by a run: it does not say which model it holds")
    return from_metadata(about, tensors, str(source), model)


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
        about = json.loads(text)
        members = about.pop("members", {})
        class_names, words = tuple(about.pop("class_names")), about.pop("words", None)
        reading = Reading.of(about.pop("preparation", {}))
        specs = {name: _spec(fields, build, source) for name, fields in members.items()}
        return TrainedModel(_spec(about, build, source), class_names, tensors, specs, reading, words, source)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise OutputError(f"{source} does not say which model it holds ({said(error)}); train again") from error


def _spec(fields: Mapping[str, Any], build: Callable[[], nn.Module] | None, source: str) -> ModelSpec:
    if fields["name"] != CUSTOM:
        return ModelSpec(**fields)
    if build is None:
        raise ConfigError(
            f"the model of {source} was given as a function, which is not stored; give it again: "
            "hw.load(…, model=lambda: MyNet())"
        )
    return ModelSpec(**fields, builder=build)


def _built(spec: ModelSpec, state: Mapping[str, Tensor], source: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):  # the weights that it draws are replaced
        module = spec.build()
    try:
        missing, unknown = module.load_state_dict(dict(state), strict=False)
    except RuntimeError as error:
        raise OutputError(f"the tensors of {source} do not fit {spec.name!r} ({said(error)})") from error
    named = [*module.named_parameters(remove_duplicate=False)]
    loaded = {id(parameter) for name, parameter in named if name in state}  # a tied parameter is stored once
    odd = [name for name, parameter in named if name in missing and id(parameter) not in loaded] + unknown
    if odd:
        raise OutputError(f"the tensors of {source} do not fit {spec.name!r}: {odd[0]!r} has no counterpart")
    return module.eval()


def _no_model(path: Path, file: Path) -> str:
    """The sentence for a place without a model: what is there instead, and what to name."""
    if not path_exists(path):
        return f"there is no {str(path)[:200]!r}; name the directory of a finished run, or its {FILE}"
    if path_exists(path / "config.toml"):
        return f"there is no {file}, and this run is not finished; carry it on with: headwater resume {path}"
    inside = sorted(str(found.parent) for depth in ("*", "*/*", "*/*/*") for found in path.glob(f"{depth}/{FILE}"))
    if inside:
        more = f" and {len(inside) - MOST_NAMED} more" if len(inside) > MOST_NAMED else ""
        return f"{path} holds several runs; name one of them: {', '.join(inside[:MOST_NAMED])}{more}"
    return f"there is no {str(file)[:200]}; a finished run leaves it in its directory"
