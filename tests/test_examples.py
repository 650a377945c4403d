"""Runs every script in examples/ as a user would, in an empty directory, and checks what it prints."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from processes import output_of, own_network

EXAMPLES = Path(__file__).parents[1] / "examples"
SECONDS = 600  # a script takes a few seconds on an idle machine


def run(name: str, folder: Path, before: list[str] | None = None) -> str:
    """The output of an example, run in a folder."""
    command = [*(before or []), sys.executable, str(EXAMPLES / name)]
    environment = {key: value for key, value in os.environ.items() if key != "HEADWATER_DATA"}
    return output_of(command, SECONDS, environment | {"OMP_NUM_THREADS": "1"}, folder)


def numbers(pattern: str, output: str) -> list[float]:
    """The numbers that follow a pattern, in order."""
    return [float(found) for found in re.findall(pattern + r"([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)", output)]


def first_run(output: str) -> None:
    [final] = numbers("test accuracy ", output)
    by_round = numbers(r"round \d: accuracy ", output)
    assert len(by_round) == 3
    assert by_round[-1] == final > 0.8
    # 3 rounds; FedHEAD sends two models up and two down for each of two sectors.
    [parameters] = [int(found) for found in re.findall(r"(\d+) parameters", output)]
    assert numbers("server and sectors exchanged ", output) == [3 * 2 * 4 * parameters * 4]


def own_data(output: str) -> None:
    accuracies = numbers(r"(?:Headwater|split|column): ", output)
    assert len(accuracies) == 3
    assert min(accuracies) > 0.8
    assert re.findall(r"with (\d) clients", output) == ["6", "4", "4"]
    assert numbers("columns moved ", output)[0] > 0


def own_model(output: str) -> None:
    assert numbers("fedavg: accuracy ", output)[0] > 0.5
    assert "SmallNet returns logits of shape (5, 10)" in output
    assert numbers("moon: accuracy ", output)[0] > 0.3
    assert f"with {64 * 48 + 48 + 48 * 10 + 10} parameters" in output


def own_method(output: str) -> None:
    as_fedavg, by_adam = numbers("weights differ by ", output)
    assert as_fedavg < 1e-5 < 1e-3 < by_adam
    assert min(numbers("fedadam ", output)) > 0.5


def own_partitioner(output: str) -> None:
    sorted_by_label, half, alike = numbers("label distance ", output)
    assert sorted_by_label > 0.7 > half > 0.2 > alike
    assert numbers("accuracy ", output)[0] > 0.5
    assert "refused: partition.similarity must be from 0 to 1" in output


def compare_seeds(output: str) -> None:
    rows = re.findall(r"^(\w+): accuracy (\S+) \[(\S+), (\S+)\]", output, re.MULTILINE)
    assert [row[0] for row in rows] == ["fedavg", "fedprox", "hfedavg"]
    assert all(float(low) <= float(mean) <= float(high) for _, mean, low, high in rows)
    assert len(re.findall(r"^\| hfedavg +\| 3 +\|", output, re.MULTILINE)) == 1
    assert "difference low" in output
    assert len(numbers("fedprox - fedavg = ", output)) == 3


def read_a_run(output: str) -> None:
    by_round = numbers(r"round \d: accuracy ", output)
    [interval] = re.findall(r"^accuracy (\S+), 95 % interval from (\S+) to (\S+)$", output, re.MULTILINE)
    final, low, high = map(float, interval)
    assert len(by_round) == 3
    assert low < final == by_round[-1] < high
    assert "train: client -> server, 12 x model" in output
    assert "in 6 tensors" in output


def use_the_model(output: str) -> None:
    [rows] = re.findall(r"^150 rows, (\S+) of them right; classes: (.*)$", output, re.MULTILINE)
    assert float(rows[0]) > 0.8
    assert rows[1] == "setosa, versicolor, virginica"
    assert "refused: the table has no column 'petal width (cm)'" in output
    assert "# mlp trained with fedavg on " in output


CHECKS: dict[str, Callable[[str], None]] = {
    "01_first_run.py": first_run,
    "02_own_data.py": own_data,
    "03_own_model.py": own_model,
    "04_own_method.py": own_method,
    "05_own_partitioner.py": own_partitioner,
    "06_compare_seeds.py": compare_seeds,
    "08_read_a_run.py": read_a_run,
    "09_use_the_model.py": use_the_model,
}
QUICK = ()  # each takes seconds


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.thorough) for n in CHECKS])
def test_the_example_runs(name: str, tmp_path: Path) -> None:
    CHECKS[name](run(name, tmp_path))


@pytest.mark.thorough
def test_the_example_of_ray_gives_the_same_model(tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        assert "ray is not installed" in run("07_ray_tree.py", tmp_path)
        return
    output = run("07_ray_tree.py", tmp_path, own_network())
    assert "the same model, bit for bit: True" in output
    assert "local_train at " in output


def test_every_example_is_short_and_tested() -> None:
    scripts = sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert scripts == sorted([*CHECKS, "07_ray_tree.py"])
    assert [name for name in scripts if len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) >= 60] == []
