"""Headwater trains one model over data that stays where it is, across a tree of server, sectors and clients.

>>> import headwater as hw
>>> run = hw.run("fedhead", data="digits", clients=20, sectors=2, alpha=0.1, rounds=10)  # doctest: +SKIP

The names are loaded when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headwater import startup

if TYPE_CHECKING:
    from headwater.algorithms.centralized import Centralized
    from headwater.algorithms.fed_ensemble import FedEnsemble
    from headwater.algorithms.fedalign import FedAlign
    from headwater.algorithms.fedavg import FedAvg
    from headwater.algorithms.fedavgm import FedAvgM
    from headwater.algorithms.fedbe import FedBe
    from headwater.algorithms.feddf import FedDf
    from headwater.algorithms.feddyn import FedDyn
    from headwater.algorithms.fedeed import FedEed
    from headwater.algorithms.fedgen import FedGen
    from headwater.algorithms.fedhead import FedHead, FedHeadPlus
    from headwater.algorithms.fedhkd import FedHkd, FedHkdStar
    from headwater.algorithms.fedma import FedMa
    from headwater.algorithms.fedmd import FedMd
    from headwater.algorithms.fedproto import FedProto
    from headwater.algorithms.fedprox import FedProx
    from headwater.algorithms.frame import Frame
    from headwater.algorithms.hfedavg import HFedAvg
    from headwater.algorithms.hfeddyn import HFedDyn
    from headwater.algorithms.hfedprox import HFedProx
    from headwater.algorithms.hscaffold import HScaffold
    from headwater.algorithms.local import Local
    from headwater.algorithms.moon import Moon
    from headwater.algorithms.mtgc import Mtgc
    from headwater.algorithms.scaffold import Scaffold
    from headwater.api import Comparison, compare, run
    from headwater.config import Config
    from headwater.data.base import Data
    from headwater.errors import (
        ConfigError,
        DataError,
        Diverged,
        HeadwaterError,
        MissingExtra,
        OutputError,
        PlaceError,
        TaskError,
        UserError,
    )
    from headwater.specs import DistillSpec, LocalSpec
    from headwater.training.result import Run

__version__ = "0.1.0"

startup.settle()  # before torch is loaded

__all__ = [
    "Centralized",
    "Comparison",
    "Config",
    "ConfigError",
    "Data",
    "DataError",
    "DistillSpec",
    "Diverged",
    "FedAlign",
    "FedAvg",
    "FedAvgM",
    "FedBe",
    "FedDf",
    "FedDyn",
    "FedEed",
    "FedEnsemble",
    "FedGen",
    "FedHead",
    "FedHeadPlus",
    "FedHkd",
    "FedHkdStar",
    "FedMa",
    "FedMd",
    "FedProto",
    "FedProx",
    "Frame",
    "HFedAvg",
    "HFedDyn",
    "HFedProx",
    "HScaffold",
    "HeadwaterError",
    "Local",
    "LocalSpec",
    "MissingExtra",
    "Moon",
    "Mtgc",
    "OutputError",
    "PlaceError",
    "Run",
    "Scaffold",
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
    "FedAlign": "algorithms.fedalign",
    "FedAvg": "algorithms.fedavg",
    "FedAvgM": "algorithms.fedavgm",
    "FedBe": "algorithms.fedbe",
    "FedDf": "algorithms.feddf",
    "FedDyn": "algorithms.feddyn",
    "FedEed": "algorithms.fedeed",
    "FedEnsemble": "algorithms.fed_ensemble",
    "FedGen": "algorithms.fedgen",
    "FedHead": "algorithms.fedhead",
    "FedHeadPlus": "algorithms.fedhead",
    "FedHkd": "algorithms.fedhkd",
    "FedHkdStar": "algorithms.fedhkd",
    "FedMa": "algorithms.fedma",
    "FedMd": "algorithms.fedmd",
    "FedProto": "algorithms.fedproto",
    "FedProx": "algorithms.fedprox",
    "Frame": "algorithms.frame",
    "HFedAvg": "algorithms.hfedavg",
    "HFedDyn": "algorithms.hfeddyn",
    "HFedProx": "algorithms.hfedprox",
    "HScaffold": "algorithms.hscaffold",
    "Local": "algorithms.local",
    "LocalSpec": "specs",
    "Moon": "algorithms.moon",
    "Mtgc": "algorithms.mtgc",
    "Run": "training.result",
    "Scaffold": "algorithms.scaffold",
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
