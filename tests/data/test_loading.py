"""Data of one's own from .npz files."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwater.config import Config
from headwater.data.base import Data, fifth_of
from headwater.data.loading import load, open_data
from headwater.errors import ConfigError, DataError

X, Y = np.arange(60, dtype=np.float32).reshape(20, 3), np.arange(20) % 2


def saved(path: Path, **arrays: Any) -> str:
    np.savez(path / "mine.npz", **arrays)
    return str(path / "mine.npz")


def test_four_arrays_are_taken_as_they_are(tmp_path: Path) -> None:
    found = load(saved(tmp_path, x_train=X, y_train=Y, x_test=X[:4], y_test=Y[:4], class_names=["no", "yes"]))
    assert (len(found), len(found.test), found.class_names) == (20, 4, ("no", "yes"))


def test_two_arrays_give_a_fixed_fifth_for_tests(tmp_path: Path) -> None:
    name = saved(tmp_path, x=X, y=Y)
    first, again = load(name), load(name)
    assert (len(first), len(first.test)) == (16, 4)
    assert first.test.x.tolist() == again.test.x.tolist()
    rows = {tuple(row) for part in (first.train, first.test) for row in part.x.tolist()}
    assert rows == {tuple(row) for row in X.tolist()}


def test_too_few_samples_for_a_fifth() -> None:
    with pytest.raises(DataError, match="has 3 samples; at least 5"):
        fifth_of(X[:3], Y[:3], "it")
    with pytest.raises(DataError, match="each sample needs one label"):
        fifth_of(X, Y[:3], "it")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*absent\.npz"):
        load(str(tmp_path / "absent.npz"))


def test_arrays_with_other_names(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mine\.npz holds images, y; it needs x_train"):
        load(saved(tmp_path, images=X, y=Y))


def test_what_is_wrong_inside_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mine\.npz: x_train holds NaN"):
        load(saved(tmp_path, x=X * np.nan, y=Y))


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mine\.npz: x holds Python objects instead of numbers"):
        load(saved(tmp_path, x=np.array([{}] * 20, dtype=object), y=Y))


@pytest.mark.parametrize("keep", [0, 10, 200, 600])
def test_a_truncated_file_is_named(tmp_path: Path, keep: int) -> None:
    path = Path(saved(tmp_path, x=X, y=Y))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"mine\.npz is damaged or incomplete"):
        load(str(path))


def test_a_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = Path(saved(tmp_path, x=X, y=Y))
    raw = bytearray(path.read_bytes())
    raw[200] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"mine\.npz is damaged or incomplete"):
        load(str(path))


def test_a_single_array_is_not_enough(tmp_path: Path) -> None:
    with (tmp_path / "mine.npz").open("wb") as file:
        np.save(file, X)
    with pytest.raises(DataError, match=r"mine\.npz is damaged or incomplete \(File is not a zip file"):
        load(str(tmp_path / "mine.npz"))


def many(rows: int = 40, *, classes: int = 2) -> Data:
    return Data(np.zeros((rows, 3), np.float32), np.arange(rows) % classes, X[:4], Y[:4])


class TestOwnFunction:
    @pytest.fixture(autouse=True)
    def own_data(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = types.ModuleType("own_data")
        module.many = many  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "own_data", module)

    def test_options_reach_it(self) -> None:
        assert len(open_data(Config.load(None, ["data.name=own_data:many", "data.rows=50"]).data)) == 50
        assert len(open_data(Config.load(None, ["data.name=own_data:many"]).data)) == 40

    @pytest.mark.parametrize(
        ("setting", "sentence"),
        [
            ("data.row=3", r"no setting called 'data\.row'; did you mean 'data\.rows'"),
            ("data.rows=all", r"data\.rows must be a whole number, got 'all'"),
        ],
    )
    def test_mistakes_are_named_as_for_listed_sets(self, setting: str, sentence: str) -> None:
        with pytest.raises(ConfigError, match=sentence):
            Config.load(None, ["data.name=own_data:many", setting])
