"""H1 to H6, H12, H13: what FedHEAD and FedHEAD+ become in special cases, and what labels and leaders do to a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import toys
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.feddf import FedDf
from headwater.algorithms.fedhead import FedHead, FedHeadPlus
from headwater.core.federation import CLIENTS, SECTORS, SERVER
from headwater.core.params import Params
from headwater.core.sampling import choose
from headwater.data.base import Examples
from headwater.specs import DistillSpec, LocalSpec
from headwater.tasks.average import average
from headwater.tasks.distill import distill
from headwater.tasks.local import local_train

LOCAL = LocalSpec(steps=5, batch=8, lr=0.3)
FULL = LocalSpec(steps=3, batch=99, lr=0.3)
SOME = DistillSpec(epochs=3, batch=8, optimizer="sgd", lr=0.2)
WHOLE = DistillSpec(epochs=3, batch=99, optimizer="sgd", lr=0.2)
NONE = replace(SOME, epochs=0)
CLIENTS_H = [toys.blobs(n, seed=i) for i, n in enumerate((12, 5, 9, 1, 7))]
MAP = (0, 1, 0, 1, 1)
REFERENCE = toys.blobs(20, seed=50).x


def play(
    method: object, clients: Sequence[Examples] = CLIENTS_H, sectors: Sequence[int] = MAP, rounds: int = 1
) -> Params:
    return toys.play(method, clients, sectors, toys.net, rounds, classes=3, reference=REFERENCE)


def test_h1_without_sector_distillation() -> None:
    """H1: no steps at the leaders gives z, which is FedAvg's result."""
    assert toys.gap(play(FedHead(LOCAL, NONE), rounds=3), play(FedAvg(LOCAL), rounds=3)) <= 1e-10
    assert toys.gap(play(FedHead(LOCAL, SOME)), play(FedAvg(LOCAL))) > 1e-4


def test_h2_without_server_distillation() -> None:
    """H2: FedHEAD+ without steps at the server is FedHEAD."""
    plain, plus = play(FedHead(LOCAL, SOME), rounds=2), play(FedHeadPlus(LOCAL, SOME, NONE), rounds=2)
    assert torch.equal(plain.vector, plus.vector)
    assert toys.gap(plain, play(FedHeadPlus(LOCAL, SOME, SOME), rounds=2)) > 1e-4


@pytest.mark.parametrize("sectors", [(0, 0, 0, 0, 0), MAP, (0, 1, 2, 3, 4)])
def test_h3_leaders_teach_nothing_new_without_sector_distillation(sectors: Sequence[int]) -> None:
    """H3: all leaders then hold z, so the server's teacher is its student and the result FedAvg, whatever M is."""
    plus = play(FedHeadPlus(LOCAL, NONE, SOME), sectors=sectors)
    assert toys.gap(plus, play(FedAvg(LOCAL), sectors=sectors)) <= 1e-10


def test_h3_pre_sync_is_feddf() -> None:
    """H3: taught by the models before synchronisation, with one client a sector, it is FedDF.

    Of FedDF's variants the one that weighs by samples and averages probabilities.
    """
    alone = tuple(range(5))
    plus = play(FedHeadPlus(FULL, NONE, WHOLE, server_teacher="pre_sync"), sectors=alone)
    feddf = play(FedDf(FULL, WHOLE, drop_worst=False), sectors=alone)
    assert toys.gap(plus, feddf) <= 1e-10
    assert toys.gap(plus, play(FedAvg(FULL), sectors=alone)) > 1e-4


def by_stages(sectors: Sequence[int], seats: dict[str, str]) -> dict[str, dict[str, Params]]:
    """Steps 3 to 10 with given leaders, from the real tasks, keeping what the method does not return."""
    with toys.lab(FedHead(FULL, WHOLE), CLIENTS_H, sectors, toys.net, classes=3) as lab:
        fed = lab.fed.begin(1, lab.tree.holders).seat(seats)
        start = fed.down(fed.down(lab.state.model))
        local = fed.run(local_train, at=CLIENTS, start=start, spec=FULL)
        team = fed.up(local)
        z = fed.run(average, at=SERVER, models=fed.up(fed.run(average, at=SECTORS, models=team)))
        taught = fed.up(fed.run(distill, at=SECTORS, start=fed.down(z), teachers=team, spec=WHOLE))
        return {"local": fed.read(fed.up(local, to=SERVER)), "z": {"": fed.read(z)}, "taught": fed.read(taught)}


def test_h4_one_sector() -> None:
    """H4: with one sector there is one leader, and its model is the result."""
    parts = by_stages((0,) * 5, {"s0": "c0"})
    result = play(FedHead(FULL, WHOLE, leader="fixed"), sectors=(0,) * 5)  # c0 is the largest
    assert list(parts["taught"]) == ["s0"]
    assert torch.equal(result.vector, parts["taught"]["s0"].vector)
    assert result.weight == sum(map(len, CLIENTS_H))


def test_h5_sectors_of_one_client() -> None:
    """H5: each leader is alone, so its teacher is its own local model: the student moves towards that and no other."""
    alone = tuple(range(5))
    parts = by_stages(alone, {f"s{i}": f"c{i}" for i in alone})
    z = parts["z"][""]
    around = toys.context(CLIENTS_H, toys.net, classes=3)
    for i in alone:
        own = {f"c{i}": parts["local"][f"c{i}"]}
        expected = distill(toys.ctx(around, f"c{i}"), start=z, teachers=own, spec=WHOLE)
        assert toys.gap(parts["taught"][f"s{i}"], expected) <= 1e-10
    total = sum(map(len, CLIENTS_H))
    mean = sum(m.vector * (m.weight / total) for m in parts["taught"].values())
    assert toys.gap(play(FedHead(FULL, WHOLE), sectors=alone), torch.as_tensor(mean)) <= 1e-10


def test_h5_one_client_in_all() -> None:
    """H5 with a single client: teacher and student are the same model, so distillation changes nothing."""
    one = [toys.blobs(10)]
    assert toys.gap(play(FedHead(FULL, WHOLE), one, (0,)), play(FedAvg(FULL), one, (0,))) <= 1e-10


def test_h6_identical_clients() -> None:
    """H6: with equal data everywhere all models are z, the teacher is the student, and FedHEAD(+) is FedAvg."""
    clients = [toys.blobs(8, seed=3)] * 4
    averaged = play(FedAvg(FULL), clients, (0, 0, 1, 1), rounds=2)
    for method in (FedHead(FULL, WHOLE), FedHeadPlus(FULL, WHOLE, WHOLE)):
        assert toys.gap(play(method, clients, (0, 0, 1, 1), rounds=2), averaged) <= 1e-10


class Blind(nn.Module):
    """A net whose own loss does not look at labels, so that nothing in local training does either."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = toys.net()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - torch.tensor([1.0, 0.0, -1.0])).square().mean()


@pytest.mark.parametrize("method", [FedHead(LOCAL, SOME), FedHeadPlus(LOCAL, SOME, SOME)], ids=["fedhead", "fedhead+"])
def test_h12_labels_of_the_leader_are_not_used(method: object) -> None:
    """H12: other labels at every client leave a round as it was, bit for bit, when local training ignores labels."""
    other = [Examples(rows.x, (rows.y + 1) % 3) for rows in CLIENTS_H]
    options = {"classes": 3, "reference": REFERENCE}
    first = toys.play(method, CLIENTS_H, MAP, Blind, **options)
    assert torch.equal(first.vector, toys.play(method, other, MAP, Blind, **options).vector)
    assert toys.gap(first, toys.play(FedAvg(LOCAL), CLIENTS_H, MAP, Blind, **options)) > 1e-6  # distillation did happen


def test_h13_expected_step_over_leaders() -> None:
    """H13: a leader drawn by p_k/p_m takes, in expectation, the step of the whole sector's data.

    One full-batch step a leader, everybody leading once: the mean by p_k of the results must be
    z − lr · Σ_k p_k ∇(distillation loss on D_k), which is worked out here from the teacher and autograd.
    """
    sectors, once = (0,) * 5, replace(WHOLE, epochs=1)
    with toys.lab(FedHead(FULL, once, leader="rotating"), CLIENTS_H, sectors, toys.net, classes=3) as lab:
        first, found = lab.state, {}
        for number in range(1, 6):
            lab.state = first
            fed = lab.fed.begin(number, lab.tree.holders)
            leader = choose("rotating", fed)["s0"]
            found[leader] = fed.read(lab.method.round(fed, first).model).vector
    assert set(found) == {f"c{i}" for i in range(5)}
    parts = by_stages(sectors, {"s0": "c0"})
    z, total = parts["z"][""], sum(map(len, CLIENTS_H))
    module = z.load_into(toys.net())
    expected_gradient = torch.zeros_like(z.vector)
    for rows in CLIENTS_H:
        with torch.no_grad():
            teacher = sum(
                m.weight / total * torch.softmax(m.load_into(toys.net())(rows.x), 1) for m in parts["local"].values()
            )
        loss = F.cross_entropy(module(rows.x), torch.as_tensor(teacher))
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        expected_gradient += len(rows) / total * torch.cat([g.reshape(-1) for g in gradients])
    mean = sum(len(rows) / total * found[f"c{i}"] for i, rows in enumerate(CLIENTS_H))
    assert toys.gap(torch.as_tensor(mean), z.vector - 0.2 * expected_gradient) <= 1e-10
    assert max(toys.gap(a, torch.as_tensor(mean)) for a in found.values()) > 1e-3  # single leaders do differ


def test_partial_participation_takes_shares_among_those_there() -> None:
    """Only c2 of s0 and c1, c3 of s1 take part: the round is that of a federation that has no other clients."""
    method = FedHead(FULL, WHOLE, leader="fixed")
    with toys.lab(method, CLIENTS_H, MAP, toys.net, classes=3) as lab:
        some = lab.round(1, ("c2", "c1", "c3")).model
    alone = play(method, [CLIENTS_H[2], CLIENTS_H[1], CLIENTS_H[3]], (0, 1, 1))
    assert toys.gap(some, alone) <= 1e-10
    with toys.lab(method, CLIENTS_H, MAP, toys.net, classes=3) as lab:
        lab.round(1, ("c1", "c3"))  # nobody of s0
        assert lab.ledger.round_trips("server_sector") == 2
        assert lab.model.weight == 6
