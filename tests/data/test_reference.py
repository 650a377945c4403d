"""What may be asked of a reference set, before anything is loaded."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from headwater.config import Config
from headwater.data import Reference
from headwater.errors import ConfigError

# Options of the reference set, and what the sentence must say; refused alike by the configuration and by hand.
CLASHES: list[tuple[dict[str, Any], str]] = [
    ({"noise": "gaussian"}, "reference_noise = 'gaussian' has no effect, since data.reference is 'holdout'"),
    ({"source": "cifar10", "noise": "gaussian"}, "has no effect, since data.reference is 'cifar10'"),
    ({"source": "noise", "classes": [1]}, "reference_classes picks samples by their labels, but 'noise'"),
    ({"source": "generator", "classes": 3}, "reference_classes picks samples by their labels, but 'generator'"),
    ({"source": "noise", "fraction": 0.5}, "reference_fraction is a share of a set of samples, but 'noise'"),
    ({"source": "generator", "fraction": 0.5}, "say how many with data.reference_size"),
    ({"source": "noise", "labelled": True}, "reference_labelled = true needs a source with labels, and 'noise' has"),
    ({"source": "generator", "labelled": True}, "needs a source with labels, and 'generator' has none"),
    ({"source": "fashion_mnist", "labelled": True}, "cannot be for 'fashion_mnist', whose labels number classes of"),
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"size": -1}, "data.reference_size must be"),
    ({"source": "noise", "noise": "gausian"}, "got 'gausian'; did you mean 'gaussian'?"),
    ({"classes": 0}, "data.reference_classes must"),
    ({"classes": -2}, "data.reference_classes must"),
    ({"classes": [1, 1]}, "got [1, 1]"),
    ({"classes": [0, -1]}, "got [0, -1]"),
    ({"fraction": 0.0}, "data.reference_fraction must be"),
    ({"fraction": 1.01}, "got 1.01"),
]
TYPES = [
    ("data.reference_classes=1.5", "a number of classes or a list of class numbers, each once, got 1.5"),
    ("data.reference_classes=['cat']", "a list of class numbers, each once, got ['cat']"),
    ("data.reference_classes=true", "got true"),
    ("data.reference_fraction=x", "data.reference_fraction must be a number above 0 and of at most 1, got 'x'"),
    ("data.reference_labelled=1", "data.reference_labelled must be true or false, got 1"),
    ("data.reference=generater", "did you mean 'generator'?"),
    ("data.reference_noise=none", "one of 'uniform', 'gaussian', got 'none'"),
    ("data.reference_class=[1]", "did you mean 'data.reference_classes'?"),
]


def as_tree(options: dict[str, Any]) -> dict[str, Any]:
    return {"reference" if key == "source" else f"reference_{key}": value for key, value in options.items()}


@pytest.mark.parametrize(("options", "sentence"), [*CLASHES, *WRONG])
def test_refused_by_the_configuration(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config(data=as_tree(options))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(("options", "sentence"), [*CLASHES, *WRONG])
def test_refused_by_hand_in_like_words(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Reference(**options)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(("pair", "sentence"), TYPES)
def test_values_of_another_kind(pair: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.load(None, [pair])
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"source": "noise", "noise": "gaussian"},
        {"source": "generator"},
        {"classes": [3, 1], "fraction": 0.25, "labelled": True},
        {"source": "fashion_mnist", "classes": 4},
        {"source": "./mine.npz", "labelled": True, "classes": [0]},
        {"source": "mine.made:generate", "labelled": True},
    ],
)
def test_what_fits_comes_back_from_toml(options: dict[str, Any]) -> None:
    config = Config(data=as_tree(options))
    assert Config.from_toml(config.to_toml()) == config
    for key, value in as_tree(options).items():
        assert getattr(config.data, key) == (tuple(value) if isinstance(value, list) else value)


def test_a_class_more_or_less_is_another_run() -> None:
    mine, theirs = (Config(data={"reference": "cifar10", "reference_classes": c}) for c in ([1, 2], [1]))
    assert mine.difference(theirs) == ("data.reference_classes", [1, 2], [1])


def test_checking_imports_no_torch() -> None:
    code = "import sys, headwater.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
