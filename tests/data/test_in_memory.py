"""Data that a program has in memory, in the forms that users have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

import headwater as hw
from headwater.data.in_memory import data_from

SMALL: dict[str, Any] = {"clients": 2, "sectors": 1, "rounds": 2, "alpha": 100.0, "local__epochs": 2}
rng = np.random.default_rng(0)
KIND = np.arange(120) % 3
ROWS = np.stack([1000.0 + 50 * KIND + rng.normal(0, 5, 120), rng.normal(0, 0.01, 120) + KIND], axis=1)


def test_rows_of_numbers_are_scaled_over_all_clients_and_predictions_scale_alike() -> None:
    run = hw.run("fedavg", data=(ROWS, KIND), **SMALL)
    assert run.accuracy > 0.8
    mean, deviation = run.trained.reading.settled[:2]
    np.testing.assert_allclose(mean, ROWS.mean(0), rtol=0.05, atol=0.1)
    assert np.all(deviation > 0)
    assert np.mean(run.predict(ROWS) == KIND) > 0.8
    plain = data_from((ROWS, KIND), {}, standardize=False)
    assert plain.preparation is None
    assert float(plain.train.x.max()) > 1000


def test_a_fifth_is_for_tests_unless_there_is_a_test_part() -> None:
    data = data_from((ROWS, KIND), {})
    assert (len(data), data.test_size) == (96, 24)
    data = data_from((ROWS[:100], KIND[:100], ROWS[100:], KIND[100:]), {})
    assert (len(data), data.test_size) == (100, 20)


@pytest.mark.parametrize(
    ("labels", "names", "numbers"),
    [
        (["b", "a", "c"] * 10, ("a", "b", "c"), [1, 0, 2]),
        ([7, 3, 5] * 10, ("3", "5", "7"), [2, 0, 1]),
        ([True, False, True] * 10, ("False", "True"), [1, 0, 1]),
        ([2, 0, 1] * 10, ("0", "1", "2"), [2, 0, 1]),
    ],
)
def test_labels_may_be_words_or_have_gaps(labels: list[Any], names: tuple[str, ...], numbers: list[int]) -> None:
    x = np.arange(30.0)[:, None]
    data = data_from((x, labels, x[:3], labels[:3]), {})
    assert data.class_names == names
    assert data.labels[:3].tolist() == numbers


def test_a_table_names_its_columns() -> None:
    frame = pd.DataFrame(
        {"size": ROWS[:, 0], "word": np.array(["x", "y", "z"])[KIND], "target": KIND, "site": KIND % 2}
    )
    settings: dict[str, Any] = {"label": "target", "client": "site", "rounds": 1}
    data = data_from(frame, settings)
    assert settings == {"rounds": 1}
    assert data.owners is not None
    assert data.class_names == ("0", "1", "2")
    with pytest.raises(hw.ConfigError, match="no column 'label'"):
        data_from(frame, {})


def test_torch_data_sets_give_pairs() -> None:
    x = torch.from_numpy(ROWS).float()
    data = data_from(TensorDataset(x, torch.from_numpy(KIND)), {}, standardize=False)
    assert len(data) + data.test_size == 120
    assert data.classes == 3
    with pytest.raises(hw.DataError, match="pair of input and label"):
        data_from(TensorDataset(x), {})


def test_hugging_face_data_sets_with_images_and_with_columns() -> None:
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    pictures = [Image.fromarray(np.full((8, 8), 80 * kind, dtype=np.uint8)) for kind in KIND[:30]]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["zero", "one", "two"])}
    )
    data = data_from(datasets.Dataset.from_dict({"image": pictures, "label": KIND[:30]}, features=features), {})
    assert data.shape == (1, 8, 8)
    assert data.class_names == ("one", "two", "zero")
    table = datasets.Dataset.from_dict({"a": ROWS[:, 0], "kind": KIND})
    assert data_from(table, {"label": "kind"}).classes == 3
    with pytest.raises(hw.DataError, match="name the column of labels"):
        data_from(table, {})


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: hw.run("fedavg", data=None), "data is of type NoneType; it can be the name"),
        (lambda: hw.run("fedavg", data=(ROWS, KIND[:5])), "each sample needs one label"),
        (lambda: hw.run("fedavg", data=(ROWS, KIND), standardize="yes"), "standardize must be True, False or 'auto'"),
        (lambda: hw.run("fedavg", data=(np.zeros((9, 4, 4)), KIND[:9]), standardize=True), "is for rows of numbers"),
        (lambda: hw.compare("fedavg"), "a list of methods"),
        (lambda: hw.compare(["fedavg"], seeds=3), "a list of seeds"),  # type: ignore[arg-type]
        (lambda: hw.run("fedavg", verbose=True), "progress=False hides"),
        (lambda: hw.run("fedavg", num_clients=3), "use clients=20"),
    ],
)
def test_mistakes_are_sentences(call: Any, sentence: str) -> None:
    with pytest.raises(hw.UserError, match=sentence):
        call()
