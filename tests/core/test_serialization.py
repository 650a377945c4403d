"""Values survive the way to bytes and back, and their size is what the ledger charges."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headwater.core import serialization
from headwater.core.params import Params
from headwater.data.base import Examples
from headwater.tasks.batched.buffers import whole_lines


def a_model() -> Params:
    torch.manual_seed(0)
    return Params.of(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), "toy", weight=17.0)


VALUES: dict[str, Any] = {
    "none": None,
    "numbers": (1, 2.5, True, "word"),
    "nested": {"a": [1, (2, 3)], 4: {"b": None}, (0, 1): "pair"},
    "empty tensor": torch.zeros(0, 3),
    "tensors": {"x": torch.arange(6).view(2, 3), "y": torch.rand(3, dtype=torch.float64)},
    "bools": torch.tensor([True, False]),
}


@pytest.mark.parametrize("name", VALUES)
def test_round_trip(name: str, tmp_path: Path) -> None:
    back = serialization.read(tmp_path / serialization.store(VALUES[name], tmp_path))
    flat, tensors = serialization.flatten(VALUES[name])
    flat_back, tensors_back = serialization.flatten(back)
    assert flat == flat_back
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(tensors, tensors_back, strict=True))


def test_models_and_examples_round_trip(tmp_path: Path) -> None:
    value = {"m": a_model(), "e": Examples(torch.rand(5, 2), torch.arange(5))}
    back = serialization.read(tmp_path / serialization.store(value, tmp_path))
    assert torch.equal(back["m"].vector, value["m"].vector)
    assert back["m"].layout == value["m"].layout
    assert back["m"].weight == 17.0
    assert torch.equal(back["e"].y, value["e"].y)


def test_reading_maps_the_file_on_aligned_boundaries_and_never_writes_to_it(tmp_path: Path) -> None:
    path = tmp_path / serialization.store((torch.ones(3), torch.ones(5)), tmp_path)
    before = path.read_bytes()
    first, second = serialization.read(path)
    assert first.data_ptr() % 64 == 0
    assert second.data_ptr() % 64 == 0
    second.add_(1)
    assert path.read_bytes() == before


def test_same_content_same_name(tmp_path: Path) -> None:
    assert serialization.store(a_model(), tmp_path) == serialization.store(a_model(), tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_cut_or_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / serialization.store(torch.ones(1000), tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="cut short"):
        serialization.read(path)
    path.write_bytes(b"something else entirely")
    with pytest.raises(ValueError, match="does not hold a value"):
        serialization.read(path)


def test_what_cannot_travel_says_so() -> None:
    with pytest.raises(TypeError, match="set cannot travel"):
        serialization.flatten({1, 2})


def test_size_is_array_bytes_and_eight_a_bare_number() -> None:
    model = a_model()
    # 3·4+4 + 4+4 + 4·2+2 trained, 4+4 batch-norm statistics, all float32; one 64-bit batch counter
    assert serialization.info(model) == serialization.ValueInfo(4 * (16 + 8 + 10 + 8) + 8, 1, "model")
    assert serialization.info(0.5) == serialization.ValueInfo(8, 0, "number")
    assert serialization.info({"a": model, "b": model}).models == 2
    assert serialization.info(np.zeros(3)).bytes == 24
    assert serialization.info(
        Examples(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))
    ) == serialization.ValueInfo(40, 0, "examples")
    assert serialization.info((1.0, torch.zeros(2))).bytes == 16


@pytest.mark.parametrize("counters", ["none", "several"])
@pytest.mark.parametrize(
    ("kind", "as_it_is"),
    [
        ("plain", True),
        ("row of a stack", True),
        ("off a boundary", False),
        ("every other", False),
        ("gradient", False),
        ("numpy weight", False),
    ],
)
def test_a_model_is_taken_as_it_is_only_where_reading_it_back_gives_the_same(
    kind: str, as_it_is: bool, counters: str
) -> None:
    """Whatever `as_read` lets pass, a way to bytes and back would not change: types, strides, alignment, gradients."""
    model = a_model()
    size = len(model.vector)
    vector = {
        "every other": torch.zeros(2 * size)[::2],
        "row of a stack": torch.zeros(3, whole_lines(size, torch.float32))[1, :size],
        "off a boundary": torch.zeros(size + 1)[1:],
        "gradient": model.vector.clone().requires_grad_(),
    }.get(kind, model.vector)
    weight: Any = np.float32(3.0) if kind == "numpy weight" else 3.0
    held = model.counters if counters == "several" else torch.zeros(0, dtype=torch.int64)
    made = Params(vector, held, model.layout, weight)
    assert serialization.as_read(made) is as_it_is
    back = serialization.rebuild(*serialization.flatten(made))
    same = [
        type(made.weight) is type(back.weight),
        made.vector.requires_grad == back.vector.requires_grad,
        made.vector.stride() == back.vector.stride(),
        made.counters.stride() == back.counters.stride(),
        not made.vector.data_ptr() % serialization.ALIGN,
    ]
    assert all(same) is as_it_is


def test_many_values_are_stored_under_their_own_names(tmp_path: Path) -> None:
    values = {f"v{at}": torch.full((1000,), float(at % 30)) for at in range(40)}
    files = serialization.store_all(
        {name: partial(serialization.store, value, tmp_path) for name, value in values.items()}
    )
    assert list(files) == list(values)
    assert {path.name for path in tmp_path.iterdir()} == set(files.values())
    assert len(set(files.values())) == 30
    assert all(torch.equal(serialization.read(tmp_path / files[name]), value) for name, value in values.items())


def test_small_parts_of_large_tensors_are_taken_out() -> None:
    rows = torch.rand(10, 100)
    value = {"part": rows[3], "half": rows[:6], "n": 2}
    own = serialization.on_its_own(value)
    assert torch.equal(own["part"], rows[3])
    assert own["part"].untyped_storage().nbytes() == 400
    assert own["half"].data_ptr() == rows.data_ptr()
    assert serialization.on_its_own({"half": rows[:6]})["half"].data_ptr() == rows.data_ptr()


@pytest.mark.parametrize("name", VALUES)
def test_reading_back_without_a_file_is_reading_back(name: str, tmp_path: Path) -> None:
    """Engines that keep values in memory find what others find: the same bytes, types and strides, and no aliases."""
    value = {"it": VALUES[name], "view": torch.arange(12.0).view(3, 4).T[:1], "model": a_model(), "list": [1, "x"]}
    read = serialization.read(tmp_path / serialization.store(value, tmp_path))
    back = serialization.read_back(value)
    assert serialization.flatten(back)[0] == serialization.flatten(read)[0]
    for mine, other in zip(serialization.flatten(back)[1], serialization.flatten(read)[1], strict=True):
        assert (mine.dtype, mine.stride(), mine.tolist()) == (other.dtype, other.stride(), other.tolist())
    back["list"].append(2)
    assert value["list"] == [1, "x"]
