"""Random changes of training images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import headwater as hw
from headwater.errors import ConfigError
from headwater.tasks.augment import augmented

SMALL: dict[str, Any] = {"clients": 3, "sectors": 1, "fraction": 0.2, "rounds": 1, "local__epochs": 1}


def images(count: int = 400, side: int = 8) -> torch.Tensor:
    return torch.arange(1, count * 2 * side * side + 1, dtype=torch.float32).view(count, 2, side, side)


def test_an_image_is_mirrored_or_left_as_it_is() -> None:
    x = images()
    found = augmented(x, "flip", np.random.default_rng(0))
    mirrored = torch.tensor([torch.equal(a, b.flip(2)) for a, b in zip(found, x, strict=True)])
    same = torch.tensor([torch.equal(a, b) for a, b in zip(found, x, strict=True)])
    assert (mirrored ^ same).all()
    assert 160 < mirrored.sum() < 240


def test_a_crop_moves_all_channels_alike_and_fills_with_zeros() -> None:
    x = images()
    found = augmented(x, "crop-flip", np.random.default_rng(0))
    moves = set()
    for image, before in zip(found, x, strict=True):
        padded = torch.nn.functional.pad(before, (1, 1, 1, 1))
        ways = [
            (down, right, mirrored)
            for down in range(3)
            for right in range(3)
            for mirrored in (False, True)
            if torch.equal(image.flip(2) if mirrored else image, padded[:, down : down + 8, right : right + 8])
        ]
        assert len(ways) == 1
        moves.add(ways[0])
    assert len(moves) == 18, "every move by at most an eighth of the side occurs"


def test_none_changes_and_draws_nothing() -> None:
    x, rng = images(3), np.random.default_rng(0)
    assert augmented(x, "none", rng) is x
    assert rng.random() == np.random.default_rng(0).random()


@pytest.mark.parametrize("model", [pytest.param("cnn", marks=pytest.mark.thorough), "mlp"])
def test_equal_bits_on_every_engine(model: str) -> None:
    options = SMALL | {"model": model, "local__augment": "crop-flip"}
    alone = hw.run("fedavg", **options, engine="inline", workers=2)
    pooled = hw.run("fedavg", **options, engine="pool", workers=2)
    plain = hw.run("fedavg", **options | {"local__augment": "none"})
    assert alone.result["model_sha256"] == pooled.result["model_sha256"] != plain.result["model_sha256"]
    assert alone.result["stacking"]["width"] == 1


def test_only_images_can_be_augmented() -> None:
    rows = np.random.default_rng(0).normal(size=(60, 5)).astype("float32")
    data = hw.Data(rows, np.arange(60) % 3, rows, np.arange(60) % 3)
    with pytest.raises(ConfigError, match=r"local.augment = 'flip' changes images .* shape \(5,\)"):
        hw.run("fedavg", data=data, clients=3, sectors=1, local__augment="flip")
