"""Absolute paths in a configuration, so that a run can be resumed from any directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headwater.config import Config
from headwater.data import kind_of_path


def with_absolute_paths(config: Config) -> Config:
    """The configuration with absolute paths of files and folders.

    Args:
        config: as the user wrote it.
    """
    data, model = config.data.model_dump(), config.model.model_dump()
    paths = {key: value for key in ("name", "reference") if kind_of_path(value := str(data[key])) is not None}
    if (test := data.get("test")) and Path(test).expanduser().is_file():
        paths["test"] = test
    if (tokenizer := data.get("tokenizer")) and Path(tokenizer).expanduser().exists():
        paths["tokenizer"] = tokenizer
    changed: dict[str, Any] = {
        "data": _other(data, {k: str(Path(v).expanduser().absolute()) for k, v in paths.items()})
    }
    linked = {}
    if model["start"] and (start := Path(model["start"]).expanduser()).exists():
        linked["start"] = str(start.resolve())  # a link such as runs/latest will point elsewhere
    if isinstance(path := model.get("path"), str) and Path(path).expanduser().is_dir():
        linked["path"] = str(Path(path).expanduser().absolute())
    changed["model"] = _other(model, linked)
    return config.merged(changed) if any(changed.values()) else config


def _other(section: dict[str, Any], values: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in values.items() if section[key] != value}
