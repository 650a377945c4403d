"""Registries find parts by reading source files, and say what is wrong with a description."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater import registry
from headwater.errors import ConfigError, HeadwaterError
from headwater.registry import Info, Registry

CLASS = "class A:\n    INFO = Info('a', 'first')\n"
FUNCTION = "@Info(name='b', summary='second')\ndef make(x: int) -> int:\n    return x\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    monkeypatch.setattr(registry, "SOURCE", tmp_path)

    def write(**files: str) -> Registry:
        for name, text in files.items():
            path = tmp_path / "toys" / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"import nothing_of_this_name\n{text}", encoding="utf-8")
        return Registry("toy", "headwater.toys")

    return write


def test_classes_and_functions_are_found_in_the_order_of_files(package: Callable[..., Registry]) -> None:
    found = package(two=FUNCTION, one=CLASS + "class Plain:\n    x = 1\n", inside__three="@Info('c')\ndef c(): ...\n")
    assert {name: part.target for name, part in found.items()} == {
        "c": "headwater.toys.inside.three:c",
        "a": "headwater.toys.one:A",
        "b": "headwater.toys.two:make",
    }
    assert found["b"].info == Info("b", "second")
    assert "headwater.toys.one" not in sys.modules, "nothing is imported"


def test_two_parts_of_one_name_are_refused(package: Callable[..., Registry]) -> None:
    found = package(one=CLASS, two=CLASS.replace("class A", "class B"))
    with pytest.raises(HeadwaterError, match=r"two toys are called 'a': headwater.toys.one:A and headwater.toys.two:B"):
        len(found)


@pytest.mark.parametrize("arguments", ["NAME, 'x'", "'a', colour='red'", "f'{1}'", "*('a', 'b')"])
def test_a_description_that_is_not_literal_is_refused(package: Callable[..., Registry], arguments: str) -> None:
    found = package(one=f"class A:\n    INFO = Info({arguments})\n")
    with pytest.raises(HeadwaterError, match=r"Info\(...\) of headwater.toys.one:A .* only literals"):
        len(found)


def test_a_class_whose_info_is_of_another_kind_is_refused(package: Callable[..., Registry]) -> None:
    found = package(one="class A:\n    INFO = make_info('a')\nclass B:\n    INFO = Info('b')\n")
    with pytest.raises(HeadwaterError, match=r"INFO of headwater.toys.one:A must be Info\(...\)"):
        len(found)


def test_a_users_own_part_needs_no_row() -> None:
    assert Registry("toy", "headwater.presets").load("pathlib:Path") is Path
    with pytest.raises(ConfigError, match="could not be imported"):
        Registry("toy", "headwater.presets").load("pathlib:Nothing")
    with pytest.raises(ConfigError, match="there is no toy called 'pathlib'"):
        Registry("toy", "headwater.presets").load("pathlib")
