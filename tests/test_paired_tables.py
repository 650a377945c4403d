"""The paired differences under experiments/ are what their committed data say."""

from __future__ import annotations

import re
from pathlib import Path

import paired
import pytest

EXPERIMENTS = Path(__file__).resolve().parents[1] / "experiments"


FOLDERS = list(dict.fromkeys(source.folder for source in paired.SOURCES))


@pytest.mark.parametrize("folder", FOLDERS)
def test_committed_files_are_what_the_data_say(folder: str) -> None:
    for path, text in paired.texts(folder).items():
        assert path.read_text(encoding="utf-8") == text, f"run python experiments/paired.py {folder}"


@pytest.mark.parametrize("source", paired.SOURCES, ids=lambda source: f"{source.folder}/{source.data}")
def test_every_row_is_compared_and_every_seed_is_there(source: object) -> None:
    for view in source.views:  # type: ignore[attr-defined]
        values = paired.values_of(source, view)
        assert {tuple(sorted(cell)) for cell in values.values()} == {(0, 1, 2)}


def test_a_difference_by_hand() -> None:
    """Differences of 1, 2 and 3: mean 2, t(2) = 4.303, deviation 1, so half the width is 4.303 / √3 = 2.484."""
    text = paired.gap({0: 11.0, 1: 22.0, 2: 33.0}, {0: 10.0, 1: 20.0, 2: 30.0})
    assert text.replace("\u00a0", " ") == "+2.0 [−0.5, +4.5] (3:0)"
    sure = paired.gap({0: 12.0, 1: 22.0, 2: 32.1}, {0: 10.0, 1: 20.0, 2: 30.0})
    assert "*" in sure
    assert paired.gap({0: 1.0}, {0: 2.0}) == "–"
    assert "(1:1)" in paired.gap({0: 2.0, 1: 1.0, 2: 1.0}, {0: 1.0, 1: 1.0, 2: 2.0}), "a draw is neither won nor lost"


def test_a_table_keeps_what_does_not_follow_from_the_data() -> None:
    old = "# T\n\n| a |\n\n## Difference to A\n\nold\n\n## What the paper claims\n\n* old\n\n## Note\n\n* kept\n"
    new = "# U\n\n| b |\n\n## Difference to B\n\nnew\n\n## What the paper claims\n\n* new\n\n## Note\n\n* other\n"
    wanted = "# T\n\n| a |\n\n## Difference to B\n\nnew\n\n## What the paper claims\n\n* new\n\n## Note\n\n* kept\n"
    assert paired.renewed(old, new) == wanted
    assert paired.renewed(wanted, new) == wanted
    first = old.replace("\n\n## Difference to A\n\nold", "")  # as written before there were paired differences
    assert paired.renewed(first, new) == wanted


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*/*.md")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_verdict_rests_on_intervals_of_single_methods(path: Path) -> None:
    """Nor on the round that was best on the test set."""
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"intervals (?:do not )?overlap|intervals apart|best (?:test )?rounds?\b", text) == []
