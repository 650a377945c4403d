"""DistilBERT from the library `transformers`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headwater.data.files import FETCH, may_fetch
from headwater.errors import ConfigError, MissingExtra
from headwater.models import ModelInfo
from headwater.models.base import Net, Shape, token_length

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


@ModelInfo("distilbert", "transformer for token numbers, needs headwater[text] (path)", tokens=True)
def distilbert(shape: Shape, classes: int, *, path: str = "distilbert-base-uncased") -> Net:
    """Token numbers (0 is padding) → transformer → state of the first token → ReLU layer and dropout → classifier.

    Args:
        shape: (tokens per text,).
        classes: number of logits.
        path: a directory as `save_pretrained` writes it, or a name on the Hugging Face hub. A directory with only
            `config.json` gives a net of that shape with random weights.
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra("model 'distilbert'", "text") from error
    length = token_length("distilbert", shape)
    with _quiet(transformers.utils.logging):
        config = _read(transformers.AutoConfig.from_pretrained, path)
        if config.model_type != "distilbert":
            raise ConfigError(f"model.path {path!r} holds a {config.model_type!r}, not a 'distilbert'; give another")
        if length > config.max_position_embeddings:
            raise ConfigError(
                f"the distilbert of {path!r} takes texts of up to {config.max_position_embeddings} tokens, got "
                f"{length}; cut the texts, or use another model.path"
            )
        bare = torch.get_default_device().type == "meta" or (Path(path).is_dir() and not _weights(path))
        kind = transformers.DistilBertModel
        body = kind(config) if bare else _read(kind.from_pretrained, path)
    features = nn.Sequential(
        DistilBertEncoder(body), nn.Linear(config.dim, config.dim), nn.ReLU(), nn.Dropout(config.seq_classif_dropout)
    )
    return Net(features, nn.Linear(config.dim, classes))


class DistilBertEncoder(nn.Module):
    """The transformer's state of the first token that is not padding, which stands for the whole text."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body
        self.words: int = body.config.vocab_size

    def forward(self, x: Tensor) -> Tensor:
        seen = x != 0
        seen[:, 0] |= ~seen.any(dim=1)  # a text without words is read as its first padding
        states: Tensor = self.body(input_ids=x, attention_mask=seen.long()).last_hidden_state
        return states[torch.arange(len(x)), seen.long().argmax(dim=1)]


def _weights(path: str) -> bool:
    return any((Path(path) / name).is_file() for name in WEIGHTS)


def _read(read: Callable[..., Any], path: str) -> Any:
    """Read a configuration or a model from a directory or, if the user allows downloads, from the hub."""
    place, local = Path(path), True
    if place.is_dir() and not (place / "config.json").is_file():
        raise ConfigError(f"model.path {path!r} holds no config.json; give a directory that save_pretrained wrote")
    if not place.is_dir() and (place.exists() or place.is_absolute() or path.startswith(".") or path.count("/") > 1):
        raise ConfigError(
            f"there is no directory {path!r}; give in model.path one that save_pretrained wrote, or a name on the "
            "Hugging Face hub"
        )
    if not place.is_dir():
        local = not may_fetch()
    try:
        return read(path, local_files_only=local)
    except Exception as error:  # no network, no such name, a damaged file: the library has many kinds of errors
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if place.is_dir():
            raise ConfigError(f"model.path {path!r} could not be read as a distilbert ({reason})") from error
        way = f"set {FETCH}=1 to have it fetched from the Hugging Face hub" if local else "look at name and network"
        raise ConfigError(
            f"there is no distilbert called {path!r} on this machine; {way}, or give in model.path a directory with "
            f"config.json and the weights ({reason})"
        ) from error


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Without progress bars and log messages of the library."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
