"""The examples in the docstrings of the Python API run."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = ["headwater.callbacks", "headwater.api", "headwater.api.comparison", "headwater.api.partition_view"]


@pytest.mark.parametrize(
    "module", [name if name == MODULES[0] else pytest.param(name, marks=pytest.mark.thorough) for name in MODULES]
)
def test_the_example_runs(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0
