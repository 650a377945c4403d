"""Tables under experiments/ that are made from committed data, to which seeds are added."""

from __future__ import annotations

import json
from pathlib import Path

import collect
import committed
import pytest

from headwater.papers import scales
from headwater.papers.table import PaperTable, load, parse
from headwater.papers.table_files import TableReport, markdown

EVIDENCE = Path(__file__).resolve().parents[1] / "experiments" / "evidence"
TABLE = """# A small one
preset = "demo"
[[row]]
name = "A"
[[row]]
name = "B"
[[column]]
name = "x"
[[column]]
name = "x, rounds"
metric = "rounds_to:50"
unit = ""
[[column]]
name = "y"
set = { partition = { alpha = 1.0 } }
rows = ["B"]
[[order]]
better = "B"
than = ["A"]
"""


@pytest.fixture
def table() -> PaperTable:
    return parse(TABLE, "small", ())


def lines(row: str, column: str, seed: int, *accuracies: float) -> list[committed.Line]:
    """A run, with its accuracy by round."""
    same = {"row": row, "column": column, "seed": str(seed)}
    return [same | {"round": str(at), "accuracy": str(value)} for at, value in enumerate(accuracies, 1)]


def test_a_run_serves_every_column_of_its_setting(table: PaperTable) -> None:
    data = lines("A", "x", 0, 0.2, 0.5, 0.6) + lines("B", "x", 0, 0.5, 0.4, 0.8) + lines("B", "y", 0, 0.1)
    entries = committed.results(table, data).entries
    assert {key: dict(entry.values) for key, entry in entries.items()} == {
        ("A", "x"): {0: 60.0},
        ("A", "x, rounds"): {0: 2.0},
        ("B", "x"): {0: 80.0},
        ("B", "x, rounds"): {0: 1.0},
        ("B", "y"): {0: 10.0},
    }


def test_a_seed_is_complete_when_every_place_has_it(table: PaperTable) -> None:
    data = [line for seed in (0, 1) for line in lines("A", "x", seed, 0.2) + lines("B", "x", seed, 0.3)]
    assert committed.complete(table, data) == set()
    assert committed.complete(table, data + lines("B", "y", 1, 0.1)) == {1}


def test_new_runs_replace_old_ones_and_others_stay(table: PaperTable) -> None:
    old = lines("B", "x", 1, 0.3) + lines("A", "x", 1, 0.1, 0.2) + lines("A", "x", 0, 0.4) + lines("gone", "x", 0, 0.9)
    new = lines("A", "x", 1, 0.7)
    both = committed.joined(table, old, new)
    assert [(line["row"], line["seed"], line["accuracy"]) for line in both] == [
        ("A", "0", "0.4"),
        ("A", "1", "0.7"),
        ("B", "1", "0.3"),
    ]


def test_models_that_were_not_made_anew_keep_their_origin(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    assert collect.earlier(path, {"A, x": {"0": "aa"}}) == ([], {})
    old = {
        "commit": "second",
        "earlier": [{"commit": "first"}],
        "model_sha256": {"A, x": {"0": "aa", "1": "bb"}, "B, x": {"0": "cc"}},
    }
    path.write_text(json.dumps(old), encoding="utf-8")
    both = [{"commit": "first"}, {"commit": "second"}]
    assert collect.earlier(path, {"A, x": {"1": "new", "2": "new"}}) == (
        both,
        {"A, x": {"0": "aa"}, "B, x": {"0": "cc"}},
    )
    assert collect.earlier(path, {"A, x": {"0": "x", "1": "y"}, "B, x": {"0": "z"}}) == ([], {})


@pytest.mark.parametrize("data", sorted(EVIDENCE.glob("*_obtained.csv")), ids=lambda path: path.stem)
def test_committed_tables_are_what_their_data_say(data: Path) -> None:
    file = EVIDENCE / f"{data.stem.removesuffix('_obtained')}.toml"
    if not file.is_file():
        pytest.skip("no table of a paper")
    found = committed.results(load(str(file), scales.names()), committed.read(data))
    assert file.with_suffix(".md").read_text(encoding="utf-8") == markdown(TableReport.of(found))


def test_the_page_of_all_tables_is_what_the_data_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EVIDENCE))
    import verdicts

    assert (EVIDENCE / "results.md").read_text(encoding="utf-8") == verdicts.page(), "run verdicts.py"


def test_one_seed_has_a_difference_and_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EVIDENCE))
    import verdicts

    assert verdicts.beside({0: 50.0, 1: 60.0}, {1: 61.5}) == "−1.5"
    assert verdicts.beside({0: 50.0, 1: 60.0}, {}) == "–"
