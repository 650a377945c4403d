"""Defaults with which methods learn, judged on the validation set."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.config import Config
from headwater.training.experiment import prepare
from headwater.training.loop import train
from headwater.training.remarks import guess_limit


def test_scaffold_clips_unless_it_is_told_not_to() -> None:
    small = {"partition__clients": 3}
    assert prepare(Config.load("scaffold", [], **small)).config.local["clip"] == 1.0
    assert prepare(Config.load("scaffold", ["local.clip=none"], **small)).config.local["clip"] is None
    assert prepare(Config.load("frame", ["algorithm.local=scaffold"], **small)).config.local["clip"] == 1.0


@pytest.mark.thorough
def test_scaffold_leaves_a_guess_on_few_images_with_skewed_clients(real_data: Path) -> None:
    """Without clipping it is still at a guess after ten rounds."""
    sets = ["data.name=fashion_mnist", "data.fraction=0.02", "data.test_fraction=0.02", f"data.dir={real_data}"]
    made = prepare(Config.load("scaffold", [*sets, "partition.clients=8"], rounds=2, engine__name="inline"))
    rows = train(made).history
    assert rows[-1]["validation_accuracy"] > guess_limit(made.split.validation.y, made.split.classes)
