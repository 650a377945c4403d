"""What is not loaded, and when the collector rests."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headwater import startup
from headwater.cli.app import main

HEAVY = ("torch._dynamo", "torch._inductor", "sympy", "sklearn", "scipy", "matplotlib", "vl_convert", "pandas", "PIL")
FRONT = ("typer", "click", "rich", "headwater.cli", "headwater.config", "headwater.report", "headwater.training.loop")


def loaded(program: str, *arguments: str) -> set[str]:
    """The modules that a fresh process has loaded when it is through with a program."""
    told = subprocess.run(
        [sys.executable, "-c", f"import json, sys\n{program}\njson.dump([*sys.modules], sys.stderr)", *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(told.stderr.splitlines()[-1]))


def test_one_round_on_digits_loads_nothing_heavy_but_torch(tmp_path: Path) -> None:
    """From reading the data to the report. Each of these takes about as long to load as the round takes to train."""
    out = tmp_path / "run"
    found = loaded(
        "from headwater.cli.app import main\nassert main() == 0",
        *("run", "fedavg", "--rounds", "1", "--engine", "inline", "--quiet", "--out", str(out)),
        *("--set", "data.fraction=0.2", "--set", "partition.clients=4", "--set", "local.epochs=1"),
    )
    assert json.loads((out / "result.json").read_text())["rounds"] == 1
    assert (out / "report.html").exists()
    assert "torch" in found
    assert not found.intersection(HEAVY)


@pytest.mark.thorough
def test_a_worker_loads_what_tasks_need_and_no_more() -> None:
    """Tasks come with the names of their modules: those of the common stages load nothing more, nor does a step."""
    found = loaded(
        "import torch\n"
        "from headwater.engines.workers import start, worker\n"
        "from headwater.tasks import distill, local, optimizers\n"
        "from headwater.specs import DistillSpec\n"
        "optimizers.FusedOptimizer(DistillSpec(steps=1, optimizer='adam'), torch.zeros(3)).step(torch.ones(3), 0.1)"
    )
    assert "headwater.engines.execution" in found
    assert not found.intersection(HEAVY + FRONT)


def test_the_collector_rests_until_the_imports_are_done() -> None:
    program = (
        "import gc\n"
        "from headwater import startup\n"
        "usual = gc.get_threshold()\n"
        "startup.defer_gc()\n"
        "assert gc.get_threshold()[0] > 100 * usual[0]\n"
        "import decimal\n"
        "startup.freeze_gc()\n"
        "assert gc.get_threshold() == usual and gc.isenabled()\n"
        "assert gc.get_freeze_count() > 1000"
    )
    assert "decimal" in loaded(program)


def test_the_collector_of_another_program_is_left_alone() -> None:
    gc.unfreeze()  # what the tests have frozen themselves
    before = gc.get_threshold()
    startup.freeze_gc()
    assert main(["list", "models"]) == 0
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
    gc.freeze()
