"""`model.also`: further networks, by name or with options of their own."""

from __future__ import annotations

from typing import Any

import pytest

import headwater as hw
from headwater.config import Config
from headwater.config.json_schema import schema
from headwater.training.experiment import Experiment, prepare

PAIR = "model.also=['linear', {name = 'cnn', widths = [4, 6], hidden = 8}]"
SMALL = ["model.name=mlp", "data.fraction=0.1", "partition.clients=3", "partition.sectors=1"]


def experiment(*sets: str) -> Experiment:
    return prepare(Config.load("feddf", [*SMALL, *sets]))


def refused(*sets: str) -> str:
    with pytest.raises(hw.ConfigError) as caught:
        experiment(*sets)
    return str(caught.value)


def test_options_reach_their_network_alone() -> None:
    made = experiment(PAIR)
    assert [spec.name for spec in made.others] == ["linear", "cnn"]
    assert (list(made.others[1].options["widths"]), made.others[1].options["hidden"]) == ([4, 6], 8)
    usual = experiment("model.also=['linear', 'cnn']")
    assert made.others[1].count() < usual.others[1].count()
    assert made.others[0].count() == usual.others[0].count()


def test_the_resolved_configuration_comes_back(tmp_path: Any) -> None:
    resolved = experiment(PAIR).config
    again = Config.from_toml(resolved.to_toml())
    assert again == resolved
    assert again.model.also == ("linear", {"name": "cnn", "widths": [4, 6], "hidden": 8})
    file = tmp_path / "mine.toml"
    file.write_text('[[model.also]]\nname = "cnn"\nhidden = 8\n')
    assert Config.load(file).model.also == ({"name": "cnn", "hidden": 8},)


def test_in_python() -> None:
    also = ["linear", {"name": "cnn", "widths": (4, 6), "hidden": 8}]
    options: dict[str, Any] = {"fraction": 0.1, "clients": 3, "sectors": 1, "rounds": 1, "local__epochs": 1}
    run = hw.run("feddf", model="mlp", also=also, server__steps=1, progress=False, **options)
    assert {"linear_accuracy", "cnn_accuracy"} <= set(run.history[0])


def test_mistakes_are_told_in_a_sentence() -> None:
    assert "needs the name of its network" in refused("model.also=[{hidden = 8}]")
    assert "model 'cnn' has no option 'hiden'; did you mean 'hidden'?" in refused(
        "model.also=[{name = 'cnn', hiden = 8}]"
    )
    assert "model.also, cnn: hidden must be" in refused("model.also=[{name = 'cnn', hidden = 'x'}]")
    assert "got 'mlp'" in refused("model.also=[{name = 'mlp', hidden = [3]}]")
    assert refused("model.also=[3]").startswith(
        "model.also must be a list of networks: names, or tables of name and opt"
    )


def test_the_schema_takes_both() -> None:
    items = schema()["properties"]["model"]["properties"]["also"]["items"]
    assert [kind["type"] for kind in items["anyOf"]] == ["string", "object"]
