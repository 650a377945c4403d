"""FedMD's second head, as FedHEAD's program has it: a step by hand, means by samples, and what it leaves alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import toys
from headwater.algorithms.fedmd import HEAD
from headwater.errors import ConfigError
from headwater.models.base import ModelSpec, Net
from headwater.specs import LocalSpec
from headwater.tasks.consensus import Rows, digest_with_head, mean_of, predict_with_head
from headwater.tasks.task import RunContext
from headwater.training.loop import train

REFERENCE = toys.blobs(6, seed=9).x
TWO = {"flavour": "fedhead", "public_classes": 3, "align": 12}


def net() -> nn.Module:
    return Net(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 3)).double()


def around() -> RunContext:
    made = toys.context([toys.blobs(8), toys.blobs(4, seed=1)], net, classes=3, reference=REFERENCE)
    head = partial(nn.Linear, 4, 5, dtype=torch.float64)
    made.models = {**made.models, HEAD: ModelSpec(HEAD, (4,), 5, builder=head)}
    return made


def test_one_step_by_hand() -> None:
    """Extractor and second head move against the gradient of the cross-entropy; the first head stays."""
    made = around()
    start, head = made.initial(toys.ARCH, 0), made.initial(HEAD, 0)
    body, top = start.load_into(net()), head.load_into(nn.Linear(4, 5, dtype=torch.float64))
    everything = Rows(99)
    x, target = everything.of(REFERENCE), torch.softmax(torch.arange(30.0, dtype=torch.float64).view(6, 5) % 4, dim=1)
    F.cross_entropy(top(body.features(x)), target).backward()  # type: ignore[operator, no-untyped-call]
    spec = LocalSpec(steps=1, batch=6, lr=0.3, optimizer="sgd")
    found = digest_with_head(toys.ctx(made), start, head, REFERENCE, target, everything, spec)
    for part, module in (("model", body), ("head", top)):
        after = found[part].named()
        for name, parameter in module.named_parameters():
            moved = parameter.detach() - 0.3 * (parameter.grad if parameter.grad is not None else 0.0)
            assert toys.gap(after[name], moved) <= 1e-12
    assert found["head"].weight == 8.0  # samples of c0
    assert body.get_parameter("classifier.weight").grad is None


def test_predictions_are_averaged_by_samples() -> None:
    made = around()
    head = made.initial(HEAD, 0)
    models = {client: made.initial(toys.ARCH, number) for number, client in enumerate(("c0", "c1"))}
    shares = {c: predict_with_head(toys.ctx(made, c), m, head, REFERENCE, Rows(99)) for c, m in models.items()}
    assert [samples for _, samples in shares.values()] == [8, 4]
    assert shares["c0"][0].shape == (6, 5)
    mean, total = mean_of(toys.ctx(made, "server"), shares)
    assert total == 12
    assert toys.gap(mean, (8 * shares["c0"][0] + 4 * shares["c1"][0]) / 12) <= 1e-12


def test_without_public_training_it_is_fedavg() -> None:
    alone = TWO | {"pretrain_epochs": 0, "digest_epochs": 0}
    found = toys.tiny_run("fedmd", algorithm=alone)
    assert found.result["model_sha256"] == toys.tiny_run("fedavg").result["model_sha256"]
    taught = toys.tiny_run("fedmd", algorithm=TWO | {"pretrain_epochs": 1, "digest_epochs": 1})
    assert taught.result["model_sha256"] != found.result["model_sha256"]
    flat, tree = (
        toys.tiny_run("fedmd", algorithm=TWO | {"pretrain_epochs": 1, "through_sectors": through})
        for through in (False, True)
    )
    assert flat.result["loss"] == pytest.approx(tree.result["loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        ({"flavour": "original", "public_classes": 3}, "second head of flavour = 'fedhead'"),
        ({"flavour": "fedhead", "public_classes": 2}, "data.reference has 3 classes; use 3"),
    ],
)
def test_refused(algorithm: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        train(toys.tiny("fedmd", algorithm=algorithm))
    noise = {"data": {"name": "arrays", "reference": "noise"}}
    with pytest.raises(ConfigError, match="needs public data with labels"):
        train(toys.tiny("fedmd", algorithm=TWO | {"pretrain_epochs": 1}, **noise))
