"""F1 to F5, F9, F11 to F13: FedDF in special cases, and what holds in all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import toys
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.feddf import FedDf
from headwater.core.params import Params
from headwater.data.base import Data, Examples
from headwater.data.split import carve
from headwater.specs import DistillSpec, LocalSpec
from headwater.tasks.distill import distill
from headwater.tasks.ensemble import ensemble
from headwater.tasks.optimizers import Stepper
from headwater.tasks.task import TaskContext

LOCAL = LocalSpec(steps=5, batch=8, lr=0.3)
SOME = DistillSpec(epochs=3, batch=8, optimizer="sgd", lr=0.2, mix="logits", weights="uniform")
NONE = replace(SOME, epochs=0)
CLIENTS_F = [toys.blobs(n, seed=i) for i, n in enumerate((12, 5, 9))]
REFERENCE = toys.blobs(20, seed=50).x


def feddf(spec: DistillSpec = SOME, **options: object) -> FedDf:
    return FedDf(LOCAL, spec, drop_worst=False, **options)


def play(method: object, clients: Sequence[Examples] = CLIENTS_F, maker: object = toys.net, rounds: int = 1) -> Params:
    sectors = [i % 2 for i in range(len(clients))]
    return toys.play(method, clients, sectors, maker, rounds, classes=3, reference=REFERENCE)


@pytest.mark.parametrize("by", ["samples", "uniform"])
def test_f1_without_steps(by: str) -> None:
    """F1: no distillation leaves FedAvg with the same weights."""
    assert toys.gap(play(feddf(NONE, by=by), rounds=3), play(FedAvg(LOCAL, by=by), rounds=3)) <= 1e-10
    assert toys.gap(play(feddf(by=by)), play(FedAvg(LOCAL, by=by))) > 1e-4


@pytest.mark.parametrize("mix", ["logits", "probs", "losses"])
def test_f2_one_client(mix: str) -> None:
    """F2: the only teacher is the student's start, so nothing is learnt."""
    one = CLIENTS_F[:1]
    found = play(feddf(replace(SOME, mix=mix)), one, rounds=2)
    assert toys.gap(found, play(FedAvg(LOCAL), one, rounds=2)) <= 1e-10


def members(count: int, seed: int = 0, same: bool = False) -> dict[str, Params]:
    torch.manual_seed(seed)
    made = [toys.params(toys.net(), weight=float(i + 1)) for i in range(count)]
    return {f"c{i}": replace(made[0], weight=float(i + 1)) if same else m for i, m in enumerate(made)}


def at(home: str = "server", **around: object) -> TaskContext:
    around = {"classes": 3, "reference": REFERENCE} | around
    return toys.ctx(toys.context(CLIENTS_F, toys.net, **around), home)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("weights", ["samples", "uniform", "confidence"])
def test_f3_identical_teachers(weights: str, temperature: float) -> None:
    """F3: then the mean of logits, the mean of probabilities and a single teacher are the same."""
    team, here = members(4, same=True), at()
    single = torch.softmax(here.flat_module(team["c0"]).outputs(REFERENCE) / temperature, 1)
    for mix in ("logits", "probs", "losses"):
        found = ensemble(here, team, REFERENCE, mix=mix, weights=weights, temperature=temperature)
        assert toys.gap(found.probs, single) <= 1e-12


class Shifted(torch.nn.Module):
    """A net with a number added to all of its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = toys.net()
        self.shift = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x) + self.shift
        return found


def test_f4_constant_added_to_logits() -> None:
    """F4: a number added to all logits of a teacher changes neither mean."""
    torch.manual_seed(0)
    nets = [Shifted() for _ in range(3)]
    here = toys.ctx(toys.context(CLIENTS_F, Shifted, classes=3), "c0")
    plain = {f"c{i}": toys.params(n) for i, n in enumerate(nets)}
    for i, n in enumerate(nets):
        n.shift.data.fill_(10.0 * i - 7)
    shifted = {f"c{i}": toys.params(n) for i, n in enumerate(nets)}
    for mix in ("logits", "probs"):
        first, second = (ensemble(here, team, REFERENCE, mix=mix).probs for team in (plain, shifted))
        assert toys.gap(first, second) <= 1e-10


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("weights", ["samples", "uniform", "confidence"])
def test_f4_mean_of_probabilities_and_of_losses_have_one_gradient(weights: str, temperature: float) -> None:
    """F4: KL is affine in the teacher up to entropy; the values differ by the members' disagreement, which is ≥ 0."""
    team, here = members(3), at()
    output = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5), requires_grad=True)
    batch, found = torch.arange(20), []
    for mix in ("probs", "losses"):
        target = ensemble(here, team, REFERENCE, mix=mix, weights=weights, temperature=temperature)
        loss = target.loss(batch, output, temperature)
        found.append((float(loss.detach()), torch.autograd.grad(loss, output)[0]))
    assert toys.gap(found[0][1], found[1][1]) <= 1e-12
    assert found[1][0] > found[0][0] > 0


def test_f4_mean_of_losses_by_definition() -> None:
    """The value of `losses` is Σ a_k KL(member k ‖ student)."""
    team, here = members(3), at()
    output = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    logs = torch.log_softmax(output, 1)
    expected = 0.0
    for member in team.values():
        probs = torch.softmax(here.flat_module(member).outputs(REFERENCE), 1)
        expected += member.weight / 6 * float((probs * (probs.log() - logs)).sum(1).mean())
    target = ensemble(here, team, REFERENCE, mix="losses")
    assert float(target.loss(torch.arange(20), output, 1.0)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("by", "weights"), [("uniform", "uniform"), ("samples", "samples")])
def test_f5_f13_linear_models(by: str, weights: str) -> None:
    """F5, F13: of linear softmax models the mean of logits is the mean model, so FedAvg's start is already optimal.

    The loss is 0 there and distillation keeps the parameters, if teachers and start are weighted alike.
    """
    spec = replace(SOME, weights=weights)
    found = play(feddf(spec, by=by), maker=toys.linear)
    start = play(FedAvg(LOCAL, by=by), maker=toys.linear)
    assert toys.gap(found, start) <= 1e-10
    assert toys.gap(play(feddf(replace(spec, mix="probs"), by=by), maker=toys.linear), start) > 1e-4
    here = toys.ctx(toys.context(CLIENTS_F, toys.linear, classes=3), "c0")
    torch.manual_seed(3)
    team = {f"c{i}": toys.params(toys.linear(), weight=float(i + 1)) for i in range(3)}
    target = ensemble(here, team, REFERENCE, mix="logits", weights=weights)
    total = 6.0 if weights == "samples" else 3.0
    share = [m.weight / total if weights == "samples" else 1 / total for m in team.values()]
    mean = replace(team["c0"], vector=sum(s * m.vector for s, m in zip(share, team.values(), strict=True)))
    output = here.flat_module(mean).outputs(REFERENCE)
    assert abs(float(target.loss(torch.arange(20), output, 1.0))) <= 1e-12


def test_f9_cosine() -> None:
    """F9: the rate of step s of N is ½·lr·(1 + cos(πs/N)), whatever ends training early."""
    spec = DistillSpec(steps=8, batch=2, optimizer="sgd", lr=0.4, schedule="cosine")
    flat = at("c0").flat_module(members(1)["c0"])
    stepper, used = Stepper(flat, spec, total=8), []
    for _ in range(8):
        before = flat.vector.clone()
        stepper.step(flat(REFERENCE).square().mean())
        used.append(toys.rate(before, flat.vector, flat.grad))
    assert used == pytest.approx([0.5 * 0.4 * (1 + math.cos(math.pi * s / 8)) for s in range(8)], abs=1e-12)


def test_f11_labels_of_the_reference_set_have_no_effect() -> None:
    """F11: other labels on the rows that become the reference set leave the whole run as it was, bit for bit."""
    data = toys.tiny_data()
    reference = carve(data, validation=0.1, seed=0).reference
    is_reference = (data.train.x[:, None] == reference[None]).all(2).any(1)
    assert int(is_reference.sum()) == len(reference) > 10
    other = torch.where(is_reference, (data.train.y + 1) % 3, data.train.y)
    changed = Data(data.train.x, other, data.test.x, data.test.y)
    for method in ("feddf", "fedhead+"):
        first, second = (toys.tiny_run(method, arrays=d).result for d in (data, changed))
        assert first["partition_sha256"] == second["partition_sha256"]
        assert first["model_sha256"] == second["model_sha256"]


@pytest.mark.parametrize("mix", ["logits", "probs", "losses"])
def test_f12_distillation_brings_the_student_nearer(mix: str) -> None:
    """F12: the mean divergence from the teacher falls."""
    team, here = members(3, seed=4), at()
    start = members(1, seed=9)["c0"]
    spec = replace(SOME, mix=mix, epochs=10)
    target = ensemble(here, team, REFERENCE, mix=mix, weights="uniform")
    taught = distill(here, start=start, teachers=team, spec=spec)
    rows = torch.arange(20)
    before, after = (float(target.loss(rows, here.flat_module(m).outputs(REFERENCE), 1.0)) for m in (start, taught))
    assert after < 0.9 * before


def test_previous_start() -> None:
    """`init_from = "previous"` starts the student at the last fused model, not at the mean."""
    method = feddf(NONE, init_from="previous")
    torch.manual_seed(0)
    with toys.lab(method, CLIENTS_F, (0, 1, 0), toys.net, classes=3, reference=REFERENCE) as lab:
        before = lab.model.vector.clone()
        assert torch.equal(lab.round().vector, before)
