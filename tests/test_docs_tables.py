"""Everything that is written by tools/docs_tables.py is up to date and complete."""

from __future__ import annotations

import sys

import pytest

import docs_tables
from headwater.config import catalog
from headwater.config.reference import arguments_of


def test_nothing_is_out_of_date() -> None:
    for name, text in docs_tables.outputs().items():
        assert (docs_tables.ROOT / name).read_text(encoding="utf-8") == text, f"{name}: run `make docs-tables`"


def test_check_ends_with_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["docs_tables.py", "--check"])
    monkeypatch.setattr(docs_tables, "outputs", lambda: {"README.md": "another text"})
    assert docs_tables.main() == 1
    assert capsys.readouterr().out.startswith("out of date: README.md; run `python tools/docs_tables.py`")


@pytest.mark.parametrize("section", catalog.ORDER)
def test_every_key_of_a_section_is_explained(section: str) -> None:
    kind = catalog.STAGES.get(section) or catalog.SECTIONS.get(section)
    if kind is not None:
        assert set(arguments_of(kind)) == set(catalog.common(section))


def test_arguments_are_read_from_docstrings() -> None:
    def function(one: int, two: int) -> None:
        """Summary.

        Args:
            one: the first: with a colon,
                and a second line.
            two: the second.
            three, four: two at once.

        Returns:
            three: nothing.
        """

    assert arguments_of(function) == {
        "one": "the first: with a colon, and a second line.",
        "two": "the second.",
        "three": "two at once.",
        "four": "two at once.",
    }
