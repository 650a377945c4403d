"""Reference sets from noise, generators and other data sets, whole or in part."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headwater.core.rng import stream
from headwater.data.base import Data
from headwater.data.split import Split, carve
from headwater.errors import ConfigError, DataError


def numbered(samples: int = 100) -> Data:
    """Sample i is the number i with label i modulo 4, so that every piece of a split can be traced."""
    x = np.arange(samples, dtype=np.float32)[:, None]
    return Data(x, np.arange(samples) % 4, x[:8] + 1000, np.arange(8) % 4, name="numbered")


def ids(x: Any) -> list[int]:
    return [int(value) for value in x[:, 0]]


def images(samples: int = 60, low: float = -1.0, high: float = 1.0) -> Data:
    x = stream(5).uniform(low, high, (samples, 1, 6, 6)).astype(np.float32)
    return Data(x, np.arange(samples) % 3, x[:3], np.arange(3), name="images")


def tokens() -> Data:
    x = stream(0).integers(0, 9, (50, 6))
    return Data(x, np.arange(50) % 2, x, np.arange(50) % 2, tokens=True)


def sha(split: Split) -> str:
    import hashlib

    return hashlib.sha256(split.reference.numpy().tobytes()).hexdigest()


@pytest.fixture
def other(tmp_path: Path) -> str:
    """Forty samples from 500 on with five classes, eight of each in a row."""
    path = tmp_path / "other.npz"
    x = np.arange(40, dtype=np.float32)[:, None] + 500
    np.savez(path, x_train=x, y_train=np.repeat(np.arange(5), 8), x_test=x[:5], y_test=np.arange(5))
    return str(path)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    def put(function: Any) -> str:
        made = types.ModuleType("a_users_part")
        made.function = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "a_users_part", made)
        return "a_users_part:function"

    return put


class TestAsBefore:
    """What was there before these options is what it was, to the bit."""

    def test_holdout_is_the_next_in_the_drawn_order(self) -> None:
        order = stream(3, "data", "order").permutation(100)
        split = carve(numbered(), validation=10, reference_size=15, seed=3)
        assert ids(split.validation.x) == sorted(order[:10])
        assert ids(split.reference) == sorted(order[10:25])
        assert ids(split.train.x) == sorted(order[25:])

    def test_noise_is_one_uniform_draw(self) -> None:
        split = carve(images(low=-0.5, high=2.0), reference="noise", reference_size=7, seed=2)
        low, high = float(split.validation.x.min()), float(split.validation.x.max())
        drawn = stream(2, "data", "noise").uniform(low, high, (7, 1, 6, 6)).astype(np.float32)
        assert torch.equal(split.reference, torch.from_numpy(drawn))

    def test_another_set_is_its_beginning(self, other: str) -> None:
        assert ids(carve(numbered(), reference=other, reference_size=6).reference) == [500, 501, 502, 503, 504, 505]


class TestGaussian:
    def test_spans_the_range_and_crowds_the_middle(self) -> None:
        """Brought into the range as a whole, the least and the largest value are its ends; a normal draw of 25 000 has
        about 4 deviations to each side, so its own is about an eighth of the range, where a uniform one has 0.29."""
        split = carve(images(5000, -0.5, 2.0), reference="noise", reference_noise="gaussian", reference_size=700)
        low, high = float(split.validation.x.min()), float(split.validation.x.max())
        assert float(split.reference.min()) == pytest.approx(low)
        assert float(split.reference.max()) == pytest.approx(high)
        assert 0.09 < float(split.reference.std()) / (high - low) < 0.16
        assert split.reference.dtype == torch.float32

    def test_flat_features_keep_their_columns_scales(self) -> None:
        x = stream(1).random((400, 2)).astype(np.float32) * [1, 100] + [0, 500]
        data = Data(x, np.arange(400) % 2, x, np.arange(400) % 2)
        found = carve(data, reference="noise", reference_noise="gaussian").reference
        public = carve(data).validation.x
        for column in range(2):
            drawn = found[:, column]
            assert float(public[:, column].min()) <= float(drawn.min())
            assert float(drawn.max()) <= float(public[:, column].max())
        assert float(found[:, 1].mean()) == pytest.approx(550, abs=15)

    def test_nothing_and_a_single_value(self) -> None:
        assert len(carve(numbered(), reference="noise", reference_noise="gaussian", reference_size=0).reference) == 0
        one = carve(numbered(), reference="noise", reference_noise="gaussian", reference_size=1)
        assert bool(torch.isfinite(one.reference).all())

    def test_tokens_are_refused(self) -> None:
        with pytest.raises(DataError, match="'gaussian' draws values, but 'arrays' holds tokens"):
            carve(tokens(), reference="noise", reference_noise="gaussian")


class TestClasses:
    def test_only_the_listed(self, other: str) -> None:
        split = carve(numbered(), reference=other, reference_classes=[1, 4], reference_size=100)
        assert ids(split.reference) == [*range(508, 516), *range(532, 540)]

    def test_so_many_at_random_and_more_contain_fewer(self, other: str) -> None:
        def held(count: int, seed: int = 0) -> set[int]:
            found = carve(numbered(200), reference=other, reference_classes=count, seed=seed).reference
            assert len(found) == 8 * count
            return {(number - 500) // 8 for number in ids(found)}

        assert len(held(2)) == 2
        assert held(1) < held(2) < held(4)
        assert held(5) == {0, 1, 2, 3, 4}
        assert len({tuple(held(2, seed)) for seed in range(6)}) > 1

    def test_the_limit_does_not_favour_those_at_the_beginning(self, other: str) -> None:
        """Ten of 40 samples that lie class by class: the first ten would hold two classes only."""
        found = ids(carve(numbered(), reference=other, reference_classes=5, reference_size=10).reference)
        assert len(found) == 10
        assert len({(number - 500) // 8 for number in found}) >= 3

    def test_of_what_was_held_out(self) -> None:
        whole = carve(numbered(), validation=0, seed=1)
        part = carve(numbered(), validation=0, seed=1, reference_classes=[2])
        assert ids(part.reference) == [i for i in ids(whole.reference) if i % 4 == 2]
        assert torch.equal(part.train.x, whole.train.x)  # the clients' data stays the same

    def test_that_are_not_there(self, other: str) -> None:
        with pytest.raises(ConfigError, match=r"names class 5, but '.*other\.npz' has 5 classes; use 0 to 4"):
            carve(numbered(), reference=other, reference_classes=[0, 5])
        with pytest.raises(ConfigError, match=r"asks for 6 classes, but '.*other\.npz' has 5; use at most 5"):
            carve(numbered(), reference=other, reference_classes=6)
        with pytest.raises(ConfigError, match=r"names class 4, but 'holdout' has 4 classes; use 0 to 3"):
            carve(numbered(), reference_classes=[4])

    def test_without_a_sample(self) -> None:
        x = np.arange(40, dtype=np.float32)[:, None]
        data = Data(x, np.zeros(40, int), x, np.zeros(40, int), class_names=["all", "none"])
        with pytest.raises(DataError, match=r"'holdout' has no sample of the classes \[1\]"):
            carve(data, reference_classes=[1])


class TestFraction:
    def test_of_another_set_counts_before_the_limit(self, other: str) -> None:
        half = carve(numbered(200), reference=other, reference_fraction=0.5)
        assert len(half.reference) == 20
        assert set(ids(half.reference)) < set(range(500, 540))
        assert len(carve(numbered(200), reference=other, reference_fraction=0.5, reference_size=7).reference) == 7

    def test_less_is_a_part_of_more(self, other: str) -> None:
        few, more = (
            set(ids(carve(numbered(200), reference=other, reference_fraction=f).reference)) for f in (0.2, 0.6)
        )
        assert few < more

    def test_of_what_was_held_out(self) -> None:
        whole, part = (carve(numbered(), reference_fraction=f, seed=1) for f in (1.0, 0.3))
        assert len(part.reference) == 6
        assert set(ids(part.reference)) < set(ids(whole.reference))
        assert torch.equal(part.train.x, whole.train.x)
        assert torch.equal(part.validation.x, whole.validation.x)

    def test_of_some_classes(self, other: str) -> None:
        split = carve(numbered(200), reference=other, reference_classes=[0, 1], reference_fraction=0.25)
        assert len(split.reference) == 4
        assert set(ids(split.reference)) < set(range(500, 516))

    def test_is_never_nothing(self, other: str) -> None:
        assert len(carve(numbered(), reference=other, reference_fraction=1e-9).reference) == 1


class TestLabels:
    def test_of_a_holdout_are_those_of_its_samples(self) -> None:
        split = carve(numbered(), reference_fraction=0.5)
        assert split.reference_labels is not None
        assert split.reference_labels.tolist() == [i % 4 for i in ids(split.reference)]

    @pytest.mark.parametrize("source", ["noise", "generator"])
    def test_of_what_is_drawn_there_are_none(self, source: str) -> None:
        assert carve(images(), reference=source).reference_labels is None

    def test_of_a_file_only_if_they_are_said_to_fit(self, other: str) -> None:
        assert carve(numbered(), reference=other).reference_labels is None
        split = carve(
            numbered(), reference=other, reference_labelled=True, reference_classes=[0, 3], reference_fraction=0.5
        )
        assert split.reference_labels is not None
        assert split.reference_labels.tolist() == [(i - 500) // 8 for i in ids(split.reference)]

    def test_that_the_clients_do_not_have_are_refused(self, other: str) -> None:
        with pytest.raises(DataError, match=r"other\.npz' has the label 4, but 'numbered' has 4 classes, 0 to 3"):
            carve(numbered(200), reference=other, reference_labelled=True)

    def test_do_not_change_the_inputs(self, tmp_path: Path) -> None:
        """Whatever labels a file gives its samples, the inputs that are distilled on are the same."""
        x = np.arange(40, dtype=np.float32)[:, None]
        found = []
        for order in (np.arange(40), stream(4).permutation(40)):
            np.savez(
                tmp_path / "other.npz", x_train=x, y_train=(np.arange(40) % 5)[order], x_test=x[:5], y_test=np.arange(5)
            )
            found.append(carve(numbered(200), reference=str(tmp_path / "other.npz"), reference_fraction=0.5))
        assert torch.equal(found[0].reference, found[1].reference)
        assert torch.equal(found[0].train.x, found[1].train.x)


class TestOwnGenerator:
    def test_is_asked_for_what_fits(self, module: Callable[..., str]) -> None:
        asked = {}

        def generate(count: int, shape: tuple[int, ...], classes: int, seed: int) -> Any:
            asked.update(count=count, shape=shape, classes=classes, seed=seed)
            return np.full((count, *shape), 0.25)

        split = carve(images(), reference=module(generate), reference_size=9)
        assert (asked["count"], asked["shape"], asked["classes"]) == (9, (1, 6, 6), 3)
        assert 0 <= asked["seed"] < 2**31
        assert split.reference.dtype == torch.float32
        assert torch.equal(split.reference, torch.full((9, 1, 6, 6), 0.25))
        assert split.reference_labels is None
        assert len(split.train) == 54

    def test_may_give_labels(self, module: Callable[..., str]) -> None:
        name = module(lambda count, shape, classes, seed: (torch.zeros(count, *shape), torch.arange(count) % classes))
        labels = carve(images(), reference=name, reference_size=5, reference_labelled=True).reference_labels
        assert labels is not None
        assert labels.tolist() == [0, 1, 2, 0, 1]

    def test_follows_the_seed_and_leaves_torchs_stream_alone(self, module: Callable[..., str]) -> None:
        """Even one that forgets the seed it was given."""
        name = module(lambda count, shape, classes, seed: torch.randn(count, *shape, requires_grad=True) * 1.0)
        torch.manual_seed(3)
        before = torch.get_rng_state()
        first, again, another = (carve(images(), reference=name, seed=seed) for seed in (1, 1, 2))
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(first.reference, again.reference)
        assert not torch.equal(first.reference, another.reference)
        assert not first.reference.requires_grad

    def test_bytes_become_values_as_everywhere(self, module: Callable[..., str]) -> None:
        name = module(lambda count, shape, classes, seed: np.full((count, 6, 6), 255, np.uint8))
        assert float(carve(images(), reference=name).reference.min()) == 1.0

    def test_a_function_without_arguments_still_loads(self, module: Callable[..., str]) -> None:
        def make() -> Data:
            return numbered(30)

        assert ids(carve(numbered(), reference=module(make), reference_size=3).reference) == [0, 1, 2]

    def test_nothing_is_asked_for_nothing(self, module: Callable[..., str]) -> None:
        def generate(count: int, shape: Any, classes: int, seed: int) -> Any:
            raise AssertionError("called")

        assert carve(images(), reference=module(generate), reference_size=0).reference.shape == (0, 1, 6, 6)

    @pytest.mark.parametrize(
        ("function", "sentence"),
        [
            (lambda amount, form: None, r"has the arguments \(amount, form\); it must be a function without"),
            (lambda count, shape, classes, seed, more: None, r"one of \(count, shape, classes, seed\)"),
            (lambda count, shape, classes: None, r"has the arguments \(count, shape, classes\)"),
        ],
    )
    def test_other_arguments_are_refused(self, module: Callable[..., str], function: Any, sentence: str) -> None:
        with pytest.raises(ConfigError, match=sentence):
            carve(images(), reference=module(function))

    @pytest.mark.parametrize(
        ("made", "sentence"),
        [
            (torch.zeros(3, 1, 6, 6), r"has shape \(3, 1, 6, 6\), but 12 inputs of shape \(1, 6, 6\)"),
            (torch.zeros(12, 1, 5, 6), r"has shape \(12, 1, 5, 6\)"),
            (torch.full((12, 1, 6, 6), float("nan")), "'a_users_part:function' made holds NaN"),
            ((torch.zeros(12, 1, 6, 6), torch.zeros(11)), "11 labels for 12 samples"),
            ((torch.zeros(12, 1, 6, 6), torch.full((12,), 3)), "has the label 3, but 'images' has 3 classes"),
            (None, "has dtype object"),
        ],
    )
    def test_wrong_results_are_refused(self, module: Callable[..., str], made: Any, sentence: str) -> None:
        with pytest.raises(DataError, match=sentence):
            carve(images(), reference=module(lambda count, shape, classes, seed: made), reference_size=12)

    def test_options_of_sets_are_refused(self, module: Callable[..., str]) -> None:
        name = module(lambda count, shape, classes, seed: torch.zeros(count, *shape))
        with pytest.raises(ConfigError, match="reference_classes picks samples by their labels"):
            carve(images(), reference=name, reference_classes=2)
        with pytest.raises(ConfigError, match="reference_fraction is a share"):
            carve(images(), reference=name, reference_fraction=0.5)
        with pytest.raises(
            DataError, match="reference_labelled = true, but 'a_users_part:function' returns inputs only"
        ):
            carve(images(), reference=name, reference_labelled=True)


class TestShippedGenerator:
    def test_lies_in_the_inputs_range(self) -> None:
        split = carve(images(600, 0.0, 16.0), reference="generator", reference_size=120)
        low, high = float(split.validation.x.min()), float(split.validation.x.max())
        assert split.reference.shape == (120, 1, 6, 6)
        assert split.reference.dtype == torch.float32
        assert low <= float(split.reference.min()) < low + 0.5
        assert high - 0.5 < float(split.reference.max()) <= high

    def test_flat_features_keep_their_columns_scales(self) -> None:
        x = stream(1).random((400, 2)).astype(np.float32) * [1, 100] + [0, 500]
        split = carve(Data(x, np.arange(400) % 2, x, np.arange(400) % 2), reference="generator")
        for column in range(2):
            drawn, public = split.reference[:, column], split.validation.x[:, column]
            assert float(public.min()) <= float(drawn.min()) < float(drawn.max()) <= float(public.max())
            assert float(drawn.max() - drawn.min()) > 0.8 * float(public.max() - public.min())

    def test_is_a_function_of_the_seed(self) -> None:
        first, again, other = (sha(carve(images(), reference="generator", seed=seed)) for seed in (1, 1, 2))
        assert first == again != other

    def test_tokens_are_refused(self) -> None:
        with pytest.raises(DataError, match="'generator' draws values, but 'arrays' holds tokens"):
            carve(tokens(), reference="generator")


@pytest.mark.thorough
def test_classes_of_a_real_set(real_data: Path) -> None:
    """Every image is one of the named classes in the file, all of these are there, and the task's own data stays."""
    from headwater.data.loading import load

    garments = load("fashion_mnist", real_data)
    x = np.zeros((3000, 28, 28), np.uint8)
    task = Data(x, np.arange(3000) % 2, x[:2], [0, 1], name="task")
    split = carve(task, reference="fashion_mnist", reference_classes=[5, 7, 9], reference_size=600, data_dir=real_data)
    label = {image.tobytes(): int(y) for image, y in zip(garments.train.x.numpy(), garments.train.y, strict=True)}
    assert len(split.reference) == 600
    assert {label[image.tobytes()] for image in split.reference.numpy()} == {5, 7, 9}
    assert len(split.train) == 2700
    assert split.reference_labels is None


@pytest.mark.parametrize(
    "options",
    [
        {"reference_classes": (1, 7), "reference_fraction": 0.5, "reference_labelled": True},
        {"reference": "noise", "reference_noise": "gaussian"},
        {"reference": "generator", "reference_size": 30},
    ],
)
def test_the_configuration_reaches_the_split(options: dict[str, Any]) -> None:
    from headwater.config import Config
    from headwater.data.loading import load
    from headwater.training.experiment import prepare

    found = prepare(Config(data=options, algorithm={"name": "fedavg"}, seed=4)).split
    wanted = carve(load("digits"), seed=4, **options)
    assert torch.equal(found.reference, wanted.reference)
    assert not torch.equal(found.reference, carve(load("digits"), seed=4).reference)
    if wanted.reference_labels is None:
        assert found.reference_labels is None
    else:
        assert torch.equal(found.reference_labels, wanted.reference_labels)  # type: ignore[arg-type]
        assert set(wanted.reference_labels.tolist()) == {1, 7}
