"""What a method says about itself is true and complete: its options, its moves, its cost, its example."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import chosen
import headwater as hw
import toys
from headwater.algorithms import ALGORITHMS, BEFORE, ROUND
from headwater.algorithms.base import Method
from headwater.config.reference import arguments_of
from headwater.registry import load
from headwater.theory.communication import FORMULAS
from headwater.training.result import Run

METHODS = list(ALGORITHMS)
every_method = pytest.mark.parametrize("method", METHODS)
DATA = toys.tiny_data()
MOVE = re.compile(r"(server|sector|leader|client) → (server|sector|leader|client) (\w+)")
Moves = set[tuple[str, str, str]]


def run(method: str, **options: Any) -> Run:
    return toys.tiny_run(method, **({"arrays": DATA} | options))


def moves_said(method: str) -> dict[tuple[str, str], Moves]:
    """{(purpose, variant): moves}. A variant's entry gives all moves, or further ones after "also"."""
    found: dict[tuple[str, str], Moves] = {("train", ""): set(), ("setup", ""): set()}
    for when, text in ALGORITHMS[method].info.moves.items():
        start = ROUND if when.startswith(ROUND) else BEFORE
        assert when.startswith(start), f"{when!r} is neither {ROUND!r} nor {BEFORE!r}"
        purpose = "train" if start == ROUND else "setup"
        assert "; ".join(f"{a} → {b} {kind}" for a, b, kind in MOVE.findall(text)) == text.removeprefix("also ")
        also = found[purpose, ""] if text.startswith("also ") else set()
        found[purpose, when.removeprefix(start).strip()] = also | {*MOVE.findall(text)}
    return found


def moves_made(found: Run, purpose: str) -> Moves:
    rows = found.ledger.summary()["moves"]
    return {(row["from"], row["to"], row["kind"]) for row in rows if row["purpose"] == purpose}


# The settings of each variant that a description mentions.
VARIANTS: dict[str, dict[str, Any]] = {
    "through sectors": {"algorithm": {"through_sectors": True}},
    "by label counts": {"server": {"weights": "labels", "mix": "probs"}, "sector": {"weights": "labels"}},
    "with leaders": {"algorithm": {"ensemble": "sector", "consolidate": "leaders"}},
}
VARIANTS_OF: dict[tuple[str, str], dict[str, Any]] = {
    ("frame", "through sectors"): {"algorithm": {"through_sectors": True, "ensemble": "aggregated", "cohorts": 2}},
    ("fedhead+", "by label counts"): {"sector": {"weights": "labels"}},  # their sums would go to the server too
}


@pytest.mark.parametrize("method", chosen.methods())
def test_moves_are_as_described(method: str) -> None:
    """The ledger saw the moves of `INFO.moves` and no others."""
    said, made = moves_said(method), run(method)
    for purpose in ("train", "setup"):
        assert moves_made(made, purpose) == said[purpose, ""], purpose
    for purpose, variant in said:
        if variant:
            other = run(method, **VARIANTS_OF.get((method, variant), VARIANTS[variant]))
            assert moves_made(other, purpose) == said[purpose, variant], variant


@every_method
def test_every_option_is_explained(method: str) -> None:
    """Each field, and nothing else, has a line in `Args:`, of the class itself or of one that it extends."""
    kind = ALGORITHMS.load(method)
    told = arguments_of(kind)
    assert list(told) == [field.name for field in dataclasses.fields(kind)]
    assert all(text and text.endswith(".") for text in told.values())


@every_method
def test_docstring_has_its_parts(method: str) -> None:
    kind, info = ALGORITHMS.load(method), ALGORITHMS[method].info
    text = inspect.getdoc(kind)
    assert text
    assert text.split("\n\n")[0].endswith("."), "it begins with a sentence"
    assert inspect.getdoc(kind) != inspect.getdoc(kind.__base__), "it has its own"
    cited = re.search(r"\b(19|20)\d\d\b", text) or re.search(r"`Fed\w+`|Not from a paper|FedHEAD\+\)", text)
    assert cited, "a citation, or the class that has it"
    assert all(info.stages)
    assert info.summary
    assert info.models
    assert {"server", "host", "client"} <= set(info.sees) <= {"server", "host", "client", "leader"}


@every_method
def test_the_class_has_the_description_that_was_read_from_its_file(method: str) -> None:
    assert ALGORITHMS[method].info == ALGORITHMS.load(method).INFO


@pytest.mark.parametrize("method", [method for method in METHODS if method in FORMULAS])
def test_cost_is_that_of_the_closed_form(method: str) -> None:
    assert ALGORITHMS[method].info.models == FORMULAS[method].models


FILES = sorted({part.target.partition(":")[0] for part in ALGORITHMS.values()})
SHOWN = ("headwater.algorithms.fedavg", "headwater.algorithms.fedhead")


@pytest.mark.parametrize("module", [f if f in SHOWN else pytest.param(f, marks=pytest.mark.thorough) for f in FILES])
def test_docstring_example_runs(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_example_of_the_base_class_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A complete method in about fifteen lines, from a file of the user's own."""
    code = inspect.cleandoc(Method.__doc__ or "").partition("::\n")[2]
    (tmp_path / "mine_plain.py").write_text(textwrap.dedent(code), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    plain, fedavg = (
        hw.run(name, data=DATA, clients=4, rounds=2, engine="inline", local__epochs=1, **options)
        for name, options in (("mine_plain:Plain", {}), ("fedavg", {"by": "uniform"}))
    )
    assert plain.result["algorithm"] == "mine_plain:Plain"
    assert plain.result["model_sha256"] == fedavg.result["model_sha256"]


@every_method
def test_file_is_short(method: str) -> None:
    module = importlib.import_module(ALGORITHMS[method].target.partition(":")[0])
    lines = Path(inspect.getsourcefile(module) or "").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 300  # with the tasks that only this method runs
    assert len(inspect.getsource(load(ALGORITHMS[method].target)).splitlines()) <= 190  # the listing itself
