"""Federated learning over a tree of server, sectors and clients, with ensemble distillation.

>>> import headwater as hw
>>> run = hw.run("fedhead", data="digits", clients=20, sectors=2, alpha=0.1, rounds=10)  # doctest: +SKIP

Names are imported when they are first used, so importing the package is quick. Every method's class is a public name;
`__init__.pyi`, written by tools/docs_tables.py, lists all of them for type checkers.
"""

from __future__ import annotations

import importlib
from typing import Any

from headwater import startup

__version__ = "0.2.0"

startup.set_environment()  # before torch is loaded

_ERRORS = (
    "CallbackError",
    "ConfigError",
    "DataError",
    "Diverged",
    "HeadwaterError",
    "MissingExtra",
    "OutputError",
    "PlaceError",
    "TaskError",
    "UserError",
)
_HOMES = dict.fromkeys(_ERRORS, "errors") | {
    "Callback": "callbacks",
    "Comparison": "api",
    "Config": "config",
    "Data": "data.base",
    "DistillSpec": "specs",
    "LocalSpec": "specs",
    "Method": "algorithms.base",
    "MethodInfo": "algorithms",
    "PartitionView": "api.partition_view",
    "Plan": "planning",
    "Run": "training.result",
    "State": "algorithms.base",
    "StopRun": "callbacks",
    "TrainedModel": "inference.trained",
    "compare": "api",
    "load": "inference.trained",
    "partition": "api",
    "plan": "api",
    "run": "api",
}


_MODULES = ("callbacks",)


def _homes() -> dict[str, str]:
    """Every public name with the module that defines it, methods included."""
    from headwater.algorithms import ALGORITHMS

    targets = (part.target.removeprefix("headwater.").split(":") for part in ALGORITHMS.values())
    return _HOMES | {name: module for module, name in targets}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        value: Any = sorted([*_homes(), *_MODULES, "__version__"])
    elif name in _MODULES:
        value = importlib.import_module(f"headwater.{name}")
    elif name.startswith("_") or (name not in _HOMES and name not in _homes()):
        raise AttributeError(f"module 'headwater' has no attribute {name!r}")
    else:
        value = getattr(importlib.import_module(f"headwater.{_HOMES.get(name) or _homes()[name]}"), name)
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return list(__getattr__("__all__"))
