"""ModelSpec, and the contract of every listed network. New ones are found by scanning."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from headwater.errors import ConfigError
from headwater.models import MODELS
from headwater.models.base import ModelSpec
from models.contract import CHECKS, check_model, check_parts

IMAGE, TEXT = (3, 16, 16), (9,)
PRETRAINED = ("distilbert", "transformer")
OPTIONS: dict[str, dict[str, object]] = {
    "bag_of_words": {"words": 20, "embedding": 4},
    "bilstm": {"words": 20, "embedding": 4, "widths": [5, 3], "hidden": [6, 4]},
}


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with the configuration of a very small transformer, and no weights."""
    from transformers import DistilBertConfig

    folder = tmp_path_factory.mktemp("distilbert")
    sizes = {"vocab_size": 20, "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 16}
    DistilBertConfig(max_position_embeddings=12, **sizes).save_pretrained(folder)
    return str(folder)


# Smaller relatives of these are tested quickly.
LARGE = ("resnet18", "resnet20", "resnet32", "resnet56", "shufflenetv2", "distilbert")


@pytest.fixture(params=[pytest.param(m, marks=pytest.mark.thorough) if m in LARGE else m for m in MODELS])
def spec(request: pytest.FixtureRequest) -> ModelSpec:
    """Every listed model, as small as it can be asked for."""
    name = request.param
    options = {"path": request.getfixturevalue("tiny_bert")} if name in PRETRAINED else OPTIONS.get(name, {})
    return ModelSpec(name, TEXT if MODELS[name].info.tokens else IMAGE, 7, options)


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))


def sized(width: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.Linear(width, 3))


def not_a_module() -> int:
    return 3


class TestEveryModel:
    @pytest.mark.parametrize("check", [*CHECKS, check_parts], ids=lambda check: check.__name__)
    def test_keeps_the_contract(self, spec: ModelSpec, check: Callable[[ModelSpec], None]) -> None:
        check(spec)

    def test_refuses_an_unknown_option(self, spec: ModelSpec) -> None:
        with pytest.raises(ConfigError, match=f"model '{spec.name}' has no option 'colour'"):
            ModelSpec(spec.name, spec.shape, 4, {"colour": 1})

    def test_takes_inputs_of_another_kind_or_refuses_them(self, spec: ModelSpec) -> None:
        try:
            assert ModelSpec(spec.name, IMAGE if spec.tokens else TEXT, 7, spec.options).count() > 0
        except ConfigError as error:
            if not re.search(rf"{spec.name} takes .* got inputs of shape", str(error)):
                raise


def test_a_network_of_ones_own_keeps_the_contract() -> None:
    check_model(ModelSpec("mine", (4,), 3, builder=two_layers), parts=False)


class TestAccepts:
    def test_auto_is_replaced_by_a_name(self) -> None:
        assert ModelSpec("auto", (1, 8, 8), 10).name == "cnn"
        assert ModelSpec("auto", (8,), 10, tokens=True).name == "bag_of_words"

    def test_a_callable(self) -> None:
        spec = ModelSpec("mine", (4,), 3, builder=two_layers)
        assert spec.count() == 15
        assert spec.build()(torch.ones(2, 4)).shape == (2, 3)

    def test_building_ones_own_model_for_its_outline_leaves_the_generator_alone(self) -> None:
        torch.manual_seed(3)
        before = torch.random.get_rng_state()
        ModelSpec("mine", (4,), 3, builder=two_layers).outline()
        assert torch.equal(torch.random.get_rng_state(), before)

    def test_an_imported_function_with_options(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import sys
        import types

        module = types.ModuleType("a_users_module")
        module.sized = sized  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "a_users_module", module)
        assert ModelSpec("a_users_module:sized", (4,), 3, {"width": 2}).count() == 10 + 9
        with pytest.raises(ConfigError, match=r"cannot be called with the options \{'depth': 2\}"):
            ModelSpec("a_users_module:sized", (4,), 3, {"depth": 2}).build()


class TestRefuses:
    @pytest.mark.parametrize(
        ("name", "shape", "options", "sentence"),
        [
            ("resnet8", (3, 32, 32), {"shortcuts": "padding"}, "no option 'shortcuts'; did you mean 'shortcut'?"),
            ("linear", (8,), {"hidden": 3}, "model 'linear' has no option 'hidden' (it has no options)"),
        ],
    )
    def test_option_names_at_once(
        self, name: str, shape: tuple[int, ...], options: dict[str, object], sentence: str
    ) -> None:
        with pytest.raises(ConfigError, match=re.escape(sentence)):
            ModelSpec(name, shape, 10, options)

    @pytest.mark.parametrize(
        ("name", "shape", "options", "sentence"),
        [
            ("resnet8", (3, 32, 32), {"shortcut": "paddling"}, "shortcut 'paddling'; did you mean 'padding'?"),
            ("resnet8", (3, 32, 32), {"norm": "layer"}, "norm 'layer' (accepted: batch, group, none)"),
            ("resnet20", (3, 32, 32), {"width": 0}, "resnet20 takes width as a whole number of at least 1"),
            ("resnet18", (3, 32, 32), {"norm": "none"}, "norm 'none' (accepted: batch, group)"),
            ("resnet18", (3, 32, 32), {"stem": "big"}, "resnet18 does not know stem 'big' (accepted: imagenet, small)"),
            ("resnet18", (3, 32, 32), {"features": -2}, "features as a whole number, 0 for its own, got -2"),
            ("wrn16_2", (3, 4, 32), {}, "wrn16_2 takes images (channels, height, width) of at least 8 x 8 px"),
            ("mtgc_cnn", (1, 15, 15), {}, "mtgc_cnn takes images (channels, height, width) of at least 16 x 16 px"),
            ("bilstm", (9,), {"words": 0}, "bilstm takes words as a whole number of at least 1, got 0"),
            ("bilstm", (9,), {"widths": []}, "at least one width of a recurrent layer"),
            ("bilstm", (9,), {"activation": "tanh"}, "activation 'tanh'"),
            ("resnet8", (3, 32, 32), {"norm": "group", "groups": 3}, "groups must divide the 16 channels"),
            ("resnet8", (64,), {}, "resnet8 takes images"),
            ("cnn", (1, 2, 2), {}, "at least 4 x 4 px"),
            ("cnn", (1, 8, 8), {"norm": "layer"}, "norm 'layer'"),
            ("cnn", (1, 8, 8), {"widths": []}, "at least one width"),
            ("cnn", (1, 8, 8), {"hidden": -1}, "hidden as a whole number, 0 for none, got -1"),
            ("mlp", (8,), {"hidden": [10, 0]}, "hidden as a list of positive whole numbers"),
            ("mlp", (8,), {"hidden": "200"}, "got '200'"),
        ],
    )
    def test_values_when_outlined(
        self, name: str, shape: tuple[int, ...], options: dict[str, object], sentence: str
    ) -> None:
        with pytest.raises(ConfigError, match=re.escape(sentence)):
            ModelSpec(name, shape, 10, options).outline()

    def test_one_class(self) -> None:
        with pytest.raises(ConfigError, match="at least 2 classes, got 1"):
            ModelSpec("mlp", (8,), 1)

    def test_what_is_no_module(self) -> None:
        with pytest.raises(ConfigError, match=r"gave a int; it must return a torch\.nn\.Module"):
            ModelSpec("mine", (8,), 2, builder=not_a_module).build()  # type: ignore[arg-type]

    def test_options_for_a_callable(self) -> None:
        with pytest.raises(ConfigError, match="takes no options"):
            ModelSpec("mine", (8,), 2, {"hidden": 3}, builder=two_layers)


def test_an_outline_is_built_once_and_does_not_travel_with_the_description() -> None:
    spec = ModelSpec("cnn", IMAGE, 7)
    assert spec.outline() is spec.outline()
    assert all(parameter.is_meta for parameter in spec.outline().parameters())
    fresh = pickle.loads(pickle.dumps(spec))
    assert fresh == spec
    assert fresh.outline() is not spec.outline()
    own = ModelSpec("own", (4,), 3, builder=two_layers)
    assert own.outline() is not own.outline()
