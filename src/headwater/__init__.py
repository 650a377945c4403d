"""Headwater trains one model over data that stays where it is, across a tree of server, sectors and clients.

>>> import headwater as hw
>>> run = hw.run("fedhead", data="digits", clients=20, sectors=2, alpha=0.1, rounds=10)  # doctest: +SKIP

The names are loaded when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.algorithms.centralized import Centralized
    from headwater.algorithms.fedavg import FedAvg
    from headwater.algorithms.feddf import FedDf
    from headwater.algorithms.fedhead import FedHead, FedHeadPlus
    from headwater.algorithms.hfedavg import HFedAvg
    from headwater.algorithms.local import Local
    from headwater.api import Comparison, compare, run
    from headwater.config import Config
    from headwater.data.base import Data
    from headwater.errors import (
        ConfigError,
        DataError,
        HeadwaterError,
        MissingExtra,
        OutputError,
        PlaceError,
        TaskError,
        UserError,
    )
    from headwater.outcome import Run
    from headwater.specs import DistillSpec, LocalSpec

__version__ = "0.1.0"

__all__ = [
    "Centralized",
    "Comparison",
    "Config",
    "ConfigError",
    "Data",
    "DataError",
    "DistillSpec",
    "FedAvg",
    "FedDf",
    "FedHead",
    "FedHeadPlus",
    "HFedAvg",
    "HeadwaterError",
    "Local",
    "LocalSpec",
    "MissingExtra",
    "OutputError",
    "PlaceError",
    "Run",
    "TaskError",
    "UserError",
    "__version__",
    "compare",
    "run",
]

_HOMES = {
    "Centralized": "algorithms.centralized",
    "Comparison": "api",
    "Config": "config",
    "Data": "data.base",
    "DistillSpec": "specs",
    "FedAvg": "algorithms.fedavg",
    "FedDf": "algorithms.feddf",
    "FedHead": "algorithms.fedhead",
    "FedHeadPlus": "algorithms.fedhead",
    "HFedAvg": "algorithms.hfedavg",
    "Local": "algorithms.local",
    "LocalSpec": "specs",
    "Run": "outcome",
    "compare": "api",
    "run": "api",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headwater' has no attribute {name!r}")
    home = importlib.import_module(f"headwater.{_HOMES.get(name, 'errors')}")
    return globals().setdefault(name, getattr(home, name))


def __dir__() -> list[str]:
    return sorted(__all__)
