"""Data, loading by name and the carving of a run's split."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headwater.data.base import Data, Examples
from headwater.data.loading import load
from headwater.data.split import Split, carve
from headwater.errors import ConfigError, DataError


def numbered(samples: int = 100) -> Data:
    """Sample i is the number i, so that every piece of a split can be traced."""
    x = np.arange(samples, dtype=np.float32)[:, None]
    return Data(x, np.arange(samples) % 4, x[:8] + 1000, np.arange(8) % 4, name="numbered")


def ids(x: Any) -> list[int]:
    return [int(value) for value in x[:, 0]]


class TestData:
    def test_take_follows_the_order_given(self) -> None:
        found = numbered().train.take([5, 2, 2])
        assert ids(found.x) == [5, 2, 2]
        assert found.y.tolist() == [1, 2, 2]
        assert len(found) == 3

    def test_take_turns_only_those_bytes_into_floats(self) -> None:
        x = np.arange(4 * 4, dtype=np.uint8).reshape(4, 2, 2) * 10
        data = Data(x, [0, 1, 0, 1], x, [0, 1, 0, 1])
        assert torch.equal(data.take([3, 1]).x, data.train.take([3, 1]).x)

    def test_examples_are_fixed(self) -> None:
        with pytest.raises(AttributeError):
            numbered().train.x = torch.zeros(1)  # type: ignore[misc]

    def test_repr_says_what_it_is(self) -> None:
        assert repr(numbered()) == "Data('numbered', 100 + 8 samples of (1,), 4 classes)"


class TestCarve:
    def test_pieces_are_disjoint_and_cover_all(self) -> None:
        split = carve(numbered(), validation=0.1, reference_size=15, seed=3)
        pieces = [ids(split.train.x), ids(split.validation.x), ids(split.reference)]
        assert [len(piece) for piece in pieces] == [75, 10, 15]
        assert sorted(sample for piece in pieces for sample in piece) == list(range(100))
        assert ids(split.test.x) == [1000 + i for i in range(8)]
        assert (split.classes, split.shape, split.name) == (4, (1,), "numbered")

    def test_labels_stay_with_their_samples(self) -> None:
        split = carve(numbered(), seed=1)
        for part in (split.train, split.validation):
            assert part.y.tolist() == [i % 4 for i in ids(part.x)]

    def test_is_a_function_of_the_seed(self) -> None:
        first, again, other = (ids(carve(numbered(), seed=seed).train.x) for seed in (1, 1, 2))
        assert first == again
        assert first != other

    def test_what_is_held_out_is_at_most_a_fifth_of_what_was_drawn(self) -> None:
        assert len(carve(numbered(), reference_size=5000).reference) == 20
        assert len(carve(numbered(), fraction=0.5, reference_size=5000).reference) == 10

    def test_the_rest_is_what_the_fraction_leaves_out(self) -> None:
        """Half for the clients and the validation set, the other half as reference; the clients' rows stay the same."""
        split = carve(numbered(), fraction=0.5, reference="unused", seed=2)
        assert len(split.reference) == 50
        public = set(ids(split.reference))
        assert public | set(ids(split.train.x)) | set(ids(split.validation.x)) == set(range(100))
        assert len(split.train) + len(split.validation) == 50
        assert split.reference_labels is not None
        assert split.reference_labels.tolist() == [i % 4 for i in ids(split.reference)]
        few = carve(numbered(), fraction=0.5, reference="unused", reference_size=7, reference_classes=[1], seed=2)
        assert len(few.reference) == 7
        assert {i % 4 for i in ids(few.reference)} == {1}
        assert ids(few.train.x) == ids(split.train.x)

    def test_fraction_counts_before_all_else(self) -> None:
        split = carve(numbered(), fraction=0.4, validation=0.25, reference_size=0)
        assert (len(split.train), len(split.validation), len(split.reference)) == (30, 10, 0)

    def test_validation_as_a_count_and_as_nothing(self) -> None:
        assert len(carve(numbered(), validation=7).validation) == 7
        nothing = carve(numbered(), validation=0)
        assert isinstance(nothing.validation, Examples)
        assert nothing.validation.x.shape == (0, 1)
        assert nothing.validation.y.dtype == torch.int64

    def test_labels_of_a_reference_set_of_other_classes_are_its_own(self) -> None:
        held, noise = (carve(numbered(), reference=kind) for kind in ("holdout", "noise"))
        assert held.reference_own_labels is held.reference_labels
        assert noise.reference_own_labels is None
        x = np.zeros((40, 1, 8, 8), dtype=np.float32)
        split = carve(Data(x, np.arange(40) % 2, x, np.arange(40) % 2), reference="digits", reference_size=8)
        assert split.reference_labels is None  # digits have ten classes, the data two
        assert split.reference_own_labels is not None
        assert len(split.reference_own_labels) == len(split.reference) == 8

    def test_an_unused_reference_set_takes_nothing_from_the_clients(self) -> None:
        without = carve(numbered(), fraction=0.4, validation=5, reference_size=0)
        split = carve(numbered(), fraction=0.4, validation=5, reference="unused", reference_size=30)
        assert ids(split.train.x) == ids(without.train.x)
        assert ids(split.validation.x) == ids(without.validation.x)
        assert len(split.reference) == 30  # of the 60 that are left over, and more than a fifth of the 40 that are used
        assert not set(ids(split.reference)) & {*ids(split.train.x), *ids(split.validation.x)}
        assert split.reference_labels is not None
        assert len(carve(numbered(), fraction=0.4, reference="unused").reference) == 60
        with pytest.raises(DataError, match=r"data\.fraction = 1 leaves none"):
            carve(numbered(), reference="unused")
        assert not len(carve(numbered(), reference="unused", reference_size=0).reference)

    def test_the_validation_set_does_not_depend_on_the_reference(self) -> None:
        held, noise = (carve(numbered(), reference=kind).validation.x for kind in ("holdout", "noise"))
        assert torch.equal(held, noise)

    def test_noise_lies_in_the_public_range_by_column(self) -> None:
        x = np.random.default_rng(0).random((200, 2)).astype(np.float32) * [1, 100]
        split = carve(Data(x, np.arange(200) % 2, x, np.arange(200) % 2), reference="noise", reference_size=40)
        assert split.reference.shape == (40, 2)
        assert split.reference.dtype == torch.float32
        assert len(split.train) == 180  # nothing was taken out for it
        for column in range(2):
            drawn, public = split.reference[:, column], split.validation.x[:, column]
            assert float(public.min()) <= float(drawn.min()) < float(drawn.max()) <= float(public.max())

    def test_noise_for_images_and_without_validation_set(self) -> None:
        x = np.zeros((40, 4, 4), np.uint8)
        split = carve(
            Data(x, np.arange(40) % 2, x, np.arange(40) % 2), reference="noise", reference_size=30, validation=0
        )
        assert split.reference.shape == (30, 1, 4, 4)  # more than a fifth of the 40 samples
        assert -1 <= float(split.reference.min()) < -0.5
        assert 0.5 < float(split.reference.max()) <= 1

    def test_noise_of_tokens_is_tokens(self) -> None:
        x = np.random.default_rng(0).integers(0, 9, (50, 6))
        made = Data(x, np.arange(50) % 2, x, np.arange(50) % 2, tokens=True)
        noise = carve(made, reference="noise").reference
        assert noise.dtype == torch.int64
        assert 0 <= int(noise.min()) < int(noise.max()) <= 8

    def test_another_set_as_reference(self, tmp_path: Path) -> None:
        path = tmp_path / "other.npz"
        x = np.arange(50, dtype=np.float32)[:, None] + 500
        np.savez(path, x_train=x, y_train=np.arange(50) % 2, x_test=x, y_test=np.arange(50) % 2)
        split = carve(numbered(), reference=str(path), reference_size=5)
        assert ids(split.reference) == [500, 501, 502, 503, 504]
        assert len(split.train) == 90
        assert (
            len(carve(numbered(), reference=str(path)).reference) == 50
        )  # all of it, not a fifth of the clients' data

    def test_reference_of_another_shape_is_refused(self) -> None:
        with pytest.raises(DataError, match=r"'digits' has inputs of shape \(1, 8, 8\), but 'numbered' has \(1,\)"):
            carve(numbered(), reference="digits")

    def test_the_clients_own_set_as_reference_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="use 'holdout'"):
            carve(load("digits"), reference="digits")

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"fraction": 0.0}, "data.fraction must be above 0 and at most 1, got 0.0"),
            ({"fraction": 1.5}, "got 1.5"),
            ({"fraction": float("nan")}, "got nan"),
            ({"validation": -0.1}, "data.validation must be a share"),
            ({"validation": 2.5}, "got 2.5"),
            ({"validation": float("nan")}, "got nan"),
            ({"reference_size": -1}, "0 or more, got -1"),
            ({"reference": "didgits"}, "did you mean 'digits'"),
        ],
    )
    def test_wrong_values_are_refused(self, options: dict[str, Any], sentence: str) -> None:
        with pytest.raises(ConfigError, match=sentence):
            carve(numbered(), **options)

    @pytest.mark.parametrize(
        "options", [{"validation": 100}, {"validation": 0.85}, {"fraction": 0.01, "validation": 1}]
    )
    def test_nothing_left_for_clients_is_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(DataError, match=r"leave nothing of the .* lower data\.validation or data\.reference_size"):
            carve(numbered(), **options)


class TestLoad:
    def test_a_function_of_ones_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def wrong() -> Data:
            return 3  # type: ignore[return-value]

        def other() -> int:
            pytest.fail("called")

        module = types.ModuleType("a_users_data")
        module.make = numbered  # type: ignore[attr-defined]
        module.wrong = wrong  # type: ignore[attr-defined]
        module.silent = lambda: numbered()  # type: ignore[attr-defined]
        module.other = other  # type: ignore[attr-defined]
        module.value = 3  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "a_users_data", module)
        assert load("a_users_data:make").name == "numbered"
        with pytest.raises(DataError, match=r"gave a int; it must return hw\.Data"):
            load("a_users_data:wrong")
        assert load("a_users_data:silent").name == "numbered"
        with pytest.raises(ConfigError, match=r"'a_users_data:other' is not called.* -> hw\.Data"):
            load("a_users_data:other")
        with pytest.raises(ConfigError, match="is not callable"):
            load("a_users_data:value")
        with pytest.raises(ConfigError, match="could not be imported"):
            load("a_users_data:absent")

    def test_an_unknown_name_gets_the_nearest(self) -> None:
        with pytest.raises(ConfigError, match=r"no data set called 'cifar-10'; did you mean 'cifar10'\?"):
            load("cifar-10")

    def test_split_is_what_carve_gives(self) -> None:
        assert isinstance(carve(numbered()), Split)


@pytest.mark.parametrize(("token", "words", "said"), [(-1, None, "token number -1"), (9, 9, "at least 10")])
def test_tokens_that_there_are_not(token: int, words: int | None, said: str) -> None:
    with pytest.raises(DataError, match=said):
        Data([[1, 2], [3, token]], [0, 1], [[0, 1]], [0], tokens=True, words=words)
