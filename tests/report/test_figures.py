"""PNG files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from chosen import further
from headwater.core.rng import stream
from headwater.partition.dirichlet import Dirichlet
from headwater.partition.partition import Partition, pack
from headwater.report import figures, style
from headwater.report.runs import find, read


def colours(path):
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"), dtype=np.uint32)
    packed = np.unique(pixels[..., 0] << 16 | pixels[..., 1] << 8 | pixels[..., 2])
    return {f"#{value:06x}" for value in packed}


def test_every_method_has_its_colour(comparison, tmp_path):
    path = figures.curves(find(comparison(tmp_path / "runs")), tmp_path / "curves.png")
    with Image.open(path) as picture:
        assert picture.width > 1400
    assert set(style.LIGHT.colours[:4]) <= colours(path)
    assert not set(style.LIGHT.colours[4:]) & colours(path)


@pytest.mark.parametrize("name", ["stopped", "unmeasured", "one round", "nothing sent", "thrifty"])
def test_odd_runs_are_drawn_too(fake, tmp_path, name):
    fake(label="a $5 <b> $method", method="a").write(tmp_path / "runs" / "a")
    odd = {
        "stopped": fake(seed=1, stop=2, method="a"),
        "unmeasured": fake(stop=2, every=5, method="b"),
        "one round": fake(rounds=1, method="b"),
        "nothing sent": fake(model_bytes=0, method="b"),
        "thrifty": fake(model_bytes=10, method="b"),
    }
    odd[name].write(tmp_path / "runs" / "b")
    path = figures.curves(find(tmp_path / "runs"), tmp_path / "curves.png")
    assert style.LIGHT.colours[0] in colours(path)


def test_no_measurements_at_all(fake, tmp_path):
    path = figures.curves([read(fake(stop=1, every=2).write(tmp_path / "a"))], tmp_path / "curves.png")
    assert style.LIGHT.colours[0] not in colours(path)


def test_the_split_is_drawn_from_its_counts(fake, tmp_path):
    path = figures.split(read(fake().write(tmp_path / "a")), tmp_path / "split.png")
    assert len(colours(path)) > 10
    run = read(fake(stop=1).write(tmp_path / "b"))
    run.partition.pop("counts")
    assert figures.split(run, tmp_path / "none.png") is None
    assert not (tmp_path / "none.png").exists()


@pytest.mark.thorough
def test_of_a_population_the_first_clients_are_drawn(fake, tmp_path):
    run = read(fake(clients=230, sectors=2).write(tmp_path / "a"))
    told = run.partition | {"rule": {"clients": 5000}, "sectors": pack(run.partition["sectors"] + [0] * 4770)}
    heights = {}
    for name, partition in (("all", run.partition), ("some", told)):
        with Image.open(figures.split(replace(run, partition=partition), tmp_path / "split.png")) as picture:
            heights[name] = picture.height
    assert 0.8 < heights["some"] / heights["all"] < 0.95  # 200 rows in place of 230


LABELS = np.array([0, 0, 1, 1])
APART = Partition((np.array([0, 1]), np.array([2, 3]), np.empty(0, np.int64)), (0, 1, 1))


SPLITS = [(20, 2, 10), further(3, 1, 2), further(100, 4, 10), further(6, 6, 40)]


@pytest.mark.parametrize(("clients", "sectors", "classes"), SPLITS)
def test_a_partition_has_ink_in_every_panel(tmp_path, clients, sectors, classes):
    labels = np.tile(np.arange(classes), 60)
    parts = Dirichlet(alpha=1.0).split(labels, clients, stream(0))
    partition = Partition(tuple(parts), tuple(client * sectors // clients for client in range(clients)))
    path = figures.partition(partition, labels, classes, tmp_path / "split.png")
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    ink = [int(style.LIGHT.dots[at : at + 2], 16) for at in (1, 3, 5)]
    assert (np.abs(pixels - ink).sum(axis=2) < 30).sum() > 20 * sectors
    assert max(pixels.shape[:2]) < 4000


def test_a_partition_has_the_names_of_the_data(tmp_path):
    """Letters with a meaning elsewhere are written as they are, and long names keep the end by which they differ."""
    names = ("$p_2$", "the clinic of the long valley 10", "東京")
    named = Partition(APART.indices, APART.sectors, names, ("north & <south>", "s" * 90))
    text = figures.partition(named, LABELS, 2, tmp_path / "split.svg", ["cat", "a class of a long name"]).read_text(
        encoding="utf-8"
    )
    for name in ("$p_2$", "the clinic of…ley 10", "sector north &amp; &lt;south&gt;", "cat", "empty"):
        assert f">{name}<" in text
    assert "s" * 60 not in text
    assert figures.partition(APART, LABELS, 2, tmp_path / "split.pdf").read_bytes().startswith(b"%PDF")
