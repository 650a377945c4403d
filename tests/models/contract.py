"""The contract of a network, for listed ones and for a user's own.

A test file for a network of one's own calls it with a spec:

    from models.contract import check_model

    def test_contract(): check_model(ModelSpec("mine:Net", (1, 8, 8), 10))

Methods that use extractor and classifier separately need a model in two parts; pass `parts=False` for one without.
"""

from __future__ import annotations

import pickle

import torch
from torch import Tensor, nn

from headwater.core.params import Layout
from headwater.models.base import ModelSpec

WORDS = 20  # token numbers that a network under test must know


def built(spec: ModelSpec, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return spec.build()


def inputs(spec: ModelSpec, rows: int) -> Tensor:
    return torch.randint(WORDS, (rows, *spec.shape)) if spec.tokens else torch.rand(rows, *spec.shape)


def check_logits(spec: ModelSpec) -> None:
    """One logit per class, for each sample."""
    assert built(spec, 0).eval()(inputs(spec, 5)).shape == (5, spec.classes)


def check_parts(spec: ModelSpec) -> None:
    """The model is `classifier(features(x))`, with one row of features per sample."""
    model, x = built(spec, 0).eval(), inputs(spec, 5)
    features = model.get_submodule("features")(x)
    assert features.dim() == 2
    assert features.shape[0] == 5
    assert torch.equal(model(x), model.get_submodule("classifier")(features))


def check_samples_independent(spec: ModelSpec) -> None:
    """In evaluation, a sample's logits do not depend on the other samples of its batch."""
    model, x = built(spec, 0).double().eval(), inputs(spec, 4)
    x = x if spec.tokens else x.double()
    torch.testing.assert_close(model(x)[:1], model(x[:1]), rtol=1e-9, atol=1e-9)


def check_seed(spec: ModelSpec) -> None:
    """Initial weights come from torch's global generator, so a seed decides them."""
    first, again, other = (built(spec, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def check_gradients(spec: ModelSpec) -> None:
    """Every trainable parameter gets a finite gradient."""
    model = built(spec, 0).train()
    model(inputs(spec, 6)).pow(2).sum().backward()
    trained = [p for p in model.parameters() if p.requires_grad]
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in trained)


def check_outline(spec: ModelSpec) -> None:
    """The outline has the model's names, shapes and count, and leaves torch's generator as it was."""
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    assert spec.count() == sum(p.numel() for p in built(spec, 5).parameters() if p.requires_grad)
    torch.manual_seed(5)
    spec.outline()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert Layout.of(spec.outline(), "a") == Layout.of(built(spec, 0), "a")


def check_pickling(spec: ModelSpec) -> None:
    """A spec can be sent to a worker process."""
    again = pickle.loads(pickle.dumps(spec))
    assert again == spec
    assert again.count() == spec.count()


CHECKS = (check_logits, check_samples_independent, check_seed, check_gradients, check_outline, check_pickling)


def check_model(spec: ModelSpec, *, parts: bool = True) -> None:
    """The whole contract.

    Args:
        spec: of the network.
        parts: whether it has an extractor `features` and a `classifier`.
    """
    for check in (*CHECKS, *((check_parts,) if parts else ())):
        check(spec)
