"""Methods of the user's own, from a file in the current directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.algorithms import ALGORITHMS
from headwater.algorithms.base import Method, as_method
from headwater.cli.app import main
from headwater.errors import ConfigError

FILE = '''
from dataclasses import dataclass

import pydantic

from headwater.algorithms.base import Method, MethodInfo, State
from headwater.algorithms.fedavg import FedAvg
from headwater.core.federation import CLIENTS, SERVER
from headwater.specs import LOCAL, STRICT, LocalSpec
from headwater.tasks.average import average
from headwater.tasks.local import local_train


class Steps:
    def init(self, fed, model):
        return State(model)

    def round(self, fed, state):
        start = fed.down(state.model, to=CLIENTS)
        trained = fed.run(local_train, at=CLIENTS, start=start, spec=self.local)
        return State(fed.run(average, at=SERVER, models=fed.up(trained, to=SERVER)))


@dataclass(frozen=True)
class Nova(Steps, Method):
    INFO = MethodInfo(name="nova", summary="toy", defaults={"local": {"optimizer": "sgd", "lr": 0.25}})
    local: LocalSpec = LOCAL
    strength: float = 1.0


@dataclass(frozen=True)
class Plain(Steps):  # inherits from nothing of Headwater
    local: LocalSpec = LOCAL
    mu: float = 0.5
    SUITS = {"local": {"optimizer": "sgd", "lr": 0.25}}
    NEEDS = ("features",)


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class Validated(Steps):
    local: LocalSpec = LOCAL

    @classmethod
    def suits(cls, options):
        return {"local": {"optimizer": "sgd", "lr": 0.25}}


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class Variant(FedAvg):
    """FedAvg with one more option."""

    strength: float = 1.0


class NoDataclass(Steps):
    pass
'''
SMALL = ("--rounds", "1", "--set", "partition.clients=4", "--set", "local.epochs=1", "--engine", "inline")
SMALL += ("--set", "data.fraction=0.2")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"mine_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(FILE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.parametrize("kind", ["Nova", "Plain", "Validated", "Variant"])
def test_every_kind_of_class_runs_as_fedavg_does(module: str, kind: str) -> None:
    options: dict[str, Any] = {"clients": 4, "rounds": 1, "engine": "inline", "local__epochs": 1, "fraction": 0.2}
    if kind == "Variant":
        options["strength"] = 0.5
    found = hw.run(f"{module}:{kind}", **options)
    sgd = {} if kind == "Variant" else {"local__optimizer": "sgd", "local__lr": 0.25}
    options.pop("strength", None)
    assert found.result["model_sha256"] == hw.run("fedavg", **options, **sgd).result["model_sha256"]


@pytest.mark.parametrize("kind", ["Nova", "Plain"])
def test_commands_take_it_as_their_argument(
    module: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = f"{module}:{kind}"
    assert main(["run", own, *SMALL, "--quiet", "--out", "run"]) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["algorithm"] == own
    assert main(["plan", own, *SMALL]) == 0
    assert main(["compare", own, "fedavg", *SMALL, "--quiet", "--out", "both"]) == 0
    assert "fedavg" in capsys.readouterr().out
    assert (tmp_path / "both" / own.replace(":", ".") / "seed-0" / "result.json").exists()


def test_a_class_that_does_not_inherit_gets_every_hook(module: str) -> None:
    kind = ALGORITHMS.load(f"{module}:Plain")
    assert issubclass(kind, Method)
    assert kind is ALGORITHMS.load(f"{module}:Plain"), "adapted once"
    assert kind.INFO.name == f"{module}:Plain"
    assert kind.INFO.features
    assert kind().likely_causes() == {"train": "local.lr = 0.1 and mu = 0.5", "distill": ""}
    assert kind().remarks([]) == ()
    assert ALGORITHMS.load(f"{module}:Variant").INFO.family == "averaging", "a variant inherits the description"
    assert ALGORITHMS.load(f"{module}:Variant").INFO.name == f"{module}:Variant"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{module}:NoDataclass", "is not a method; it must be a frozen dataclass"),
        ("{module}:State", "is not a method; it must be a frozen dataclass"),
        ("{module}:Missing", "could not be imported"),
        ("nothing_there:Nova", "could not be imported"),
    ],
)
def test_what_is_not_a_method_is_refused_with_a_sentence(
    module: str, source: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", source.format(module=module)]) == 2
    assert words in capsys.readouterr().err


def test_a_function_is_not_a_method() -> None:
    made: Callable[[], int] = lambda: 1  # noqa: E731
    with pytest.raises(ConfigError, match="is not a method"):
        as_method(made)
