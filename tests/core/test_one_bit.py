"""One-bit models travel packed: exactly, in an eighth of a byte per weight, and charged as such."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import toys
from headwater.algorithms import base, feddf
from headwater.core import serialization
from headwater.core.federation import SERVER
from headwater.core.one_bit import OneBit
from headwater.models.base import ModelSpec
from headwater.planning import plan
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.low_bit import Bits, one_bit_names
from headwater.training.loop import train


def net() -> FlatModule:
    """Five filters of 3 x 3 with a bias, batch norm, and a linear layer: 45 + 5 + 10 + 10 + 40 + 2 numbers."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(20, 2))

    return FlatModule(ModelSpec("custom", (1, 4, 4), 2, builder=build), "own")


def test_a_packed_model_by_hand() -> None:
    """92 weights in 12 bytes, 5 + 1 + 1 + 1 pairs of values; batch norm and its statistics as they are."""
    made = net()
    Bits(made, "feedback")
    model = made.params(weight=7.0)
    packed = OneBit.of(model, one_bit_names(made))
    assert packed.names == ("0.weight", "0.bias", "3.weight", "3.bias")
    assert (packed.bits.nbytes, tuple(packed.levels.shape), packed.rest.numel()) == (12, (2, 8), 20)
    assert packed.nbytes == 12 + 4 * (16 + 20) + 8
    back = packed.unpacked()
    assert torch.equal(back.vector, model.vector)
    assert torch.equal(back.counters, model.counters)
    assert (back.layout, back.weight) == (model.layout, 7.0)
    outline = OneBit.outline(model, packed.names)
    assert outline.nbytes == packed.nbytes
    assert serialization.info(packed) == (packed.nbytes, 1, "model")


def test_it_is_written_and_read() -> None:
    made = net()
    Bits(made, "feedback")
    packed = OneBit.of(made.params(weight=1.0), one_bit_names(made))
    skeleton, tensors = serialization.flatten(packed)
    assert sum(tensor.nbytes for tensor in tensors) == packed.nbytes
    again = serialization.rebuild(skeleton, tensors)
    assert torch.equal(again.unpacked().vector, packed.unpacked().vector)
    serialization.write(packed, io.BytesIO())


def test_parts_that_do_not_fit_are_refused() -> None:
    made = net()
    packed = OneBit.of(made.params(weight=1.0), one_bit_names(made))
    with pytest.raises(ValueError, match="parts of shapes"):
        replace(packed, bits=packed.bits[:-1]).unpacked()


@pytest.mark.parametrize("way", ["feedback", "straight-through"])
@pytest.mark.parametrize(
    "method", ["feddf", *(pytest.param(m, marks=pytest.mark.thorough) for m in ("fedavg", "fedprox"))]
)
def test_runs_are_as_before_and_bytes_as_planned(method: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same model as if models were sent as they are; the plan, the ledger and the payload agree."""
    options: dict[str, Any] = {"local": {"low_bit": way}, "partition": {"clients": 4, "sectors": 2}}
    made = toys.tiny(method, **options)
    packed = train(made)
    planned, sent = plan(made).traffic, packed.ledger.bytes("server_sector", "up")
    assert planned is not None
    assert sent == planned.total["server_sector"]["up_bytes"]
    one = OneBit.of(packed.params[""], tuple(name for name, _ in packed.params[""].layout.trainable))
    assert sent == one.nbytes * packed.ledger.summary()["server_sector"]["up_models"]
    assert packed.ledger.bytes("server_sector", "down") > 3 * sent
    for module in (base, feddf):
        monkeypatch.setattr(module, "up_models", lambda fed, local, spec, to=SERVER: fed.up(local, to=to))
    plain = train(toys.tiny(method, **options))
    assert plain.result["model_sha256"] == packed.result["model_sha256"]
    assert plain.ledger.bytes("server_sector", "up") > 3 * sent


def test_sectors_unpack_what_they_average() -> None:
    """From clients a bit per weight, from sectors means of full precision; the same result to rounding."""
    options: dict[str, Any] = {"local": {"low_bit": "feedback"}, "partition": {"clients": 4, "sectors": 2}}
    flat, staged = (toys.tiny_run("fedavg", algorithm={"through_sectors": t}, **options) for t in (False, True))
    assert toys.gap(flat.params[""], staged.params[""]) < 1e-5
    near, far = (staged.ledger.summary()[tier] for tier in ("sector_client", "server_sector"))
    assert near["up_bytes"] / near["up_models"] < far["up_bytes"] / far["up_models"] / 3
