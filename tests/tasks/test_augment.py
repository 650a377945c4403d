"""Random changes of training images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import headwater as hw
from headwater.config import Config
from headwater.errors import ConfigError
from headwater.planning.rehearsal import rehearse
from headwater.specs import DistillSpec
from headwater.tasks.augment import augmented
from headwater.tasks.distill import distill
from headwater.tasks.ensemble import ensemble
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.optimizers import batches
from headwater.tasks.task import TaskContext
from headwater.training.experiment import prepare

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


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["cnn", "mlp"])
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


# -- of the images that are distilled on

STAGES: dict[str, Any] = {"server__epochs": 2, "server__restore": "last", "model": "cnn", "validation": 20}
LEADERS: dict[str, Any] = {"sector__epochs": 1, "sector__restore": "last"}


@pytest.mark.parametrize("options", [{"mix": "logits", "temperature": 2.0}, {"weights": "confidence"}], ids=str)
def test_teachers_see_what_the_student_sees(options: dict[str, Any]) -> None:
    """By hand: the steps of a student on changed images, with targets of the same changed images."""
    spec = DistillSpec(epochs=2, batch=4, optimizer="sgd", lr=0.1, augment="crop-flip", **options)
    run = prepare(
        Config(data={"name": "digits", "fraction": 0.1, "reference_size": 10}, model={"name": "cnn"})
    ).context()
    student, *teachers = (run.initial("cnn", number) for number in range(1, 4))
    named = {f"t{at}": replace(teacher, weight=at + 1.0) for at, teacher in enumerate(teachers)}
    ctx = TaskContext(run, "server", ("key",))
    found = distill(ctx, start=student, teachers=named, spec=spec)
    again = TaskContext(run, "server", ("key",))
    net, judge = FlatModule(run.models["cnn"], "cnn").load(student), FlatModule(run.models["cnn"], "cnn")
    for batch in batches(10, spec, again.rng):
        x = augmented(again.inputs[batch], "crop-flip", again.augment_rng)
        outputs = {name: judge.load(teacher).outputs(x).clone() for name, teacher in named.items()}
        kinds = {key: value for key, value in options.items() if key != "temperature"}
        target = ensemble(again, named, x, outputs, temperature=spec.temperature, **kinds)
        net.train(len(batch))
        net.grad.zero_()
        target.loss(torch.arange(len(batch)), net(x), spec.temperature).backward()
        with torch.no_grad():
            net.flat -= spec.lr * net.grad
    torch.testing.assert_close(found.vector, net.vector, rtol=1e-4, atol=1e-6)
    assert not torch.equal(found.vector, distill(ctx, student, named, replace(spec, augment="none")).vector)


@pytest.mark.parametrize("engine", [None, pytest.param("pool", marks=pytest.mark.thorough)])
def test_a_run_distils_on_changed_images(engine: str | None) -> None:
    options = SMALL | STAGES | LEADERS | {"workers": 2, "sector__augment": "flip", "server__augment": "crop-flip"}
    alone = hw.run("fedhead+", engine="inline", **options)
    if engine is None:
        other = hw.run("fedhead+", engine="inline", **options | {"server__augment": "none"})
        assert alone.result["model_sha256"] != other.result["model_sha256"]
    else:
        other = hw.run("fedhead+", engine=engine, **options)
        assert alone.result["model_sha256"] == other.result["model_sha256"]


def test_a_plan_counts_that_teachers_are_asked_in_every_epoch() -> None:
    asked = {}
    for way in ("none", "flip"):
        stages = {"local": {"epochs": 1}, "server": {"epochs": 3, "augment": way}}
        tables = {"data": {"validation": 20, "reference_size": 30}, "partition": {"clients": 4, "sectors": 1}, **stages}
        rehearsed = rehearse(prepare(Config(rounds=1, algorithm={"name": "feddf"}, **tables)))
        assert rehearsed is not None
        asked[way] = sum(work.cost.asked for work in rehearsed.works)
    assert asked == {"none": 4 * (30 + 20), "flip": 4 * (3 * 30 + 20)}


def test_only_images_can_be_distilled_on_changed() -> None:
    rows = np.random.default_rng(0).normal(size=(60, 5)).astype("float32")
    data = hw.Data(rows, np.arange(60) % 3, rows, np.arange(60) % 3)
    with pytest.raises(ConfigError, match=r"sector.augment = 'flip' changes images"):
        hw.run("fedhead", data=data, clients=3, sectors=1, sector__augment="flip")
