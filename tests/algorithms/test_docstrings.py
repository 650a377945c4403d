"""What a method's file says of itself is true: its stages, its cost, its moves, its example."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import toys
from headwater.algorithms import ALGORITHMS
from headwater.training.result import Run

METHODS = list(ALGORITHMS)
every_method = pytest.mark.parametrize("method", METHODS)
DATA = toys.tiny_data()


def run(method: str, **options: Any) -> Run:
    return toys.tiny_run(method, **({"arrays": DATA} | options))


WAY = re.compile(r"(server|sector|leader|client) → (server|sector|leader|client) (\w+)")
LINE = re.compile(r"^Moves (a round|before the first round)([^:\n]*): (.*?\.)$", re.MULTILINE | re.DOTALL)


def module_of(method: str) -> ModuleType:
    return importlib.import_module(ALGORITHMS[method].target.partition(":")[0])


def text_of(method: str) -> str:
    return inspect.cleandoc(module_of(method).__doc__ or "")


def moves_said(method: str) -> dict[tuple[str, str], set[tuple[str, str, str]]]:
    """{(purpose, variant): {(from, to, kind)}}. A variant's line gives all moves, or further ones after "also"."""
    found: dict[tuple[str, str], set[tuple[str, str, str]]] = {("train", ""): set(), ("setup", ""): set()}
    for when, variant, moves in LINE.findall(text_of(method)):
        purpose = "train" if when == "a round" else "setup"
        ways = {(a, b, kind) for a, b, kind in WAY.findall(" ".join(moves.split()))}
        assert ways, f"nothing understood in: {moves}"
        base = found[purpose, ""] if moves.startswith("also ") else set()
        found[purpose, " ".join(variant.split())] = base | ways
    return found


def moves_made(found: Run, purpose: str) -> set[tuple[str, str, str]]:
    rows = found.ledger.summary()["moves"]
    return {(row["from"], row["to"], row["kind"]) for row in rows if row["purpose"] == purpose}


# How to bring about each variant that a docstring speaks of.
VARIANTS: dict[tuple[str, str], dict[str, Any]] = {
    ("fedavg", "through sectors"): {"algorithm": {"through_sectors": True}},
    ("feddf", "by label counts"): {"server": {"weights": "labels", "mix": "probs"}},
    ("fedhead", "by label counts"): {"sector": {"weights": "labels"}},
    ("fedhead+", "by label counts"): {"sector": {"weights": "labels"}},
    ("fedeed", "through sectors"): {"algorithm": {"through_sectors": True}},
    ("fedeed", "by label counts"): {"server": {"weights": "labels", "mix": "probs"}},
    ("fed-ensemble", "through sectors"): {"algorithm": {"through_sectors": True}},
    ("frame", "with leaders"): {"algorithm": {"ensemble": "sector", "consolidate": "leaders"}},
    ("frame", "by label counts"): {"server": {"weights": "labels"}},
}


@every_method
def test_moves_are_as_written(method: str) -> None:
    """The ledger saw what "Moves a round:" and "Moves before the first round:" say, and nothing else."""
    said, made = moves_said(method), run(method)
    assert {variant for _, variant in said} - {""} == {variant for name, variant in VARIANTS if name == method}
    for purpose in ("train", "setup"):
        assert moves_made(made, purpose) == said[purpose, ""], purpose
    for purpose, variant in said:
        if variant:
            other = run(method, **VARIANTS[method, variant])
            assert moves_made(other, purpose) == said[purpose, variant], variant


@every_method
def test_docstring_has_its_parts(method: str) -> None:
    text, entry = text_of(method), ALGORITHMS[method]
    first = text.split("\n\n")[0]
    assert first.endswith("."), "it begins with a sentence"
    assert re.search(r"\b(19|20)\d\d\b", text) or "reference" in first or ": " in text.split("\n\n")[1], "a citation"
    assert "| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |" in text
    assert "Cost a round" in text
    assert "\nMoves " in text
    assert ">>> import headwater as hw" in text
    for stage in ("local", "teachers", "consolidation"):
        assert dict(entry.extra)[stage]
    assert entry.summary


@every_method
def test_stage_row_agrees_with_the_table_of_methods(method: str) -> None:
    """Where the docstring's row is for this method alone, it says what `headwater list` says of local training."""
    said = dict(ALGORITHMS[method].extra)
    assert f"| {said['local']} |" in text_of(method)


@pytest.mark.parametrize("module", sorted({entry.target.partition(":")[0] for entry in ALGORITHMS.values()}))
def test_docstring_example_runs(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0


@every_method
def test_file_is_short(method: str) -> None:
    lines = Path(inspect.getsourcefile(module_of(method)) or "").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 160
