"""Figures: the numbers behind them, the models behind the boundaries, and that there is something on them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from headwater.config import Config
from headwater.core.params import digest
from headwater.errors import ConfigError
from headwater.papers import pictures
from headwater.papers.pictures import (
    FusionRound,
    bars,
    before_after,
    boundaries,
    curves,
    fusion,
    fusion_round,
    over_seeds,
)
from headwater.report import style
from headwater.training.experiment import prepare
from headwater.training.loop import train

TOY = Config.load("feddf/fig1", engine__name="inline")


def history(*accuracies: float, before: float = 0.0) -> list[dict[str, Any]]:
    return [{"round": at, "accuracy": a, "average_accuracy": a - before} for at, a in enumerate(accuracies, 1)]


@cache
def parts() -> FusionRound:
    return fusion_round(prepare(TOY))


def colours(path: Path) -> dict[tuple[int, ...], int]:
    """How many pixels have which colour."""
    pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3).astype(np.int64) @ (65536, 256, 1)
    found, counts = np.unique(pixels, return_counts=True)
    return {tuple(int(f).to_bytes(3)): int(count) for f, count in zip(found, counts, strict=True)}


def ink(slot: int) -> tuple[int, ...]:
    return tuple(bytes.fromhex(style.LIGHT.colours[slot][1:]))


# -- boundaries


@pytest.mark.thorough
def test_the_models_are_those_of_the_run() -> None:
    """To the bit: the fused model has the check-sum of a run's, and the accuracies are those of its row."""
    run, right = train(prepare(TOY)), parts().accuracy
    assert digest(parts().fused.named()) == run.result["model_sha256"]
    row = run.history[-1]
    assert right["fused"] == row["accuracy"]
    assert right["average"] == row["average_accuracy"]
    assert right["ensemble"] == row["ensemble_accuracy"]


def test_fusion_moves_the_boundary_from_the_average_to_the_ensemble() -> None:
    """What figure 1 is about, measured: averaging loses a class that each local model knows or the other does not."""
    assert list(parts().panels) == ["local model 1", "local model 2", "average", "ensemble", "fused"]
    right = parts().accuracy
    assert right["local model 1"] < 0.7
    assert right["local model 2"] < 0.7
    assert right["average"] < 0.85
    assert right["fused"] > 0.95
    assert abs(right["fused"] - right["ensemble"]) < 0.01
    grid = torch.cartesian_prod(*[torch.linspace(-3, 3, 40)] * 2)
    said = {name: panel(grid).argmax(1) for name, panel in parts().panels.items()}
    assert float((said["fused"] == said["ensemble"]).double().mean()) > 0.95
    assert float((said["average"] == said["ensemble"]).double().mean()) < 0.85


@pytest.mark.thorough
def test_another_seed_another_picture() -> None:
    other = fusion_round(prepare(TOY.merged({"seed": 1})))
    assert other.accuracy["fused"] > other.accuracy["average"]
    assert digest(other.fused.named()) != digest(parts().fused.named())


@pytest.mark.thorough
def test_probabilities_are_drawn_as_colours(tmp_path: Path) -> None:
    """At the corners of the triangle the fused model is sure, so its panel has the three colours, made lighter."""
    found = colours(boundaries(TOY, tmp_path / "toy.png"))
    for slot in range(3):
        light = np.array([0.35 * 255 + 0.65 * part for part in ink(slot)])
        near = np.abs(light - np.array(list(found))).max(axis=1) < 8
        assert np.array(list(found.values()))[near].sum() > 20_000


@pytest.mark.parametrize(
    "changes", [{"data": {"name": "digits", "reference": "holdout"}}, {"algorithm": {"name": "fedavg"}}]
)
def test_only_of_feddf_in_the_plane(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="decision boundaries are drawn of feddf"):
        fusion_round(prepare(TOY.merged(changes)))


# -- curves, bars, before and after


def test_over_seeds_by_hand() -> None:
    """Round 2 was not evaluated in the second run, and round 3 in neither."""
    runs = [history(0.2, 0.4), [{"round": 1, "accuracy": 0.3}, {"round": 2, "accuracy": None}]]
    assert over_seeds(runs, "accuracy") == [(1, 25.0, 20.0, 30.0), (2, 40.0, 40.0, 40.0)]
    assert over_seeds(runs, "ensemble_accuracy") == []


def test_a_row_keeps_its_colour_in_every_panel(tmp_path: Path) -> None:
    """The second panel has only the second row, in the second colour."""
    both = {"FedAvg": [history(0.2, 0.3)], "FedDF": [history(0.2, 0.5)]}
    whole = colours(curves({"one": both, "two": {"FedDF": both["FedDF"]}}, tmp_path / "two.png"))
    single = colours(curves({"one": both}, tmp_path / "one.png"))
    assert whole[ink(1)] > 1.3 * single[ink(1)]
    assert whole[ink(0)] < 1.3 * single[ink(0)]


@pytest.mark.parametrize("panels", [1, 2])
def test_long_names_stay_on_the_picture(panels: int, tmp_path: Path) -> None:
    rows = {f"a method with a long name, number {n}": [history(0.2, 0.3 + n / 10)] for n in range(5)}
    drawn = Image.open(curves({f"alpha {n}": rows for n in range(panels)}, tmp_path / "long.png")).convert("L")
    edges = np.asarray(drawn)[:, [0, 1, 2, -3, -2, -1]]
    assert edges.min() == edges.max()


def test_bars_are_as_high_as_the_last_round(tmp_path: Path) -> None:
    """20 % and 60 %: three times as many pixels, whatever came before the last round."""
    cells = {"CIFAR-10": {"noise": [history(0.9, 0.2)], "images": [history(0.1, 0.6)]}}
    found = colours(bars(cells, tmp_path / "bars.png"))
    assert found[ink(1)] / found[ink(0)] == pytest.approx(3, rel=0.05)


def test_columns_that_show_the_same_runs_are_one_panel(tmp_path: Path) -> None:
    runs = {"20 epochs": [history(0.4, 0.6, before=0.1)]}
    other = {"20 epochs": [history(0.3, 0.5, before=0.2)]}
    twice = {"alpha 1, before": runs, "alpha 1, after": runs, "alpha 0.1, before": other, "alpha 0.1, after": other}
    assert list(pictures._merged(twice)) == ["alpha 1", "alpha 0.1"]
    one, two = (
        before_after(cells, tmp_path / "x.png") and colours(tmp_path / "x.png")
        for cells in ({"alpha 1, before": runs, "alpha 1, after": runs}, twice)
    )
    assert sum(two.values()) > 1.9 * sum(one.values())
    assert {ink(0), ink(1), tuple(bytes.fromhex(style.LIGHT.grid[1:]))} <= set(one)


def test_methods_in_one_panel_and_fusion_in_the_next(tmp_path: Path) -> None:
    """A column alone is a panel of all methods; two columns of the same runs are a panel of before and after."""
    taught = {"FedDF": [history(0.4, 0.6, before=0.1)]}
    cells = {"a: all": taught | {"FedAvg": [history(0.3, 0.4)]}, "b: all, before": taught, "b: all, after": taught}
    both, alone = (
        colours(fusion(cells, tmp_path / "x.png")),
        colours(fusion({"a: all": cells["a: all"]}, tmp_path / "y.png")),
    )
    assert {ink(0), ink(1)} <= set(alone)
    assert both[ink(1)] > 1.5 * alone[ink(1)]  # the fused model's curve in the second panel


def test_before_and_after_need_both(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no accuracy before fusion; set algorithm\.before_fusion = true"):
        before_after({"alpha 1": {"20 epochs": [[{"round": 1, "accuracy": 0.5}]]}}, tmp_path / "x.png")


def test_nothing_finished_yet(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing to draw for x\.png"):
        curves({}, tmp_path / "x.png")
