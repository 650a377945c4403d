"""A client's own data, read and checked where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from headwater.data.base import Examples
from headwater.data.loading import like, load
from headwater.errors import ConfigError, DataError

if TYPE_CHECKING:
    from headwater.deploy.folder import PartyFolder


def own_data(folder: PartyFolder) -> Examples:
    """The rows that the client's party.toml names, as the federation's model takes them, or a sentence."""
    described, name = folder.federation, folder.data
    assert name is not None
    found = _rows(name) if name.endswith(".npz") else None
    if found is None:
        options = {key: getattr(described.config.data, key) for key in ("label",)} | described.config.data.options
        made = load(name, None, like(name, options))
        if made.preparation is not None:
            raise ConfigError(
                f"{name} has to be standardised with what all clients know together, which this federation did not "
                "settle; give numbers as they are to be learnt from, in a .npz file with x and y"
            )
        found = made.train
    if tuple(found.x.shape[1:]) != tuple(described.shape):
        raise DataError(
            f"{name} has inputs of shape {tuple(found.x.shape[1:])}, and this federation learns from "
            f"{tuple(described.shape)}"
        )
    if len(found) and not 0 <= int(found.y.min()) <= int(found.y.max()) < described.classes:
        raise DataError(
            f"{name} has labels from {int(found.y.min())} to {int(found.y.max())}, and this federation knows the "
            f"classes 0 to {described.classes - 1}"
        )
    return found


def _rows(path: str) -> Examples | None:
    """Of a file that holds just x and y."""
    try:
        with np.load(path, allow_pickle=False) as held:
            if set(held.files) != {"x", "y"}:
                return None
            x, y = torch.from_numpy(held["x"]), torch.from_numpy(held["y"].astype(np.int64))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); it must hold the arrays x and y") from error
    if len(x) != len(y) or y.dim() != 1:
        raise DataError(f"{path} has {len(x)} inputs and {tuple(y.shape)} labels; give one label to each input")
    return Examples(x, y)
