"""ModelSpec, and what every listed model promises."""

from __future__ import annotations

import pickle
import re

import pytest
import torch
from torch import nn

from headwater.errors import ConfigError
from headwater.models import MODELS
from headwater.models.base import ModelSpec

IMAGE = {"linear": (3, 32, 32), "mlp": (3, 32, 32), "cnn": (3, 32, 32), "resnet8": (3, 32, 32), "vgg9": (3, 32, 32)}


def built(spec: ModelSpec, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return spec.build()


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))


def sized(width: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.Linear(width, 3))


def not_a_module() -> int:
    return 3


@pytest.mark.parametrize("name", list(MODELS))
class TestEveryModel:
    def test_gives_logits_through_its_two_parts(self, name: str) -> None:
        model = built(ModelSpec(name, IMAGE[name], 7), 0).eval()
        x = torch.rand(5, *IMAGE[name])
        features = model.get_submodule("features")(x)
        assert features.dim() == 2
        assert features.shape[0] == 5
        assert model(x).shape == (5, 7)
        assert torch.equal(model(x), model.get_submodule("classifier")(features))

    def test_same_seed_same_weights(self, name: str) -> None:
        spec = ModelSpec(name, IMAGE[name], 4)
        first, again, other = (built(spec, seed).state_dict() for seed in (1, 1, 2))
        assert all(torch.equal(first[key], again[key]) for key in first)
        assert any(not torch.equal(first[key], other[key]) for key in first)

    def test_every_parameter_gets_a_gradient(self, name: str) -> None:
        model = built(ModelSpec(name, IMAGE[name], 4), 0).train()
        model(torch.rand(6, *IMAGE[name])).pow(2).sum().backward()
        assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters())

    def test_outline_draws_nothing_and_counts_alike(self, name: str) -> None:
        spec = ModelSpec(name, IMAGE[name], 4)
        torch.manual_seed(5)
        before = torch.random.get_rng_state()
        assert spec.count() == sum(p.numel() for p in built(spec, 5).parameters())
        torch.manual_seed(5)
        spec.outline()
        assert torch.equal(torch.random.get_rng_state(), before)

    def test_spec_survives_pickling(self, name: str) -> None:
        spec = ModelSpec(name, IMAGE[name], 4)
        again = pickle.loads(pickle.dumps(spec))
        assert again == spec
        assert again.count() == spec.count()

    def test_refuses_an_unknown_option(self, name: str) -> None:
        with pytest.raises(ConfigError, match=f"model '{name}' has no option 'colour'"):
            ModelSpec(name, IMAGE[name], 4, {"colour": 1})


class TestAccepts:
    def test_auto_is_replaced_by_a_name(self) -> None:
        assert ModelSpec("auto", (1, 8, 8), 10).name == "cnn"

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
            ("resnet8", (3, 32, 32), {"norm": "none"}, "norm 'none' (accepted: batch, group)"),
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
