"""tools/house.py counts what it says, on files that can be counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import house
from headwater.errors import ConfigError, HeadwaterError

TEXT = '''"""Two lines
of docstring."""

import os  # a comment behind code

# a comment


class Doubled:
    """A docstring."""

    text = """a string
    that is code"""

    def path(self):
        return os.path.join(
            self.text, "x"
        )
'''


def test_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "algorithms").mkdir()
    files = {"__init__.py": "", "loose.py": TEXT, "algorithms/loose.py": TEXT, "algorithms/fedavg.py": "x = 1\n" * 161}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(house, "SOURCE", tmp_path)
    facts = {what: (value, which) for what, value, which in house.static_facts()}
    assert facts.pop("public names with an Args section or no parameters") == ("100%", "")
    assert facts == {
        "source files": ("4", ""),
        "lines of code, without comments, docstrings and blank lines": (str(2 * (1 + 1 + 2 + 1 + 3) + 161), ""),
        "loose modules at the top of the package": ("1", "loose.py"),
        "top-level class names that occur twice": ("1", "Doubled"),
        "module names that occur twice": ("1", "loose"),
        "files over 300 lines": ("0", ""),
        "method files over 160 lines": ("1", "algorithms/fedavg.py"),
    }
    assert house.explained(HeadwaterError)  # no parameters
    assert house.explained(ConfigError)  # those of its base class
    assert not house.explained(house.code_lines)  # a parameter, and a docstring without `Args:`
