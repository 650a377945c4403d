"""The picture of a partition."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from headwater.core.rng import stream
from headwater.partition.dirichlet import Dirichlet
from headwater.partition.figure import figure
from headwater.partition.partition import Partition

LABELS = np.array([0, 0, 1, 1])
APART = Partition((np.array([0, 1]), np.array([2, 3]), np.empty(0, np.int64)), (0, 1, 1))


@pytest.mark.parametrize(("clients", "sectors", "classes"), [(3, 1, 2), (20, 2, 10), (100, 4, 10), (6, 6, 40)])
def test_figure_has_ink_in_every_panel(tmp_path: Path, clients: int, sectors: int, classes: int) -> None:
    labels = np.tile(np.arange(classes), 60)
    parts = Dirichlet(alpha=1.0).split(labels, clients, stream(0))
    partition = Partition(tuple(parts), tuple(client * sectors // clients for client in range(clients)))
    path = figure(partition, labels, classes, tmp_path / "split.png")
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    blue = (np.abs(pixels - [0x1F, 0x6F, 0x8B]).sum(axis=2) < 30).sum()
    assert blue > 20 * sectors
    assert max(pixels.shape[:2]) < 4000


def test_figure_has_the_names_of_the_data(tmp_path: Path) -> None:
    """Letters with a meaning elsewhere are written as they are, and long names keep the end by which they differ."""
    names = ("$p_2$", "the clinic of the long valley 10", "東京")
    named = Partition(APART.indices, APART.sectors, names, ("north & <south>", "s" * 90))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = figure(named, LABELS, 2, tmp_path / "split.svg", ["cat", "a class of a long name"]).read_text(
            encoding="utf-8"
        )
    for told in ("$p_2$", "the clinic of…ley 10", "sector north &amp; &lt;south&gt;"):
        assert f"<!-- {told} -->" in text
    assert "s" * 60 not in text


def test_figure_can_be_svg_with_class_names(tmp_path: Path) -> None:
    path = figure(APART, LABELS, 2, tmp_path / "split.svg", ["cat", "dog"])
    text = path.read_text(encoding="utf-8")
    assert "<svg" in text
    assert "<!-- cat -->" in text
    assert "<!-- empty -->" in text
