"""The table of models: importable without torch, complete, and a choice for every kind of input."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headwater.errors import ConfigError
from headwater.models import MODELS, auto


@pytest.mark.parametrize("package", ["headwater.models", "headwater.data", "headwater.partition"])
def test_tables_import_without_torch(package: str) -> None:
    code = f"import sys, {package}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((23,), "mlp"),
        ((1, 8, 8), "cnn"),
        ((1, 28, 28), "cnn"),
        ((1, 32, 32), "cnn"),
        ((3, 16, 16), "cnn"),
        ((3, 32, 32), "resnet8"),
        ((3, 2, 40), "mlp"),
    ],
)
def test_auto_suits_the_input(shape: tuple[int, ...], name: str) -> None:
    assert auto(shape, 10) == name


def test_auto_reads_token_numbers() -> None:
    assert auto((128,), 4, tokens=True) == "bag_of_words"


def test_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no model called 'resnet9'; did you mean 'resnet8'\?"):
        MODELS.check("resnet9")
