"""Transformers with weights, read from a folder or from the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from headwater.data.files import FETCH, may_fetch
from headwater.errors import ConfigError, MissingExtra

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def library(model: str) -> Any:
    """The library `transformers`.

    Args:
        model: name of the model that needs it, for the message.
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra(f"model {model!r}", "text") from error
    return transformers


def bare(path: str) -> bool:
    """Whether weights are initialised at random: for an outline, or if the folder has no weights."""
    return torch.get_default_device().type == "meta" or (Path(path).is_dir() and not _weights(path))


def check_length(model: str, path: str, length: int, config: Any) -> None:
    """Refuse texts that are longer than a transformer's position embeddings.

    Args:
        model: its name, for the message.
        path: where it is from.
        length: tokens per text.
        config: of the library.
    """
    most = getattr(config, "max_position_embeddings", None)
    if most is not None and length > most:
        raise ConfigError(
            f"the {model} of {path!r} takes texts of up to {most} tokens, got {length}; cut the texts, or use another "
            "model.path"
        )


def _weights(path: str) -> bool:
    return any((Path(path) / name).is_file() for name in WEIGHTS)


def read(read: Callable[..., Any], path: str, model: str) -> Any:
    """Read a configuration or a model from a directory or, if the user allows downloads, from the hub.

    Args:
        read: a function of the library.
        path: a directory, or a name on the hub.
        model: what is read, for messages.
    """
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
            raise ConfigError(f"model.path {path!r} could not be read as a {model} ({reason})") from error
        way = f"set {FETCH}=1 to have it fetched from the Hugging Face hub" if local else "check name and network"
        raise ConfigError(
            f"there is no {model} called {path!r} on this machine; {way}, or give in model.path a directory with "
            f"config.json and the weights ({reason})"
        ) from error


@contextmanager
def quiet(logging: Any) -> Iterator[None]:
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
