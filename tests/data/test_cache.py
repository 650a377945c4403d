"""A process that trains many runs keeps what it has read; a run alone does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headwater.data import loading
from headwater.data.loading import keep, load


@pytest.fixture
def kept() -> Iterator[None]:
    keep(2)
    yield
    keep(0)
    loading._cache.clear()


def file(folder: Path, name: str) -> str:
    x, y = np.zeros((4, 2), dtype=np.float32), np.array([0, 1, 0, 1])
    np.savez(folder / name, x_train=x, y_train=y, x_test=x, y_test=y)
    return str(folder / name)


def test_nothing_is_kept_unless_asked(tmp_path: Path) -> None:
    name = file(tmp_path, "a.npz")
    assert load(name) is not load(name)
    assert not loading._cache


@pytest.mark.usefixtures("kept")
def test_the_last_few_are_kept(tmp_path: Path) -> None:
    names = [file(tmp_path, f"{letter}.npz") for letter in "abc"]
    first, second = load(names[0]), load(names[1])
    assert load(names[0]) is first
    load(names[2])  # the one that was used longest ago has to go
    assert load(names[0]) is first
    assert load(names[1]) is not second


@pytest.mark.usefixtures("kept")
def test_another_directory_is_another_set() -> None:
    assert load("digits") is load("digits")
    assert load("digits") is not load("digits", Path("elsewhere"))
