"""The public names are decided, not leaked."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import headwater as hw
from headwater.algorithms import ALGORITHMS

ROOT = Path(__file__).parent.parent


def test_they_are_these_and_sorted() -> None:
    assert hw.__all__ == sorted(hw.__all__)
    methods = {part.target.partition(":")[2] for part in ALGORITHMS.values()}
    assert set(hw.__all__) - methods == NAMES - methods
    assert set(hw.__all__) >= NAMES, "a public name is never taken away"
    assert dir(hw) == hw.__all__


NAMES = {
    "Callback",
    "CallbackError",
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
    "Method",
    "MethodInfo",
    "MissingExtra",
    "Moon",
    "Mtgc",
    "OutputError",
    "PartitionView",
    "PlaceError",
    "Plan",
    "Run",
    "Scaffold",
    "State",
    "StopRun",
    "TrainedModel",
    "TaskError",
    "UserError",
    "__version__",
    "callbacks",
    "compare",
    "load",
    "partition",
    "plan",
    "run",
}


def test_each_of_them_is_there() -> None:
    for name in hw.__all__:
        assert getattr(hw, name).__class__ is not None, name
    assert hw.FedHead.__name__ == "FedHead"
    assert issubclass(hw.ConfigError, hw.UserError)


def test_another_name_is_an_attribute_error() -> None:
    assert not hasattr(hw, "Experiment")


def test_importing_the_package_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, headwater; sys.exit(bool({'torch', 'numpy', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_version_is_the_projects() -> None:
    assert hw.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def test_the_readme_names_every_method() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in ALGORITHMS if f"`{name}`" not in text] == []
