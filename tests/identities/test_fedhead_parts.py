"""H7 to H11: FedHEAD's parts one by one: leaders, teachers, stopping, round trips; and what a loss does to weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from torch.nn import functional as F

import toys
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.feddf import FedDf
from headwater.algorithms.fedhead import FedHead, FedHeadPlus
from headwater.core.sampling import choose
from headwater.specs import DistillSpec, LocalSpec
from headwater.tasks.distill import distill
from headwater.tasks.ensemble import ensemble, learn

FULL = LocalSpec(steps=3, batch=99, lr=0.3)
WHOLE = DistillSpec(epochs=3, batch=99, optimizer="sgd", lr=0.2)
CLIENTS_H = [toys.blobs(n, seed=i) for i, n in enumerate((12, 5, 9, 1, 7))]
MAP = (0, 1, 0, 1, 1)
REFERENCE = toys.blobs(20, seed=50).x


class TestH7:
    """H7: who leads."""

    ROUNDS = 1500

    def draws(self, rule: str, clients: tuple[str, ...] | None = None) -> dict[str, Counter[str]]:
        with toys.lab(FedAvg(FULL), CLIENTS_H, MAP, toys.net, classes=3) as lab:
            found: dict[str, Counter[str]] = {"s0": Counter(), "s1": Counter()}
            for number in range(1, self.ROUNDS + 1):
                for sector, client in choose(rule, lab.fed.begin(number, clients or lab.tree.holders)).items():
                    found[sector][client] += 1
            return found

    def test_random_leads_by_size(self) -> None:
        """Frequencies fit p_k/p_m by a chi-square test; a leader is always of its own sector."""
        found = self.draws("random")
        for sector, sizes in (("s0", {"c0": 12, "c2": 9}), ("s1", {"c1": 5, "c3": 1, "c4": 7})):
            assert set(found[sector]) == set(sizes)
            expected = [self.ROUNDS * n / sum(sizes.values()) for n in sizes.values()]
            assert chisquare([found[sector][c] for c in sizes], expected).pvalue > 0.001
            wrong = [self.ROUNDS / len(sizes)] * len(sizes)
            assert chisquare([found[sector][c] for c in sizes], wrong).pvalue < 0.001  # the test can tell

    def test_fixed_is_the_largest(self) -> None:
        assert self.draws("fixed") == {"s0": {"c0": self.ROUNDS}, "s1": {"c4": self.ROUNDS}}

    def test_fixed_is_the_largest_that_takes_part(self) -> None:
        assert self.draws("fixed", ("c2", "c1", "c3"))["s1"] == {"c1": self.ROUNDS}

    def test_random_only_among_those_who_take_part(self) -> None:
        found = self.draws("random", ("c2", "c4"))
        assert found == {"s0": {"c2": self.ROUNDS}, "s1": {"c4": self.ROUNDS}}

    def test_rotating_is_fair(self) -> None:
        assert self.draws("rotating")["s1"] == dict.fromkeys(("c1", "c3", "c4"), self.ROUNDS // 3)


@pytest.mark.parametrize("weights", ["samples", "uniform", "labels", "confidence", "learned"])
def test_h8_teachers_are_distributions(weights: str) -> None:
    """H8: rows sum to 1 and, but for the class-wise weights of `labels`, lie in the hull of the members' outputs."""
    torch.manual_seed(0)
    members = {f"c{i}": toys.params(toys.net(), weight=float(len(rows))) for i, rows in enumerate(CLIENTS_H)}
    around = toys.context(CLIENTS_H, toys.net, classes=3)
    counts = {f"c{i}": torch.bincount(rows.y, minlength=3).double() for i, rows in enumerate(CLIENTS_H)}
    at = toys.ctx(around)
    rows = toys.blobs(15, seed=7)
    shares = learn({name: at.flat_module(model).outputs(rows.x) for name, model in members.items()}, rows.y)
    assert sum(shares.values()) == pytest.approx(1)
    found = ensemble(at, members, REFERENCE, weights=weights, counts=counts, shares=shares).probs
    assert toys.gap(found.sum(1), torch.ones(20, dtype=torch.float64)) <= 1e-12
    assert (found >= 0).all()
    if weights == "labels":
        return
    apart = torch.stack([torch.softmax(at.flat_module(m).outputs(REFERENCE), 1) for m in members.values()])
    assert (found >= apart.amin(0) - 1e-12).all()
    assert (found <= apart.amax(0) + 1e-12).all()
    if weights == "samples":
        shares = torch.tensor([m.weight for m in members.values()], dtype=torch.float64)
        shares /= shares.sum()
        assert float(shares.sum()) == pytest.approx(1)
        assert toys.gap(found, torch.einsum("k,knc->nc", shares, apart)) <= 1e-12


def test_h9_cross_entropy_and_divergence_have_one_gradient() -> None:
    """H9: they differ by the teacher's entropy, which no student changes."""
    torch.manual_seed(1)
    around = toys.context(CLIENTS_H, toys.net, classes=3)
    at = toys.ctx(around)
    target = ensemble(at, {"a": toys.params(toys.net()), "b": toys.params(toys.net())}, REFERENCE)
    output = torch.randn(20, 3, dtype=torch.float64, requires_grad=True)
    batch = torch.arange(20)

    def gradient(loss: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(loss, output)
        return found

    ours = gradient(target.loss(batch, output, 1.0))
    logs = torch.log_softmax(output, 1)
    divergence = F.kl_div(logs, target.probs, reduction="batchmean")
    assert toys.gap(ours, gradient(F.cross_entropy(output, target.probs))) <= 1e-12
    assert (
        toys.gap(ours, gradient(F.kl_div(torch.log_softmax(output, 1), target.probs, reduction="batchmean"))) <= 1e-12
    )
    assert float(target.loss(batch, output, 1.0).detach()) == pytest.approx(float(divergence.detach()), abs=1e-12)


class TestH10:
    """H10: a student that gets worse by every epoch: its teacher says class 0, the validation set class 1."""

    VAL = toys.points((1, 1), (2, 1))
    TEACHER = toys.params(toys.Slopes((2.0, -2.0)))
    START = toys.params(toys.Slopes())
    SPEC = DistillSpec(epochs=20, batch=2, optimizer="sgd", lr=0.1)

    def taught(self, **changes: object) -> tuple[Tensor, int]:
        around = toys.context([toys.points((1, 0), (2, 0), (3, 0))], toys.Slopes)
        at = toys.ctx(around)
        spec = replace(self.SPEC, **changes)
        found = distill(at, start=self.START, teachers={"c0": self.TEACHER}, val=self.VAL, spec=spec)
        return found.vector, int(at.notes["distill_steps"])

    def after(self, epochs: int) -> Tensor:
        return self.taught(epochs=epochs)[0]

    def test_epochs(self) -> None:
        """Two batches an epoch; the best of those evaluated is epoch 1, so patience 2 ends training after epoch 3."""
        assert self.taught()[1] == 40
        assert self.taught(patience=2)[1] == 6
        assert self.taught(patience=4)[1] == 10
        assert self.taught(patience=100)[1] == 40

    def test_last(self) -> None:
        assert torch.equal(self.taught(patience=2, restore="last")[0], self.after(3))

    def test_best(self) -> None:
        assert torch.equal(self.taught(patience=2, restore="best")[0], self.after(1))

    def test_best_or_init(self) -> None:
        """The untouched start counts as index 0 and is the best, so patience 2 ends training after epoch 2."""
        found, steps = self.taught(patience=2, restore="best_or_init")
        assert torch.equal(found, self.START.vector)
        assert steps == 4

    @pytest.mark.parametrize(("source", "batches"), [("server", 2), ("leader", 1)])
    def test_through_the_method(self, source: str, batches: int) -> None:
        """Both clients say class 0, so does the validation set, and the mean of probabilities is less sure than z.

        So every epoch makes the leader a little worse and it stops after the third, judged on the server's hold-out or
        on the one row of its three that it keeps (which leaves one batch an epoch).
        """
        clients = [toys.points((1, 0), (2, 0), (3, 0)), toys.points((1, 0))]
        spec = replace(self.SPEC, patience=2, restore="last")
        method = FedHead(LocalSpec(steps=1, batch=8, lr=1.0), spec, leader="fixed", val_source=source)
        with toys.lab(method, clients, (0, 0), toys.Slopes, validation=toys.points((1, 0), (2, 0))) as lab:
            assert lab.round().notes("distill")["s0"]["distill_steps"] == 3 * batches


@pytest.mark.parametrize(
    ("method", "a_round"),
    [
        pytest.param(FedAvg(FULL, through_sectors=True), 2, id="hierarchical"),
        pytest.param(FedDf(FULL, WHOLE, drop_worst=False), 5, id="feddf"),
        pytest.param(FedHead(FULL, WHOLE), 4, id="fedhead"),
        pytest.param(FedHeadPlus(FULL, WHOLE, WHOLE), 4, id="fedhead+"),
    ],
)
def test_h11_round_trips(method: object, a_round: int) -> None:
    """H11: M·T, N·T, 2M·T and 2M·T with N = 5 clients in M = 2 sectors."""
    with toys.lab(method, CLIENTS_H, MAP, toys.net, classes=3, reference=REFERENCE) as lab:
        for number in (1, 2, 3):
            lab.round(number)
            assert lab.ledger.round_trips("server_sector") == a_round * number


def test_weights_are_of_those_who_contributed() -> None:
    """Under loss, a sector counts with the members whose models came, and not at all if its leader was lost."""
    lost_members = lost_leaders = 0
    for seed in range(8):
        method = FedHead(FULL, WHOLE, leader="fixed")
        with toys.lab(method, CLIENTS_H, MAP, toys.net, classes=3, dropout=0.25, seed=seed) as lab:
            found = lab.fed.read(lab.round().state.model)
            trained = {node for node, notes in lab.notes("local_train").items() if notes}
            led = {node for node, notes in lab.notes("distill").items() if notes}
        there = [c for c in trained if lab.tree.sector_of[c] in led]
        assert (found.weight if found else 0) == sum(lab.tree.sizes[c] for c in there)
        lost_members += len(trained) < 5
        lost_leaders += len(led) < 2
    assert lost_members
    assert lost_leaders


def test_lost_senders_are_not_charged_and_lost_receivers_are() -> None:
    with toys.lab(FedAvg(FULL), CLIENTS_H, MAP, toys.net, classes=3, dropout=0.5, seed=1) as lab:
        trained = [node for node, notes in lab.round().notes("local_train").items() if notes]
        found = lab.ledger.summary()
    assert 0 < len(trained) < 5
    for tier in ("server_sector", "sector_client"):
        assert found[tier]["down_models"] == 5
        assert found[tier]["up_models"] == found[tier]["round_trips"] == len(trained)
