"""Rounds of FedHKD, FedProto and FedMD on models of two numbers, worked out by hand, and what they send by sectors.

The model is in two parts: h = a · x, then logits (v · h, 0). With z = v·a·x, P(class 0) = 1/(1 + e^−z). For a row
(x, y) and e = P − [y = 0] the slopes of the cross-entropy are e·v·x in a, and e·a·x in v.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from math import exp, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import chosen
import toys
from headwater.algorithms.fedhkd import FedHkd, FedHkdStar
from headwater.algorithms.fedmd import FedMd
from headwater.algorithms.fedproto import FedProto
from headwater.core.ledger import TIERS
from headwater.core.sampling import participants
from headwater.core.tree import Tree
from headwater.data.base import Examples
from headwater.models.base import Net
from headwater.specs import LocalSpec
from headwater.theory.communication import Active, Payload, Traffic, round_traffic, setup_traffic
from headwater.theory.traffic import examples_bytes
from headwater.training.loop import train

LR = 0.5
ONE = LocalSpec(steps=1, batch=8, lr=LR)
ROWS = ([(1.0, 0)] * 3, [(2.0, 1)])  # three rows of class 0, one of class 1
CLIENTS = [toys.points(*rows) for rows in ROWS]
START = (1.0, 0.5)


class Gain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(START[0], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.a


class Against(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.tensor(START[1], dtype=torch.float64))

    def forward(self, h: Tensor) -> Tensor:
        return torch.cat([h * self.v, torch.zeros_like(h)], dim=1)


def pair() -> nn.Module:
    return Net(Gain(), Against())


def logistic(z: float) -> float:
    return 1 / (1 + exp(-z))


def sign(number: float) -> float:
    return float(number > 0) - float(number < 0)


Model = tuple[float, float]
Known = dict[int, tuple[float, float]]  # class → representation, P(class 0)


def step(model: Model, row: tuple[float, int], known: Known, lam: float, pull: float, code: bool = False) -> Model:
    """One step on rows that are all alike.

    λ/2·Σ_j ‖(P_j − Q_j)·(1, −1)‖, P_j the logistic function of v·H_j/T, T = ½: its slope in v is
    λ/2·√2·sign(P_j − Q_j)·P_j(1 − P_j)·H_j/T. γ·|a·x − H_y| has the slope γ·sign·x in a, (a·x − H_y)² twice the
    difference times x.
    """
    (a, v), (x, y) = model, row
    e = logistic(v * a * x) - (y == 0)
    da, dv = e * v * x, e * a * x
    for centre, soft in known.values():
        p = logistic(2 * v * centre)
        dv += lam / 2 * sqrt(2) * sign(p - soft) * p * (1 - p) * 2 * centre
    if y in known:
        away = a * x - known[y][0]
        da += pull * (2 * away if code else sign(away)) * x
    return a - LR * da, v - LR * dv


def numbers(vector: Tensor) -> tuple[float, ...]:
    return tuple(vector.tolist())


def near(*expected: float) -> object:
    return pytest.approx(expected, abs=1e-12)


def hkd_by_hand(lam: float, gamma: float, rounds: int = 2) -> tuple[Model, list[Model]]:
    model, known, local = START, {}, []
    for _ in range(rounds):
        local = [step(model, rows[0], known, lam, gamma) for rows in ROWS]
        # Each holds one class, so it is the only one to share it: H = a·x, P(class 0) at T = ½.
        known = {
            rows[0][1]: (m[0] * rows[0][0], logistic(2 * m[1] * m[0] * rows[0][0]))
            for m, rows in zip(local, ROWS, strict=True)
        }
        model = (0.75 * local[0][0] + 0.25 * local[1][0], 0.75 * local[0][1] + 0.25 * local[1][1])
    return model, local


@pytest.mark.parametrize("sectors", [(0, 0), (0, 1)])
@pytest.mark.parametrize("through", [False, True])
def test_fedhkd(sectors: tuple[int, int], through: bool) -> None:
    """Two rounds: the first is FedAvg's, the second is guided by what the first brought. Local models are kept."""
    method = FedHkd(ONE, lam=0.8, gamma=0.3, sigma=0.0, through_sectors=through)
    with toys.lab(method, CLIENTS, sectors, pair) as lab:
        found, mine = lab.round(1).round(2).vector, lab.personal()
    expected, local = hkd_by_hand(0.8, 0.3)
    assert numbers(found) == near(*expected)
    assert [numbers(mine[c].vector) for c in ("c0", "c1")] == [near(*m) for m in local]
    assert toys.gap(found, torch.tensor(hkd_by_hand(0.0, 0.0)[0], dtype=torch.float64)) > 1e-2


def test_fedhkd_star() -> None:
    with toys.lab(FedHkdStar(ONE, lam=0.8, sigma=0.0), CLIENTS, (0, 1), pair) as lab:
        assert numbers(lab.round(1).round(2).vector) == near(*hkd_by_hand(0.8, 0.0)[0])


def test_fedhkd_halves_the_rate() -> None:
    """Every round: the second round's one step is half as long as it would be."""
    method = FedHkdStar(ONE, lam=0.0, sigma=0.0, halve_lr_every=1)
    with toys.lab(method, CLIENTS[:1], (0,), pair) as lab:
        found = lab.round(1).round(2).vector
    first = step(START, ROWS[0][0], {}, 0, 0)
    full = step(first, ROWS[0][0], {}, 0, 0)
    assert numbers(found) == near(*((a + b) / 2 for a, b in zip(first, full, strict=True)))


def proto_by_hand(lam: float, code: bool) -> list[Model]:
    rows = [ROWS[0][0], ROWS[1][0], (3.0, 0)]
    models: list[Model] = [step(START, row, {}, 0, 0) for row in rows]
    h = [m[0] * x for m, (x, _) in zip(models, rows, strict=True)]
    known = {0: ((3 * h[0] + 2 * h[2]) / 5, 0.0), 1: (h[1], 0.0)}
    return [step(m, row, known, 0, lam, code) for m, row in zip(models, rows, strict=True)]


@pytest.mark.parametrize("distance", ["paper", "code"])
@pytest.mark.parametrize("through", [False, True])
def test_fedproto(distance: Any, through: bool) -> None:
    """Class 0 is held by c0 (three rows at x = 1) and c2 (two at x = 3): its prototype is the mean by 3 and 2."""
    clients = [*CLIENTS, toys.points((3, 0), (3, 0))]
    method = FedProto(ONE, lam=0.3, distance=distance, through_sectors=through)
    with toys.lab(method, clients, (0, 1, 1), pair) as lab:
        found = lab.round(1).round(2).personal()
    expected = proto_by_hand(0.3, distance == "code")
    assert [numbers(found[f"c{i}"].vector) for i in range(3)] == [near(*m) for m in expected]


def test_fedproto_that_shares_parameters() -> None:
    """The mean of models by 3 and 1 rows is the start of the next round, and the freshly trained ones are kept."""
    with toys.lab(FedProto(ONE, share_params=True), CLIENTS, (0, 1), pair) as lab:
        found, mine = lab.round(1).vector, lab.personal()
    local = [step(START, rows[0], {}, 0, 0) for rows in ROWS]
    assert [numbers(mine[c].vector) for c in ("c0", "c1")] == [near(*m) for m in local]
    assert numbers(found) == near(*(0.75 * a + 0.25 * b for a, b in zip(*local, strict=True)))


# FedMD with toys.Slopes: logits (w_0·x, w_1·x). From (0, 0) a client's rows (x, y) give models a·(1, −1), and a step of
# the cross-entropy at a·(1, −1) adds lr·x·(1 − P_y)·(1, −1) for y = 0, and takes it off for y = 1, P_y = logistic(2ax).
PUBLIC = torch.tensor([[1.0], [3.0]], dtype=torch.float64)


def trained(a: float, row: tuple[float, int]) -> float:
    way = 1 if row[1] == 0 else -1
    return a + way * LR * row[0] * (1 - logistic(way * 2 * a * row[0]))


@pytest.mark.parametrize("sectors", [(0, 0), (0, 1)])
@pytest.mark.parametrize("through", [False, True])
def test_fedmd(sectors: tuple[int, int], through: bool) -> None:
    """After the first training, c0 has a_0 > 0 and c1 a_1 < 0; the consensus is that of their mean, unweighted.

    The slope of the mean absolute error over inputs 1 and 3 is (1 + 3)/4 in w_0, by the sign of a − ā, and the opposite
    in w_1. Adam's first step is as long as its rate (but for its ε of 1e-8), so digesting moves a by 0.01 towards ā.
    """
    method = FedMd(ONE, digest_lr=0.01, through_sectors=through)
    with toys.lab(method, CLIENTS, sectors, toys.Slopes, reference=PUBLIC) as lab:
        found = lab.round(1).personal()
    first = [trained(0.0, rows[0]) for rows in ROWS]
    mean = sum(first) / 2
    digested = [a - 0.01 * sign(a - mean) for a in first]
    expected = [trained(a, rows[0]) for a, rows in zip(digested, ROWS, strict=True)]
    for client, a in zip(("c0", "c1"), expected, strict=True):
        assert numbers(found[client].vector) == pytest.approx((a, -a), abs=1e-8)


def test_fedmd_of_fedhkd() -> None:
    """Round 2 adds λ times the slope of KL(mean soft prediction ‖ own) at T = ½ on both public inputs (one batch).

    With P_x = logistic(2·a·x/T) that is the mean over x of (P_x − Q_x)·x/T in w_0, and the opposite in w_1.
    """
    lam = 0.6
    with toys.lab(FedMd(ONE, flavour="fedhkd", lam=lam), CLIENTS, (0, 1), toys.Slopes, reference=PUBLIC) as lab:
        found = lab.round(1).round(2).vector
    local = [trained(0.0, rows[0]) for rows in ROWS]
    start = 0.75 * local[0] + 0.25 * local[1]
    soft = {x: sum(logistic(4 * a * x) for a in local) / 2 for x in (1, 3)}
    pull = sum((logistic(4 * start * x) - soft[x]) * x * 2 for x in (1, 3)) / 2
    second = [trained(start, rows[0]) - LR * lam * pull for rows in ROWS]
    expected = 0.75 * second[0] + 0.25 * second[1]
    assert numbers(found) == near(expected, -expected)
    assert abs(pull) > 1e-2


def test_fedmd_of_fedhead() -> None:
    """Round 2: everybody starts at the mean, digests the last round's consensus (3 Adam steps of 0.01), then trains.

    The consensus is that of the unweighted mean of local models, the start their mean by 3 and 1 rows. As long as the
    start is more than three steps away, each step has the length of the rate.
    """
    method = FedMd(ONE, flavour="fedhead", digest_lr=0.01)
    with toys.lab(method, CLIENTS, (0, 1), toys.Slopes, reference=PUBLIC) as lab:
        found = lab.round(1).round(2).vector
    local = [trained(0.0, rows[0]) for rows in ROWS]
    start, mean = 0.75 * local[0] + 0.25 * local[1], sum(local) / 2
    assert abs(start - mean) > 0.03
    second = [trained(start - 0.03 * sign(start - mean), rows[0]) for rows in ROWS]
    expected = 0.75 * second[0] + 0.25 * second[1]
    assert numbers(found) == pytest.approx((expected, -expected), abs=1e-7)


def test_fedmd_pretrains_on_public_labels() -> None:
    """One epoch on the public rows (1, class 0) and (3, class 1) in one batch, then one step on the own rows."""
    public = Examples(PUBLIC, torch.tensor([0, 1]))
    around = toys.context(CLIENTS, toys.Slopes, reference=public.x)
    around.split = replace(around.split, reference_labels=public.y)
    lab = toys.Lab(FedMd(ONE, pretrain_epochs=1), around, Tree.of([3, 1], (0, 1)))
    found = lab.personal()
    lab.close()
    a = LR * (0.5 * 1 - 0.5 * 3) / 2  # the mean of both rows' steps from (0, 0)
    for client, rows in zip(("c0", "c1"), ROWS, strict=True):
        expected = trained(a, rows[0])
        assert numbers(found[client].vector) == near(expected, -expected)


# -- what goes by way of sectors, where it depends on who holds what


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedhkd", {"nu": 0.3}),
        ("fedhkd-star", {"nu": 0.0, "sigma": 0.0}),
        ("fedproto", {}),
        ("fedproto", {"share_params": True}),
        ("fedmd", {"align": 5}),
        ("fedmd", {"flavour": "fedhkd"}),
    ],
)
@pytest.mark.parametrize("participation", chosen.first([1.0, 0.5], [0.5]))
def test_ledger_through_sectors(method: str, options: dict[str, Any], participation: float) -> None:
    experiment = toys.tiny(
        method,
        rounds=4,
        sizes=([9, 0, 4, 1, 6, 3, 0], [0, 0, 0, 1, 0, 1, 2]),
        partition={"participation": participation},
        algorithm=options | {"through_sectors": True},
    )
    config, tree, split = experiment.config, experiment.tree, experiment.split
    net = experiment.model.build()
    sizes = Payload(
        model=sum(t.nbytes for t in net.state_dict().values()),
        classes=3,
        features=4 * net.classifier.in_features,
        align=min(len(split.reference), config.algorithm.get("align", 0)),
        reference=examples_bytes(len(split.reference), 4),
    )
    labels = {c: split.train.y[rows].tolist() for c, rows in experiment.rows.items()}
    active = [participants(tree, participation, config.seed, number) for number in range(1, 5)]
    known = dict(config.algorithm) | {
        "counts": {c: [ys.count(label) for label in range(3)] for c, ys in labels.items()},
        "active": active,
        "sector_of": dict(tree.sector_of),
    }
    found, total = train(experiment), Traffic()
    for row, clients in zip(found.history, active, strict=True):
        expected = round_traffic(method, Active.of(tree, clients), sizes, known | {"round": row["round"]})
        total += expected
        for tier in TIERS:
            link = getattr(expected, tier)
            assert row["bytes"][tier] == {"up": link.up_bytes, "down": link.down_bytes}
    before = setup_traffic(method, Active.of(tree), sizes, known)
    for tier in TIERS:
        assert found.ledger.summary()[tier] == asdict(getattr(total, tier))
        assert found.ledger.summary()["setup"][tier] == asdict(getattr(before, tier))


def test_what_is_not_known_of_holdings_is_counted_as_the_most() -> None:
    """Everybody shares every class: 3 clients, 2 classes of 5 numbers and 2 predictions, with a count on the way up."""
    sizes = Payload(model=100, classes=2, features=20)
    found = round_traffic("fedhkd", Active((2, 1)), sizes, {"round": 1}).sector_client
    assert (found.up_bytes, found.down_bytes) == (3 * (100 + 2 * (28 + 8)), 3 * 100)
    found = round_traffic("fedhkd", Active((2, 1)), sizes, {"round": 2}).sector_client
    assert found.down_bytes == 3 * (100 + 2 * 28)
    assert found.round_trips == 3
