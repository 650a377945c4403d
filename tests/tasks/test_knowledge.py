"""Class means and the two loss terms that use them: values by hand, gradients, noise, pooling (K3 to K9, K12)."""

from __future__ import annotations

from collections.abc import Mapping
from math import log, sqrt
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import toys
from headwater.core.params import Params, cut
from headwater.data.base import Examples
from headwater.models.base import Net
from headwater.specs import LocalSpec
from headwater.tasks.knowledge import (
    Collect,
    Release,
    knowledge,
    pool,
    prototypes,
    settled,
    train_collecting,
    width,
)
from headwater.tasks.local import Batch, Term, local_train
from headwater.tasks.task import RunContext, TaskContext
from headwater.tasks.terms import Agree, Pull
from headwater.theory.privacy import aggregated_variance, noise_variance, sensitivity


def two_parts(features: int = 3, classes: int = 3) -> nn.Module:
    extractor = nn.Sequential(nn.Linear(features, 4, dtype=torch.float64), nn.Tanh())
    return Net(extractor, nn.Linear(4, classes, dtype=torch.float64))


class Gain(nn.Module):
    """h = a · x for a single number, or for each of several."""

    def __init__(self, a: float) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(a, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.a


class Against(nn.Module):
    """Logits (v · h, 0): P(class 0) is the logistic function of v · h."""

    def __init__(self, v: float) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.tensor(v, dtype=torch.float64))

    def forward(self, h: Tensor) -> Tensor:
        first = h[:, :1] * self.v
        return torch.cat([first, torch.zeros_like(first)], dim=1)


def pair(a: float, v: float) -> nn.Module:
    return Net(Gain(a), Against(v))


ROWS = [toys.blobs(n, seed=i) for i, n in enumerate((30, 12, 7))]
AROUND = toys.context(ROWS, two_parts, classes=3)
MODEL = AROUND.initial(toys.ARCH, 0)


def visit(home: str = "c0", number: int = 1) -> TaskContext:
    return TaskContext(AROUND, home, (number, "test", 0, home))


def slope_of(term: Term, around: RunContext, model: Params, rows: Examples) -> tuple[float, Tensor]:
    """The term's value on these rows as one batch, and its gradient as a flat vector."""
    at = toys.ctx(around)
    started = term.begin(at, model) if hasattr(term, "begin") else term
    flat = at.flat_module(model)
    features = flat.features(rows.x)
    output = flat.classify(features)
    index = torch.arange(len(rows))
    step = Batch(at, flat, model, rows.x, rows.y, output, flat.loss(output, rows.y), index, 0, True, features)
    value = started(step)
    flat.grad.zero_()
    if value.requires_grad:
        value.backward()
    return float(value.detach()), flat.grad.clone()


def by_differences(term: Term, around: RunContext, model: Params, rows: Examples, by: float = 1e-6) -> Tensor:
    """The gradient by central differences."""
    found = []
    for i in range(model.layout.size):
        step = torch.zeros_like(model.vector)
        step[i] = by
        there = [
            slope_of(term, around, Params(v, model.counters, model.layout), rows)[0]
            for v in (model.vector + step, model.vector - step)
        ]
        found.append((there[0] - there[1]) / (2 * by))
    return torch.tensor(found, dtype=torch.float64)


def known(*classes: int, seed: int = 5) -> dict[int, tuple[Tensor, Tensor]]:
    """Representations of 4 numbers and predictions over 3 classes, for some classes."""
    rng = np.random.default_rng(seed)
    return {j: (torch.tensor(rng.normal(size=4)), torch.tensor(rng.dirichlet(np.ones(3)))) for j in classes}


def parts(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The extractor's and the classifier's share of a gradient."""
    named = cut(gradient, MODEL.layout.trainable)
    return (
        torch.cat([g.reshape(-1) for name, g in named.items() if name.startswith("features")]),
        torch.cat([g.reshape(-1) for name, g in named.items() if name.startswith("classifier")]),
    )


class TestAgree:
    # v = ln 2 / 4, H_0 = 2, T = ½: v·H/T = ln 2, so P = ⅔. Q_0 = (⅓, ⅔), class 1 is not known, n = 2, weight 3.
    AROUND = toys.context([toys.points((1, 0), (3, 1))], lambda: pair(2.0, log(2) / 4))
    KNOWN: ClassVar = {0: (torch.tensor([2.0], dtype=torch.float64), torch.tensor([1 / 3, 2 / 3], dtype=torch.float64))}

    def found(self, **options: Any) -> tuple[float, Tensor]:
        term = Agree(3.0, self.KNOWN, temperature=0.5, **options)
        rows = toys.points((1, 0), (3, 1))
        return slope_of(term, self.AROUND, self.AROUND.initial(toys.ARCH, 0), rows)

    def test_by_hand(self) -> None:
        """The difference (⅓, −⅓) has length √2/3, times 3/2. dP/dv = P(1−P)·H/T = 2/9·4, times √2 and 3/2."""
        value, gradient = self.found()
        assert value == pytest.approx(sqrt(2) / 2, abs=1e-12)
        assert gradient.tolist() == pytest.approx([0.0, 4 * sqrt(2) / 3], abs=1e-12)

    def test_by_hand_as_coded(self) -> None:
        """½·(⅓ ln ½ + ⅔ ln 2) = ln 2 / 6, times 3. d/dv of it: ½·(P − Q)·H/T = ½·⅓·4, times 3."""
        value, gradient = self.found(norms="code")
        assert value == pytest.approx(log(2) / 2, abs=1e-12)
        assert gradient.tolist() == pytest.approx([0.0, 2.0], abs=1e-12)

    def test_by_hand_as_in_fedhead(self) -> None:
        """−⅓ ln ⅔ − ⅔ ln ⅓ = ln 3 − ⅓ ln 2, times 3: one class is known. d/dv of it: (P − Q)·H/T = ⅓·4, times 3."""
        value, gradient = self.found(norms="fedhead")
        assert value == pytest.approx(3 * log(3) - log(2), abs=1e-12)
        assert gradient.tolist() == pytest.approx([0.0, 4.0], abs=1e-12)

    @pytest.mark.parametrize("norms", ["paper", "code", "fedhead"])
    def test_differences(self, norms: Any) -> None:
        term = Agree(0.7, known(0, 2), temperature=0.5, norms=norms)
        _, gradient = slope_of(term, AROUND, MODEL, ROWS[2])
        assert toys.gap(gradient, by_differences(term, AROUND, MODEL, ROWS[2])) <= 1e-7
        assert gradient.norm() > 1e-2

    @pytest.mark.parametrize("norms", ["paper", "code", "fedhead"])
    def test_k6_reaches_the_classifier_only(self, norms: Any) -> None:
        extractor, classifier = parts(slope_of(Agree(1.0, known(0, 1), norms=norms), AROUND, MODEL, ROWS[2])[1])
        assert extractor.abs().max() == 0
        assert classifier.abs().max() > 1e-3

    def test_k3_a_class_that_is_not_known_adds_nothing(self) -> None:
        """n stays the number of all classes, so knowing one class more adds its own part and changes no other."""
        some = known(0, 1)
        one, other, both = (slope_of(Agree(1.0, k), AROUND, MODEL, ROWS[2]) for k in ({0: some[0]}, {1: some[1]}, some))
        assert both[0] == pytest.approx(one[0] + other[0], abs=1e-12)
        assert toys.gap(both[1], one[1] + other[1]) <= 1e-12

    def test_no_gradient_where_predictions_agree(self) -> None:
        """The norm has none at 0; the term gives 0 there and not NaN."""
        flat = visit().flat_module(MODEL)
        centre = known(1)[1][0]
        with torch.no_grad():
            same = torch.softmax(flat.classify(centre[None]) / 0.5, dim=1)[0].clone()
        value, gradient = slope_of(Agree(1.0, {1: (centre, same)}), AROUND, MODEL, ROWS[2])
        assert value == 0
        assert gradient.abs().max() == 0


class TestPull:
    def test_by_hand(self) -> None:
        """a = 2: h is 2 and 6. H_0 = 5, class 1 is not known: 0.4·|2 − 5|/2; its slope in a is −0.4·x/2."""
        around = toys.context([toys.points((1, 0), (3, 1))], lambda: pair(2.0, 0.3))
        centres = {0: (torch.tensor([5.0], dtype=torch.float64),)}
        rows = toys.points((1, 0), (3, 1))
        start = around.initial(toys.ARCH, 0)
        value, gradient = slope_of(Pull(0.4, centres), around, start, rows)
        assert value == pytest.approx(0.6, abs=1e-12)
        assert gradient.tolist() == pytest.approx([-0.2, 0.0], abs=1e-12)
        value, gradient = slope_of(Pull(0.4, centres, norms="code"), around, start, rows)
        assert value == pytest.approx(0.4 * 9 / 2, abs=1e-12)
        assert gradient.tolist() == pytest.approx([0.4 * 2 * -3 / 2, 0.0], abs=1e-12)

    def test_several_coordinates(self) -> None:
        """(3, 4) away: length 5, mean square 12.5."""
        around = toys.context(
            [Examples(torch.tensor([[3.0, 4.0]], dtype=torch.float64), torch.tensor([1]))], lambda: pair(1.0, 0.3)
        )
        rows, zero = around.split.train, {1: (torch.zeros(2, dtype=torch.float64),)}
        start = around.initial(toys.ARCH, 0)
        assert slope_of(Pull(2.0, zero), around, start, rows)[0] == pytest.approx(10.0, abs=1e-12)
        assert slope_of(Pull(2.0, zero, norms="code"), around, start, rows)[0] == pytest.approx(25.0, abs=1e-12)

    @pytest.mark.parametrize("norms", ["paper", "code"])
    def test_differences(self, norms: Any) -> None:
        term = Pull(0.7, known(0, 2), norms=norms)
        _, gradient = slope_of(term, AROUND, MODEL, ROWS[2])
        assert toys.gap(gradient, by_differences(term, AROUND, MODEL, ROWS[2])) <= 1e-7
        assert gradient.norm() > 1e-2

    def test_k6_reaches_the_extractor_only(self) -> None:
        extractor, classifier = parts(slope_of(Pull(1.0, known(0, 1)), AROUND, MODEL, ROWS[2])[1])
        assert classifier.abs().max() == 0
        assert extractor.abs().max() > 1e-3

    def test_k3_classes_that_are_not_known_add_nothing(self) -> None:
        rows = ROWS[0]
        absent = next(j for j in range(3) if (rows.y == j).any())
        alone = rows.take((rows.y == absent).nonzero()[:, 0])
        others = known(*(j for j in range(3) if j != absent))
        value, gradient = slope_of(Pull(1.0, others), AROUND, MODEL, alone)
        assert value == 0
        assert gradient.abs().max() == 0

    def test_no_gradient_at_the_centre(self) -> None:
        row = ROWS[2].take([0])
        centre = visit().flat_module(MODEL).represent(row.x)[0].clone()
        value, gradient = slope_of(Pull(1.0, {int(row.y[0]): (centre,)}), AROUND, MODEL, row)
        assert value == pytest.approx(0, abs=1e-12)
        assert torch.isfinite(gradient).all()

    def test_k6_knowledge_stays_as_it_was(self) -> None:
        some = known(0, 1, 2)
        before = {j: tuple(t.clone() for t in pair) for j, pair in some.items()}
        spec = LocalSpec(epochs=2, batch=4, lr=0.1)
        local_train(visit(), MODEL, spec, terms=(Pull(1.0, some), Agree(1.0, some)))
        assert all(torch.equal(t, b) for j in some for t, b in zip(some[j], before[j], strict=True))
        assert all(t.grad is None and not t.requires_grad for pair in some.values() for t in pair)


@pytest.mark.parametrize("term", [Pull(1.0, None), Agree(1.0, None), Pull(1.0, {}), Agree(1.0, {}), Collect()])
def test_without_knowledge_training_is_plain(term: Term) -> None:
    spec = LocalSpec(epochs=2, batch=8, lr=0.3)
    assert toys.gap(local_train(visit(), MODEL, spec, terms=(term,)), local_train(visit(), MODEL, spec)) <= 1e-12


# -- what a client makes


def plain_means(home: str, temperature: float = 1.0) -> dict[int, tuple[Tensor, Tensor, int]]:
    """Class by class with an ordinary module."""
    module, rows = MODEL.load_into(two_parts()), ROWS[int(home[1])]
    found = {}
    with torch.no_grad():
        for j in range(3):
            x = rows.x[rows.y == j]
            if len(x):
                h = module.features(x)
                found[j] = (h.mean(0), torch.softmax(module.classifier(h) / temperature, 1).mean(0), len(x))
    return found


def same(a: Mapping[int, tuple[Any, ...]], b: Mapping[int, tuple[Any, ...]], within: float = 1e-12) -> bool:
    return a.keys() == b.keys() and all(
        float((torch.as_tensor(x) - torch.as_tensor(y)).abs().max()) <= within
        for j in a
        for x, y in zip(a[j], b[j], strict=True)
    )


def test_knowledge_is_the_means_of_a_class() -> None:
    assert same(knowledge(visit("c1"), MODEL, Release(temperature=0.5)), plain_means("c1", 0.5))


def test_threshold() -> None:
    """ν asks for a share of a client's samples: at it is enough, below it is not."""
    shares = {j: n / 30 for j, (_, _, n) in plain_means("c0").items()}
    for nu in (0.0, *shares.values(), 1.0):
        assert set(knowledge(visit("c0"), MODEL, Release(nu=nu))) == {j for j, share in shares.items() if share >= nu}


def test_one_sample_is_shared_only_without_noise_for_a_mean() -> None:
    assert Release().shares(1, 4)
    assert Release(sigma=2.0, noise="fixed").shares(1, 4)
    assert not Release(sigma=7.0).shares(1, 4)
    assert Release(sigma=7.0).shares(2, 4)
    assert not Release().shares(0, 4)


def test_k12_temperature() -> None:
    """K12: hot predictions are uniform, cold ones sharper than at 1."""

    def entropy(temperature: float) -> float:
        soft = torch.stack([q for _, q, _ in knowledge(visit(), MODEL, Release(temperature=temperature)).values()])
        return float(-(soft * soft.log()).sum(1).mean())

    assert entropy(1e9) == pytest.approx(log(3), abs=1e-9)
    assert entropy(0.5) < entropy(1.0) < log(3)


def test_k5_predictions_are_probabilities() -> None:
    """K5: of a client, and after pooling."""
    made = {home: knowledge(visit(home), MODEL, Release(temperature=0.5, sigma=7.0)) for home in ("c0", "c1", "c2")}
    for one in (*made.values(), pool(visit("server"), made)):
        for _, soft, _ in one.values():
            assert float(soft.sum()) == pytest.approx(1, abs=1e-12)
            assert soft.min() >= 0


# -- noise


def noise_of(release: Release, home: str, number: int) -> dict[int, Tensor]:
    noisy, clean = (knowledge(visit(home, number), MODEL, r) for r in (release, Release(clip=True)))
    return {j: noisy[j][0] - clean[j][0] for j in noisy}


def test_k7_variance() -> None:
    """K7: (Sσ)² for each class of a client, and σ² Σ a² S² after pooling; by 1 200 draws, so within 15 %."""
    release, counts = Release(sigma=7.0, clip=True), {h: plain_means(h)[0][2] for h in ("c0", "c1")}
    drawn = {h: torch.stack([noise_of(release, h, number)[0] for number in range(300)]) for h in counts}
    scales = [sensitivity(3.0, n) for n in counts.values()]
    for (_, noise), s in zip(drawn.items(), scales, strict=True):
        assert float(noise.var()) == pytest.approx(noise_variance(7.0, s), rel=0.15)
    weights = [n / sum(counts.values()) for n in counts.values()]
    pooled = weights[0] * drawn["c0"] + weights[1] * drawn["c1"]
    assert float(pooled.var()) == pytest.approx(aggregated_variance(7.0, weights, scales), rel=0.15)
    made = {h: {0: (drawn[h][0], counts[h])} for h in counts}
    assert toys.gap(pool(visit("server"), made)[0][0], pooled[0]) <= 1e-12


def test_scale() -> None:
    """ζ = 3, N = 256, σ = 7: variance 0.026917; for the whole vector of 4 it is four times that."""
    assert Release(sigma=7.0).scale(256, 4) ** 2 == pytest.approx(0.026917, abs=1e-6)
    assert Release(sigma=7.0, sensitivity="l2").scale(256, 4) == 2 * Release(sigma=7.0).scale(256, 4)
    assert Release(sigma=2.0, noise="fixed").scale(256, 4) == 2.0


def test_k9_noise_is_drawn_for_each_class_and_client() -> None:
    release = Release(sigma=7.0, clip=True)
    first, again, other, later = (
        noise_of(release, home, number) for home, number in (("c0", 1), ("c0", 1), ("c1", 1), ("c0", 2))
    )
    assert all(torch.equal(first[j], again[j]) for j in first)
    units = [
        noise[j] / release.scale(plain_means(home)[j][2], 4)
        for noise, home in ((first, "c0"), (other, "c1"), (later, "c0"))
        for j in noise
    ]
    assert all(toys.gap(a, b) > 1e-3 for i, a in enumerate(units) for b in units[:i])


def test_noise_as_coded_is_one_draw_for_all_classes() -> None:
    found = [*noise_of(Release(sigma=2.0, noise="fixed", clip=True), "c0", 1).values()]
    assert all(toys.gap(found[0], other) <= 1e-12 for other in found[1:])
    assert 0.1 < float(found[0].std()) < 10


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 9), st.floats(0.1, 50))
def test_k8_one_sample_moves_a_mean_by_at_most_s(seed: int, rows: int, gain: float) -> None:
    """K8: with features clipped to ±ζ, leaving one sample out moves no coordinate by more than 2ζ/N."""
    rng = np.random.default_rng(seed)
    x = torch.tensor(rng.normal(size=(rows, 2)))
    out = int(rng.integers(rows))
    all_of = [x, torch.cat([x[:out], x[out + 1 :]])]
    means = []
    for part in all_of:
        around = toys.context([Examples(part, torch.zeros(len(part), dtype=torch.int64))], lambda: pair(gain, 0.3))
        means.append(knowledge(toys.ctx(around), around.initial(toys.ARCH, 0), Release(clip=True))[0][0])
    assert toys.gap(*means) <= sensitivity(3.0, rows) + 1e-12


# -- pooling


def test_k4_pooled_representation_is_that_of_all_samples() -> None:
    """K4: without noise and through one extractor, H_j is the mean over the union of the sharers' samples."""
    pooled = pool(visit("server"), {h: knowledge(visit(h), MODEL, Release()) for h in ("c0", "c1", "c2")})
    together = toys.join(ROWS)
    module = MODEL.load_into(two_parts())
    with torch.no_grad():
        for j, (mean, _, count) in pooled.items():
            x = together.x[together.y == j]
            assert toys.gap(mean, module.features(x).mean(0)) <= 1e-12
            assert count == len(x)


def made(classes: tuple[int, ...], count: int, seed: int) -> dict[int, tuple[Any, ...]]:
    return {j: (*pair, count + j) for j, pair in known(*classes, seed=seed).items()}


PARTS = {"c0": made((0, 1), 3, 1), "c1": made((1, 2), 9, 2), "c2": made((1,), 1, 3), "c3": {}}


def test_k3_weights_over_sharers_sum_to_one() -> None:
    """K3: by hand for class 1, with 4, 10 and 2 samples; a single sharer's mean is kept; nobody's class is absent."""
    pooled = pool(visit("server"), PARTS)
    mean = (4 * PARTS["c0"][1][0] + 10 * PARTS["c1"][1][0] + 2 * PARTS["c2"][1][0]) / 16
    assert toys.gap(pooled[1][0], mean) <= 1e-12
    assert pooled[1][2] == 16
    assert torch.equal(pooled[0][0], PARTS["c0"][0][0])
    assert set(pool(visit("server"), {"c0": PARTS["c0"]})) == {0, 1}
    alike = {h: {1: (PARTS["c0"][1][0], n)} for h, n in (("c0", 3), ("c1", 8))}
    assert toys.gap(pool(visit("server"), alike)[1][0], PARTS["c0"][1][0]) <= 1e-15


def test_pooling_over_parts_is_pooling_over_all() -> None:
    at = visit("server")
    whole = pool(at, PARTS)
    for first in (("c0",), ("c0", "c3"), ("c1", "c2"), ("c0", "c1", "c2")):
        rest = [home for home in PARTS if home not in first]
        halves = {"s0": pool(at, {h: PARTS[h] for h in first}), "s1": pool(at, {h: PARTS[h] for h in rest})}
        assert same(pool(at, halves), whole, within=1e-12)


def test_pooling_as_coded_keeps_what_came_last() -> None:
    pooled = pool(visit("server"), PARTS, how="last")
    assert torch.equal(pooled[1][0], PARTS["c2"][1][0])
    assert torch.equal(pooled[2][0], PARTS["c1"][2][0])


def test_pool_notes_how_many_classes_are_known() -> None:
    for parts_, classes in ((PARTS, 3), ({"c3": {}}, 0)):
        at = visit("server")
        pool(at, parts_)
        assert at.notes == {"knowledge_classes": classes}


def test_settled_leaves_counts_out() -> None:
    found = settled(visit("server"), pool(visit("server"), PARTS))
    assert [len(means) for means in found.values()] == [2, 2, 2]


# -- prototypes


def test_prototypes() -> None:
    expected = plain_means("c1")
    for by in ("samples", "uniform"):
        found = prototypes(visit("c1"), MODEL, by)
        assert same(found, {j: (h, n if by == "samples" else 1) for j, (h, _, n) in expected.items()})


def test_collected_prototypes() -> None:
    """While nothing moves they are those made afterwards; the model is the one that training alone gives."""
    still = train_collecting(visit("c1"), MODEL, LocalSpec(epochs=2, batch=5, lr=1e-13))
    assert same(still["prototypes"], prototypes(visit("c1"), MODEL), within=1e-9)
    spec = LocalSpec(epochs=2, batch=5, lr=0.5)
    moving = train_collecting(visit("c1"), MODEL, spec)
    assert torch.equal(moving["model"].vector, local_train(visit("c1"), MODEL, spec).vector)
    assert not same(moving["prototypes"], prototypes(visit("c1"), moving["model"]), within=1e-3)


def test_collected_prototypes_by_hand() -> None:
    """a = 1, v = 1, one row (2, class 0), two epochs of one step at lr 1: what counts is h = a·x before the last step.

    P = e²/(1 + e²). The first step moves a by (1 − P)·v·x, so the prototype is 2·(1 + 2·(1 − P)).
    """
    around = toys.context([toys.points((2, 0))], lambda: pair(1.0, 1.0))
    found = train_collecting(toys.ctx(around), around.initial(toys.ARCH, 0), LocalSpec(epochs=2, batch=1, lr=1.0))
    missing = 1 / (1 + np.exp(2))
    assert float(found["prototypes"][0][0]) == pytest.approx(2 * (1 + 2 * missing), abs=1e-12)


def test_width() -> None:
    assert width(visit("server"), toys.ARCH) == 4
