"""PNG files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from headwater.partition.partition import pack
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
        assert picture.size == (1650, 660)
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


def test_of_a_population_the_first_clients_are_drawn(fake, tmp_path):
    run = read(fake(clients=230, sectors=2).write(tmp_path / "a"))
    told = run.partition | {"rule": {"clients": 5000}, "sectors": pack(run.partition["sectors"] + [0] * 4770)}
    heights = {}
    for name, partition in (("all", run.partition), ("some", told)):
        with Image.open(figures.split(replace(run, partition=partition), tmp_path / "split.png")) as picture:
            heights[name] = picture.height
    assert 0.8 < heights["some"] / heights["all"] < 0.95  # 200 rows in place of 230
    far = told | {"sectors": [5] * 230}  # nobody of the sectors before is among the first
    assert figures.split(replace(run, partition=far), tmp_path / "none.png") is None
