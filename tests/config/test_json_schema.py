"""The JSON schema accepts what the configuration accepts, and refuses what an editor should underline."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from headwater import presets
from headwater.config import Config, catalog
from headwater.config.json_schema import schema


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    made = schema()
    Draft202012Validator.check_schema(made)
    return Draft202012Validator(made)


def problems(validator: Draft202012Validator, tree: dict[str, Any]) -> list[str]:
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in validator.iter_errors(tree)]


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_is_valid(validator: Draft202012Validator, name: str) -> None:
    assert problems(validator, tomllib.loads(presets.text(name))) == []


@pytest.mark.parametrize("method", catalog.methods())
def test_a_whole_configuration_is_valid(validator: Draft202012Validator, method: str) -> None:
    assert problems(validator, tomllib.loads(Config.load(method).to_toml())) == []


@pytest.mark.parametrize(
    "text",
    [
        'extends = "fedhead/table2"\n[algorithm]\nleader = "fixed"',  # the method is that of the preset
        'data.name = "mine.csv"\ndata.test = "test.csv"',
        'data.name = "mine:rows"\ndata.anything = 3',
        'model.name = "nets:Small"\nmodel.depth = 3',
        'algorithm.name = "mine:Nova"\nalgorithm.rho = 0.9',
        'server.patience = "none"\nserver.lr = 1',
    ],
)
def test_what_a_user_may_write_is_valid(validator: Draft202012Validator, text: str) -> None:
    assert problems(validator, tomllib.loads(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "round = 3",
        "rounds = 0",
        'rounds = "ten"',
        "[locale]\nlr = 0.1",
        "local.learning_rate = 0.1",
        "local.lr = -1",
        'local.optimizer = "sdg"',
        'algorithm.name = "fedhed"',
        'algorithm.name = "fedavg"\nalgorithm.leader = "fixed"',
        'algorithm.name = "fedhead"\nalgorithm.leader = "first"',
        'algorithm.leaders = "fixed"',
        'partition.scheme = "iid"\npartition.alpha = 0.1',
        'server.temperature = "none"',
    ],
)
def test_mistakes_are_underlined(validator: Draft202012Validator, text: str) -> None:
    assert problems(validator, tomllib.loads(text))


def test_an_editor_has_something_to_show(validator: Draft202012Validator) -> None:
    sections = validator.schema["properties"]
    assert sections["local"]["properties"]["lr"]["description"].startswith("learning rate;")
    assert "0.001 (Adam)" in sections["local"]["properties"]["lr"]["description"]
    assert "default" not in sections["local"]["properties"]["lr"]  # it depends on the optimiser
    assert sections["rounds"]["default"] == 20
    assert "fedhead+" in sections["algorithm"]["properties"]["name"]["anyOf"][0]["enum"]
    assert "fedprox" in sections["algorithm"]["properties"]["mu"]["description"]
