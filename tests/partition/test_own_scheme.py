"""A scheme of the user's own, named as package.module:Name, wherever a listed one is accepted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from headwater.cli.app import main
from headwater.config import Config
from headwater.errors import ConfigError
from headwater.partition import PARTITIONS
from headwater.training.experiment import prepare
from partition.contract import check_partitioner

MODULE = '''
from dataclasses import dataclass

import numpy as np
from headwater.partition.base import Partitioner, check


@dataclass(frozen=True)
class Stripes(Partitioner):
    width: int = 10

    def split(self, labels, clients, rng):
        stripe = np.arange(len(check(labels, clients))) // self.width
        return [np.flatnonzero(stripe % clients == client) for client in range(clients)]


@dataclass(frozen=True)
class Duck:
    """Inherits from nothing, and looks at sectors."""

    def split(self, labels, clients, rng):
        return self.split_tree(labels, (0,) * clients, rng)

    def split_tree(self, labels, sector_of, rng):
        return Stripes(width=1 + max(sector_of)).split(labels, len(sector_of), rng)


def not_a_class():
    return None
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that lies in the current directory."""
    (tmp_path / "own_split.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_split", raising=False)
    return "own_split"


def config(*sets: str) -> Config:
    return Config.load("fedavg", ["partition.clients=6", *sets])


def test_it_is_used_with_its_options(mine: str) -> None:
    for width in (10, 25):
        made = prepare(config(f"partition.scheme={mine}:Stripes", f"partition.width={width}"))
        stripe = np.arange(len(made.split.train)) // width
        assert np.array_equal(made.partition.indices[2], np.flatnonzero(stripe % 6 == 2))
        assert made.config.partition.options == {"width": width}
        again = prepare(Config.from_toml(made.config.to_toml()))
        assert again.partition == made.partition


def test_one_that_inherits_from_nothing_has_the_defaults_of_every_hook(mine: str) -> None:
    made = prepare(config(f"partition.scheme={mine}:Duck", "partition.sectors=3", "partition.assign=blocks"))
    stripe = np.arange(len(made.split.train)) // 3  # sectors are known before samples are distributed
    assert np.array_equal(made.partition.indices[0], np.flatnonzero(stripe % 6 == 0))
    with pytest.raises(ConfigError, match="'balanced' looks at what clients hold"):
        config(f"partition.scheme={mine}:Duck", "partition.assign=balanced")


def test_it_keeps_the_contract_of_listed_ones(mine: str) -> None:
    check_partitioner(PARTITIONS.load(f"{mine}:Stripes"), {"width": 3}, complete=True)


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        (["Stripes", "partition.widht=3"], r"no setting called 'partition\.widht'; did you mean 'partition\.width'"),
        (["Stripes", "partition.width=wide"], r"partition\.width must be a whole number, got 'wide'"),
        (["Stripe"], r"partition\.scheme: 'own_split:Stripe' could not be imported"),
        (["not_a_class"], r"partition\.scheme: 'own_split:not_a_class' is not a partition scheme"),
    ],
)
def test_mistakes_are_named_as_for_listed_ones(mine: str, sets: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        config(f"partition.scheme={mine}:{sets[0]}", *sets[1:])


def test_the_command_shows_it(mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["partition", "--set", f"partition.scheme={mine}:Stripes", "--set", "partition.clients=4"]
    assert main([*arguments, "--out", str(tmp_path / "out"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["clients"]) == 4
