"""Arrays in, tensors or a sentence out."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from headwater.data.base import Data
from headwater.errors import DataError

X, Y = np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1])


def data(x: Any = X, y: Any = Y, x_test: Any = None, y_test: Any = None, **more: Any) -> Data:
    return Data(x, y, x if x_test is None else x_test, y if y_test is None else y_test, **more)


class TestAccepts:
    def test_bytes_become_minus_one_to_one(self) -> None:
        x = np.zeros((4, 2, 2), np.uint8)
        x[0] = 255
        found = data(x).train.x
        assert found.dtype == torch.float32
        assert found[0].unique().tolist() == [1.0]
        assert found[1].unique().tolist() == [-1.0]

    @pytest.mark.parametrize(
        ("given", "kept"),
        [
            ((4, 8, 8), (1, 8, 8)),
            ((4, 8, 8, 1), (1, 8, 8)),
            ((4, 8, 6, 3), (3, 8, 6)),
            ((4, 3, 8, 6), (3, 8, 6)),
            ((4, 3, 8, 3), (3, 8, 3)),
            ((4, 1, 8, 8), (1, 8, 8)),
            ((4, 8, 8, 4), (8, 8, 4)),
            ((4, 5), (5,)),
        ],
    )
    @pytest.mark.parametrize("kind", [np.uint8, np.float64])
    def test_images_get_their_channels_first(self, given: tuple[int, ...], kept: tuple[int, ...], kind: type) -> None:
        found = data(np.zeros(given, kind))
        assert found.shape == kept
        assert found.train.x.shape == (4, *kept)

    def test_channels_last_keeps_every_pixel_in_its_place(self) -> None:
        x = np.random.default_rng(0).random((4, 5, 6, 3)).astype(np.float32)
        assert float(data(x).train.x[2, 1, 4, 5]) == float(x[2, 4, 5, 1])

    def test_floats_and_whole_numbers_are_taken_as_they_are(self) -> None:
        for kind in (np.float64, np.float16, np.int32, np.int64, np.uint8, np.uint16):
            found = data(np.full((4, 2), 7, kind)).train.x
            assert found.dtype == torch.float32
            assert found.unique().tolist() == [7.0]

    def test_tokens_stay_whole(self) -> None:
        found = data(np.arange(8).reshape(4, 2), tokens=True)
        assert found.tokens
        assert found.train.x.dtype == torch.int64

    @pytest.mark.parametrize("kind", [np.uint8, np.int32, np.float64])
    def test_labels_of_many_kinds(self, kind: type) -> None:
        found = data(y=Y.astype(kind))
        assert found.train.y.dtype == torch.int64
        assert found.train.y.tolist() == [0, 1, 0, 1]

    def test_labels_as_a_column_tensors_and_lists(self) -> None:
        assert data(y=Y[:, None]).classes == 2
        assert data(torch.from_numpy(X), torch.from_numpy(Y)).classes == 2
        assert Data(X.tolist(), [0, 1, 2, 2], X[:1].tolist(), [2]).classes == 3

    def test_odd_memory_layouts(self) -> None:
        backwards = np.arange(12, dtype=np.float32).reshape(4, 3)[::-1]
        assert data(backwards).train.x[0].tolist() == [9, 10, 11]
        foreign = np.arange(12, dtype=">f4").reshape(4, 3)
        assert data(foreign).train.x[3].tolist() == [9, 10, 11]
        fixed = X.copy()
        fixed.flags.writeable = False
        assert data(fixed).shape == (3,)

    def test_a_named_class_may_lack_samples(self) -> None:
        found = data(y=np.array([0, 2, 0, 2]), class_names=["a", "b", "c", "d"])
        assert found.classes == 4
        assert found.class_names == ("a", "b", "c", "d")

    def test_classes_are_named_by_number_otherwise(self) -> None:
        assert data().class_names == ("0", "1")


class TestRefuses:
    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"x": np.where(np.arange(12).reshape(4, 3) == 7, np.nan, 0.0)}, "the first in sample 2"),
            ({"x": np.full((4, 3), 1e300)}, "NaN or infinite"),
            ({"x": np.zeros((4, 3), bool)}, "x_train has dtype bool"),
            ({"x": torch.zeros(4, 3, dtype=torch.bool)}, "x_train has dtype bool"),
            ({"x": np.zeros((4, 3), complex)}, "complex128"),
            ({"x": np.array([["a"]] * 4)}, "dtype <U1"),
            ({"x": np.array([[None]] * 4)}, "dtype object"),
            ({"x": [[1], [2, 3], [4], [5]]}, "not a regular array"),
            ({"x": np.zeros(4)}, "along its first axis"),
            ({"x": np.zeros((0, 3)), "y": np.zeros(0, int)}, "at least one value each, got shape (0, 3)"),
            ({"x": X, "tokens": True}, "whole numbers when tokens=True"),
            ({"y": Y[:3]}, "y_train has 3 labels for 4 samples"),
            ({"y": Y + 0.5}, "not whole numbers"),
            ({"y": np.array([0, 1, np.nan, 1])}, "not whole numbers"),
            ({"y": Y - 1}, "the label -1"),
            ({"y": Y + 1}, "labels up to 2 but none is 0"),
            ({"y": np.array([0, 1, 5, 5])}, "labels up to 5 but none is 2"),
            ({"y": Y * 0}, "at least two classes"),
            ({"y": np.eye(4)}, "turn one-hot rows into numbers"),
            ({"y": Y.astype(bool)}, "y_train has dtype bool"),
            ({"y": np.array(["a", "b", "a", "b"])}, "y_train has dtype <U1"),
            ({"y_test": np.array([0, 1, 2, 0])}, "y_test holds the label 2, but the training classes are 0 to 1"),
            ({"x_test": np.zeros((4, 5))}, "shape (3,) and test inputs (5,)"),
            ({"x": np.zeros((4, 2, 2), np.uint8), "x_test": np.zeros((4, 2, 2))}, "differ in kind"),
            ({"class_names": ["only"]}, "1 class names but the label 1"),
        ],
    )
    def test_what_cannot_be_used(self, change: dict[str, Any], sentence: str) -> None:
        with pytest.raises(DataError, match=re.escape(sentence)):
            data(**change)
