"""What MKL is asked for before its first product, and what is said of the arithmetic."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import toys
from headwater import startup
from headwater.core import numerics
from headwater.engines.workers.process import environment
from headwater.training.loop import train

needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch computes without MKL here")
PRODUCT = "torch.mm(torch.ones(8, 8), torch.ones(8, 8))"


def told(code: str, **variables: str) -> str:
    """What a fresh process prints."""
    usual = {name: value for name, value in os.environ.items() if name != startup.CBWR}
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=usual | paths | variables, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_mkl
@pytest.mark.parametrize(
    ("code", "variables", "mode"),
    [
        (f"import headwater, torch; {PRODUCT}", {}, "AUTO"),
        pytest.param(f"import torch, headwater; {PRODUCT}", {}, "AUTO", marks=pytest.mark.thorough),
        pytest.param(f"import torch; {PRODUCT}; import headwater", {}, "OFF", marks=pytest.mark.thorough),
        pytest.param(
            f"import headwater, torch; {PRODUCT}", {"MKL_CBWR": "COMPATIBLE"}, "COMPATIBLE", marks=pytest.mark.thorough
        ),
        pytest.param(f"import headwater, torch; {PRODUCT}", {"MKL_CBWR": ""}, "OFF", marks=pytest.mark.thorough),
    ],
)
def test_importing_headwater_asks_mkl_unless_the_user_did(code: str, variables: dict[str, str], mode: str) -> None:
    assert f"CNR:{mode} " in told(code, MKL_VERBOSE="1", **variables)


@needs_mkl
@pytest.mark.parametrize(
    ("before", "mode", "late"),
    [
        pytest.param("", "AUTO", False, marks=pytest.mark.thorough),
        pytest.param("import torch", "AUTO", False, marks=pytest.mark.thorough),
        pytest.param(f"import torch; {PRODUCT}", "OFF", True, marks=pytest.mark.thorough),
    ],
)
def test_it_is_known_what_is_in_force_and_said_where_it_came_too_late(before: str, mode: str, late: bool) -> None:
    code = f"""{before}
import headwater
from headwater.core import numerics
from headwater.engines.workers.process import environment
print("mode", numerics.mkl_cbwr(), bool(numerics.too_late()), repr(environment(1)["MKL_CBWR"]))"""
    asked = "''" if late else "'AUTO'"  # workers compute as this process does
    assert told(code).splitlines()[-1] == f"mode {mode} {late} {asked}"


def test_workers_find_what_this_process_has() -> None:
    assert environment(1)[startup.CBWR] == ("" if numerics.too_late() else os.environ[startup.CBWR])


def test_a_result_says_what_its_last_digits_depend_on() -> None:
    found = train(toys.tiny("fedavg")).result["numerics"]
    assert found == numerics.about()
    assert found["capability"] == torch.backends.cpu.get_cpu_capability()
    assert found["processor"]
