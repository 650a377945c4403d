"""Modules of one's own as extractor and classifier: found, refused, and the same in every method as if written so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import chosen
import toys
from headwater.core.params import Params
from headwater.errors import ConfigError
from headwater.models.base import ModelSpec, Net
from headwater.models.fit import fitted
from headwater.models.parts import layers_before, need_parts, split, width_of
from headwater.planning import plan
from headwater.tasks.flat_module import FlatModule
from headwater.training.loop import train

Maker = Callable[[], nn.Module]


def layers() -> list[nn.Module]:
    return [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)]


def written() -> nn.Module:
    """As methods would have it."""
    *first, last = layers()
    return Net(nn.Sequential(*first), last)


def plain() -> nn.Module:
    return nn.Sequential(*layers())


class Odd(nn.Module):
    """Names of its own, the classifier in the middle, and more linear layers of as many outputs."""

    def __init__(self) -> None:
        super().__init__()
        first, self.n, _, self.away, self.squeeze_, _, self.verdict = layers()
        self.a = first
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.away(torch.relu(self.n(self.a(x * self.scale))))
        return self.verdict(input=torch.tanh(self.squeeze_(x)))  # type: ignore[no-any-return]


class Nested(nn.Module):
    """A classifier deep inside, whose output is seen through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"body": plain()})

    def forward(self, x: Tensor) -> Tensor:
        return self.inner["body"](x).view(len(x), -1)  # type: ignore[no-any-return]


class Pooled(nn.Module):
    """Parts with the right names that are not all: as image nets of libraries have them."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
        self.classifier = nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.features(x), 2)
        return self.classifier(torch.flatten(x, 1))  # type: ignore[no-any-return]


class Tied(nn.Module):
    """The classifier's weights are the first layer's too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mix, self.last = nn.Linear(4, 3), nn.Linear(3, 4), nn.Linear(4, 3)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.mix(torch.tanh(self.first(x)))))  # type: ignore[no-any-return]


class After(nn.Module):
    def __init__(self, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.two, self.then = nn.Linear(4, 5), nn.Linear(5, 3), then

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self.two(torch.relu(self.one(x))))


class Loose(nn.Module):
    """A classifier without a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


class Erasing(nn.Module):
    """What went into the classifier is gone afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.one(x)
        out: Tensor = self.two(hidden)
        hidden.zero_()
        return out


class Doubled(nn.Module):
    """Somebody listens to the classifier and doubles what goes into it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 5), nn.Linear(5, 3)
        self.two.register_forward_pre_hook(lambda layer, given: (given[0] * 2,))

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x))  # type: ignore[no-any-return]


class Sometimes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = (self.one if self.training else self.two)(x)
        return out


def spec_of(maker: Maker, shape: tuple[int, ...] = (4,)) -> ModelSpec:
    return fitted(ModelSpec("custom", shape, 3, builder=maker), None)


class TestFinds:
    @pytest.mark.parametrize(
        ("maker", "shape", "head"),
        [
            (written, (4,), None),
            (plain, (4,), "6"),
            (Odd, (4,), "verdict"),
            (Nested, (4,), "inner.body.6"),
            (Pooled, (1, 4, 4), "classifier.3"),
            (Tied, (4,), "last"),
            (lambda: nn.Linear(4, 3), (4,), ""),
            (lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)), nn.Identity()), (4,), "0.1"),
        ],
    )
    def test_the_layer_that_gives_the_output(self, maker: Maker, shape: tuple[int, ...], head: str | None) -> None:
        spec = spec_of(maker, shape)
        assert spec.head == head
        need_parts(spec, "this method")
        flat = FlatModule(spec, "custom")
        x = torch.randn(7, *shape)
        flat.module.eval()
        with torch.no_grad():
            features = flat.features(x)
            assert features.dim() == 2
            assert features.shape[1] == width_of(spec)
            assert torch.equal(flat.classify(features), flat(x))
        assert torch.equal(flat.represent(x), features)

    def test_looking_leaves_no_trace(self) -> None:
        torch.manual_seed(0)
        before = torch.random.get_rng_state()
        spec = spec_of(Odd)
        assert torch.equal(torch.random.get_rng_state(), before)
        flat = FlatModule(spec, "custom")
        flat.features(torch.randn(3, 4))
        assert not any(part._forward_hooks or part._forward_pre_hooks for part in flat.module.modules())
        assert flat.layout.trainable[0][0] == "n.weight"

    def test_gradients_go_through_the_features(self) -> None:
        flat = FlatModule(spec_of(plain), "custom")
        flat.train(8)
        features = flat.features(torch.randn(8, 4))
        (flat.classify(features).square().sum() + features.sum()).backward()
        assert all(float(p.grad.abs().sum()) > 0 for p in flat.module.parameters() if p.grad is not None)

    def test_the_classifier_of_a_model_by_its_own_names(self) -> None:
        """Tied weights travel under their first name."""
        torch.manual_seed(0)
        model = Tied()
        head = FlatModule(spec_of(Tied), "custom").head(Params.of(model, "custom"))
        assert sorted(head) == ["bias", "weight"]
        assert torch.equal(head["weight"], model.first.weight)
        assert torch.equal(head["bias"], model.last.bias)

    def test_layers_that_follow_one_another(self) -> None:
        found = layers_before(plain(), "6", "fedalign")
        assert [type(part).__name__ for part in found.children()] == [type(part).__name__ for part in layers()[:-1]]
        with pytest.raises(ConfigError, match=r"fedalign looks into the layers .* Odd does not tell"):
            layers_before(Odd(), "verdict", "fedalign")


class TestRefuses:
    @pytest.mark.parametrize(
        ("maker", "reason"),
        [
            (lambda: After(lambda x: torch.softmax(x, 1)), "after 'two' something else follows"),
            (lambda: After(lambda x: torch.log_softmax(x, 1)), "after 'two' something else follows"),
            (lambda: After(nn.Dropout(0.01)), "its output in training is not that of a linear layer"),
            (lambda: After(nn.ReLU(inplace=True)), "'two', or comes out of it, is overwritten"),
            (lambda: After(nn.Linear(3, 3).requires_grad_().forward), "after 'two' something else follows"),
            (lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), "after '0' something else follows"),
            (Loose, "it calls no linear layer"),
            (Erasing, "what goes into its layer 'two', or comes out of it, is overwritten"),
            (Sometimes, "its output is that of 'two' in evaluation and of 'one' in training"),
            (lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Linear(4, 3), nn.Flatten()), "a change of shape"),
            (Doubled, "its layer 'two' gives something else when it is called by itself"),
        ],
    )
    def test_with_the_reason(self, maker: Maker, reason: str) -> None:
        spec = spec_of(maker)
        assert spec.head is None
        with pytest.raises(ConfigError) as caught:
            need_parts(spec, "method 'moon'")
        assert str(caught.value).startswith("method 'moon' needs a model in two parts, extractor and classifier, and")
        assert reason in str(caught.value)

    @pytest.mark.parametrize("method", ["fedhkd", "moon", "fedproto", "fedgen"])
    def test_only_where_a_method_needs_it(self, method: str) -> None:
        def maker() -> nn.Module:
            return After(lambda x: torch.log_softmax(x, 1))

        with pytest.raises(ConfigError, match=f"method '{method}' needs a model in two parts"):
            toys.tiny(method, model=maker)
        assert toys.tiny_run("fedavg", model=maker).accuracy > 0

    def test_in_a_slot_of_the_frame(self) -> None:
        with pytest.raises(ConfigError, match="local = 'moon' needs a model in two parts"):
            toys.tiny("frame", algorithm={"local": "moon"}, model=Loose)

    def test_a_listed_model_is_never_looked_at(self) -> None:
        need_parts(ModelSpec("vgg9", (3, 32, 32), 3), "this method")


METHODS: dict[str, dict[str, Any]] = {
    "fedhkd": {},
    "moon": {"algorithm": {"mu": 2.0}},
    "fedproto": {"algorithm": {"collect": "during", "share_params": True}},
    "fedgen": {"algorithm": {"gen_epochs": 3, "gen_hidden": 8}},
    "frame": {"algorithm": {"local": "moon"}},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("maker", chosen.first([plain, Odd, Nested], [Nested]))
def test_a_method_does_the_same_as_with_parts_of_ones_own(method: str, maker: Maker) -> None:
    """Same draws, same order of layers: the weights agree to the last bit, under the module's own names."""
    own, other = (toys.tiny_run(method, model=each, **METHODS[method]) for each in (maker, written))
    expected = sorted(name for name, _ in maker().named_parameters())
    assert sorted(name for name, _ in own.params[""].layout.trainable) == expected
    found, wanted = (
        {tuple(t.shape): t for name, t in run.params[""].named().items() if "weight" in name} for run in (own, other)
    )
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[shape], wanted[shape]) for shape in found)
    assert own.accuracy == other.accuracy
    assert own.result["ledger"]["server_sector"]["up_bytes"] >= other.result["ledger"]["server_sector"]["up_bytes"]


@pytest.mark.parametrize("method", ["fedalign", "fedma"])
def test_methods_that_look_into_the_layers(method: str) -> None:
    def chain(*, apart: bool) -> nn.Module:
        parts = [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU()]
        return Net(nn.Sequential(*parts), nn.Linear(5, 3)) if apart else nn.Sequential(*parts, nn.Linear(5, 3))

    own, other = (toys.tiny_run(method, model=lambda apart=apart: chain(apart=apart)) for apart in (False, True))
    assert torch.equal(own.params[""].vector, other.params[""].vector)
    assert own.params[""].layout.trainable[0][0] == "0.weight"


@pytest.mark.parametrize("method", ["fedavg", "fedhkd", "fedgen"])
def test_tied_weights_stay_tied(method: str) -> None:
    run = toys.tiny_run(method, model=Tied)
    model = run.model
    assert isinstance(model, Tied)
    assert model.last.weight is model.first.weight
    assert torch.equal(model.first.weight, run.params[""].named()["first.weight"])
    assert run.params[""].layout.size == 12 + 3 + 12 + 4 + 3


def test_a_convolution_is_folded_behind_the_split() -> None:
    """Evaluation runs a twin of the module whose layers are numbered otherwise."""

    def maker() -> nn.Module:
        first = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5))
        return nn.Sequential(*first, nn.Linear(5, 3))

    flat = FlatModule(spec_of(maker, (1, 4, 4)), "custom")
    assert flat._twin is not None
    x = torch.randn(9, 1, 4, 4)
    with torch.no_grad():
        expected = nn.Sequential(*list(flat.module.eval().children())[:-1])(x)
    torch.testing.assert_close(flat.represent(x), expected)


@pytest.mark.thorough
def test_the_split_is_the_same_in_every_process() -> None:
    """The spec carries it to workers."""
    made = toys.tiny("fedproto", model=Odd, engine={"name": "pool", "workers": 2})
    alone = toys.tiny("fedproto", model=Odd)
    assert made.model.head == alone.model.head == "verdict"
    assert train(made).result["model_sha256"] == train(alone).result["model_sha256"]


def test_a_value_error_tells_why() -> None:
    with pytest.raises(ValueError, match="calls no linear layer"):
        split(Loose(), torch.zeros(2, 4))


@pytest.mark.parametrize("method", ["fedhkd", "fedproto"])
def test_what_will_be_sent_is_known_before(method: str) -> None:
    """A plan finds the features of a module of one's own, and counts their bytes."""
    made = toys.tiny(method, model=Odd, algorithm={"share_params": True} if method == "fedproto" else {})
    found, sent = plan(made).traffic, train(made).ledger.summary()
    assert found is not None
    told = found.to_dict()
    for tier in ("server_sector", "sector_client"):
        assert {key: told[tier][key] for key in sent[tier]} == sent[tier]
