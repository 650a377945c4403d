from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
import torch
from torch import Tensor

import toys
from headwater.core.params import Params
from headwater.tasks.ensemble import Fold, Target, ensemble, learn

X = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
AROUND = toys.context([toys.points((1, 0))], toys.Slopes)


def member(e: float, weight: float = 1.0) -> Params:
    """P(class 0 | x) = 2^(e·x) / (1 + 2^(e·x))."""
    return toys.params(toys.Slopes((e * log(2), 0.0)), weight)


def taught(team: dict[str, Params], x: Tensor = X, **options: object) -> list[float]:
    """P(class 0) for each input."""
    return ensemble(toys.ctx(AROUND), team, x, **options).probs[:, 0].tolist()


def said(team: dict[str, Params], x: Tensor) -> dict[str, Tensor]:
    return {name: toys.ctx(AROUND).flat_module(model).outputs(x) for name, model in team.items()}


# Of the first, P is ⅔ at x = 1 and ⅘ at 2; of the second ⅓ and ⅕.
TEAM = {"a": member(1, weight=3), "b": member(-1, weight=1)}


class TestMix:
    def test_probabilities(self) -> None:
        assert taught(TEAM) == pytest.approx([3 / 4 * 2 / 3 + 1 / 4 * 1 / 3, 3 / 4 * 4 / 5 + 1 / 4 * 1 / 5])

    def test_losses_teach_the_same(self) -> None:
        assert taught(TEAM, mix="losses") == pytest.approx(taught(TEAM))

    def test_logits(self) -> None:
        """¾ − ¼ = ½: P = 2^(x/2) / (1 + 2^(x/2))."""
        assert taught(TEAM, mix="logits") == pytest.approx([2**0.5 / (1 + 2**0.5), 2 / 3])


class TestWeights:
    def test_uniform(self) -> None:
        assert taught(TEAM, weights="uniform") == pytest.approx([0.5, 0.5])

    def test_samples_use_ratios_only(self) -> None:
        scaled = {name: replace(m, weight=m.weight * 1000) for name, m in TEAM.items()}
        assert taught(scaled) == pytest.approx(taught(TEAM))

    def test_labels(self) -> None:
        """Class 0 counts 1 to 3, class 1 counts 2 to 0. At x = 1: ¼·⅔ + ¾·⅓ = 5/12 and ⅓, so 5/9 if they sum to 1."""
        counts = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 0.0])}
        first = (1 / 4 * 2 / 3 + 3 / 4 * 1 / 3, 1 / 3)
        second = (1 / 4 * 4 / 5 + 3 / 4 * 1 / 5, 1 / 5)
        expected = [a / (a + b) for a, b in (first, second)]
        assert taught(TEAM, weights="labels", counts=counts) == pytest.approx(expected)
        assert expected[0] == pytest.approx(5 / 9)

    def test_a_class_nobody_has_gets_no_probability(self) -> None:
        counts = {"a": torch.tensor([0.0, 2.0]), "b": torch.tensor([0.0, 1.0])}
        assert taught(TEAM, weights="labels", counts=counts) == [0.0, 0.0]

    def test_labels_need_counts(self) -> None:
        with pytest.raises(ValueError, match="label counts"):
            taught(TEAM, weights="labels")

    def test_confidence(self) -> None:
        """One minus entropy in bits: at x = 1 both are alike, at 2 too; against a sure third one they hardly count."""
        assert taught(TEAM, weights="confidence") == pytest.approx([0.5, 0.5])
        undecided, sure = member(0), member(20)
        assert taught({"a": undecided, "b": sure}, weights="confidence") == pytest.approx([1.0, 1.0], abs=1e-5)
        entropy = -(2 / 3 * log(2 / 3, 2) + 1 / 3 * log(1 / 3, 2))
        surer = -(16 / 17 * log(16 / 17, 2) + 1 / 17 * log(1 / 17, 2))
        weight = (1 - entropy, 1 - surer)
        expected = (weight[0] * 1 / 3 + weight[1] * 16 / 17) / sum(weight)
        assert taught({"a": member(-1), "b": member(4)}, X[:1], weights="confidence") == pytest.approx(
            [expected], abs=1e-5
        )

    def test_undecided_members_still_make_a_teacher(self) -> None:
        assert taught({"a": member(0), "b": member(0)}, weights="confidence") == pytest.approx([0.5, 0.5])

    @pytest.mark.parametrize("mix", ["probs", "logits", "losses"])
    def test_a_member_of_weight_zero_is_not_heard(self, mix: str) -> None:
        silent = {"z": member(9, weight=0), **TEAM}
        assert taught(silent, mix=mix) == pytest.approx(taught(TEAM, mix=mix))
        assert taught({**TEAM, "z": member(9, weight=0)}, mix=mix) == pytest.approx(taught(TEAM, mix=mix))

    def test_nobody_with_weight(self) -> None:
        with pytest.raises(ValueError, match="all of them weigh 0"):
            taught({"a": member(1, weight=0)})

    def test_nobody(self) -> None:
        with pytest.raises(ValueError, match="at least one member"):
            taught({})


class TestSharpen:
    def test_squares(self) -> None:
        """τ = ½ squares: ⅔ becomes (4/9)/(4/9 + 1/9) = ⅘, and the mean 7/12 becomes 49/(49 + 25)."""
        assert taught({"a": member(1)}, sharpen=0.5) == pytest.approx([4 / 5, 16 / 17])
        assert taught(TEAM, X[:1], sharpen=0.5) == pytest.approx([49 / 74])

    def test_roots(self) -> None:
        """τ = 2 takes roots, which makes a teacher less sure."""
        assert taught({"a": member(2)}, X[:1], sharpen=2.0) == pytest.approx([2 / 3])

    def test_comes_after_the_mean(self) -> None:
        apart = [p**2 / (p**2 + (1 - p) ** 2) for p in (2 / 3, 1 / 3)]
        assert taught(TEAM, X[:1], sharpen=0.5) != pytest.approx([3 / 4 * apart[0] + 1 / 4 * apart[1]])

    def test_the_loss_is_that_of_the_sharpened_teacher(self) -> None:
        """A student that says what a sharpened member(1) says, member(2), has nothing to learn."""
        target = ensemble(toys.ctx(AROUND), {"a": member(1)}, X, sharpen=0.5)
        output = toys.ctx(AROUND).flat_module(member(2)).outputs(X)
        assert float(target.loss(torch.arange(2), output, 1.0)) == pytest.approx(0, abs=1e-12)

    def test_of_a_class_without_probability(self) -> None:
        counts = {"a": torch.tensor([0.0, 2.0]), "b": torch.tensor([0.0, 1.0])}
        assert taught(TEAM, weights="labels", counts=counts, sharpen=0.5) == [0.0, 0.0]


class TestLearned:
    """At x = 1, member(1) says ⅔ for class 0 and member(-1) says ⅓."""

    def shares(self, team: dict[str, Params], *rows: tuple[float, int], **options: object) -> list[float]:
        return list(learn(said(team, toys.points(*rows).x), toys.points(*rows).y, **options).values())

    def test_of_probabilities(self) -> None:
        """Three rows of class 0 and two of class 1: 3·log(1 + a) + 2·log(2 − a) is largest at a = (6 − 2)/5."""
        found = self.shares({"a": member(1), "b": member(-1)}, *[(1, 0)] * 3, *[(1, 1)] * 2)
        assert found == pytest.approx([4 / 5, 1 / 5], abs=1e-8)

    def test_of_logits(self) -> None:
        """P(class 0) = odds of 2^(2a − 1) must be ⅗, so 2a − 1 = log₂ 1.5."""
        found = self.shares({"a": member(1), "b": member(-1)}, *[(1, 0)] * 3, *[(1, 1)] * 2, mix="logits")
        assert found == pytest.approx([(1 + log(1.5, 2)) / 2, (1 - log(1.5, 2)) / 2], abs=1e-6)

    def test_at_the_edge(self) -> None:
        """Of one that is right and one that is wrong on all rows, the wrong one gets nothing."""
        for mix in ("probs", "logits", "losses"):
            found = self.shares({"a": member(-1), "b": member(3)}, (1, 0), (2, 0), mix=mix)
            assert found == pytest.approx([0, 1], abs=1e-3)

    def test_with_temperature(self) -> None:
        """T = 2 makes member(2) say what member(1) says."""
        rows = [(1.0, 0)] * 3 + [(1.0, 1)] * 2
        found = self.shares({"a": member(2), "b": member(-2)}, *rows, temperature=2.0)
        assert found == pytest.approx([4 / 5, 1 / 5], abs=1e-8)

    @pytest.mark.parametrize("mix", ["probs", "logits"])
    def test_equal_members_count_alike(self, mix: str) -> None:
        team = {name: member(1, weight) for name, weight in (("a", 1), ("b", 5), ("c", 2))}
        assert self.shares(team, (1, 0), (2, 1), mix=mix) == pytest.approx([1 / 3] * 3)

    @pytest.mark.parametrize("mix", ["probs", "logits"])
    def test_no_other_shares_are_better(self, mix: str) -> None:
        """Cross-entropy of the teacher with the labels, at the shares found and all around them."""
        team = {"a": member(2), "b": member(-1), "c": member(0.3)}
        rows = toys.points((1, 0), (2, 1), (-1, 0), (-2, 1), (0.5, 0), (3, 0), (-1, 1))
        found = learn(said(team, rows.x), rows.y, mix=mix)
        assert sum(found.values()) == pytest.approx(1)

        def loss(shares: dict[str, float]) -> float:
            target = ensemble(toys.ctx(AROUND), team, rows.x, mix=mix, weights="learned", shares=shares)
            return -float(target.probs.gather(1, rows.y.unsqueeze(1)).log().mean())

        least = loss(found)
        rng = torch.Generator().manual_seed(0)
        for reach in (0.01, 0.1, 1.0):
            for _ in range(20):
                other = torch.rand(3, generator=rng, dtype=torch.float64)
                other = other / other.sum()
                mixed = {k: (1 - reach) * found[k] + reach * float(o) for k, o in zip(team, other, strict=True)}
                assert loss(mixed) >= least - 1e-9

    def test_of_members_that_are_surely_wrong(self) -> None:
        """Probabilities that are 0 as numbers still have a ratio: the less wrong one is heard."""
        found = self.shares({"a": member(-4000), "b": member(-2000)}, (1, 0), (2, 0))
        assert found == pytest.approx([0, 1])

    def test_are_used_as_they_are(self) -> None:
        found = taught(TEAM, weights="learned", shares={"a": 0.2, "b": 0.8})
        assert found == pytest.approx([0.2 * 2 / 3 + 0.8 / 3, 0.2 * 4 / 5 + 0.8 / 5])

    def test_need_to_be_given(self) -> None:
        with pytest.raises(ValueError, match="shares"):
            taught(TEAM, weights="learned")


class TestTemperature:
    def test_softens_members_before_the_mean(self) -> None:
        """T = 2 halves every exponent."""
        soft = [2 ** (x / 2) / (1 + 2 ** (x / 2)) for x in (1, 2)]
        assert taught(TEAM, temperature=2.0) == pytest.approx([3 / 4 * p + 1 / 4 * (1 - p) for p in soft])

    def test_of_logits(self) -> None:
        assert taught(TEAM, mix="logits", temperature=2.0) == pytest.approx(
            [2**0.25 / (1 + 2**0.25), 2**0.5 / (1 + 2**0.5)]
        )

    def test_applies_to_the_student_too(self) -> None:
        target = ensemble(toys.ctx(AROUND), {"a": member(1)}, X, temperature=2.0)
        output = toys.ctx(AROUND).flat_module(member(1)).outputs(X)
        assert float(target.loss(torch.arange(2), output, 2.0)) == pytest.approx(0, abs=1e-12)
        assert float(target.loss(torch.arange(2), output, 1.0)) > 1e-3


class TestTarget:
    def test_loss_is_the_mean_divergence(self) -> None:
        """Teacher ⅘, student ½: ⅘ ln(8/5) + ⅕ ln(2/5)."""
        probs = torch.tensor([[0.8, 0.2]], dtype=torch.float64)
        target = Target(probs, torch.xlogy(probs, probs).sum(1))
        found = target.loss(torch.tensor([0, 0]), torch.zeros(2, 2, dtype=torch.float64), 1.0)
        assert float(found) == pytest.approx(0.8 * log(1.6) + 0.2 * log(0.4))

    def test_loss_of_a_sure_teacher_is_finite(self) -> None:
        target = ensemble(toys.ctx(AROUND), {"a": member(5000)}, X)
        assert torch.isfinite(target.loss(torch.arange(2), torch.zeros(2, 2, dtype=torch.float64), 1.0))

    def test_accuracy(self) -> None:
        target = ensemble(toys.ctx(AROUND), {"a": member(1)}, X)
        assert target.accuracy(torch.tensor([0, 1])) == 0.5

    def test_rows_are_chosen_by_the_batch(self) -> None:
        target = ensemble(toys.ctx(AROUND), {"a": member(1)}, X)
        zero = torch.zeros(1, 2, dtype=torch.float64)
        apart = [float(target.loss(torch.tensor([i]), zero, 1.0)) for i in (0, 1)]
        assert apart[0] < apart[1]
        both = float(target.loss(torch.tensor([1, 0]), torch.zeros(2, 2, dtype=torch.float64), 1.0))
        assert both == pytest.approx(sum(apart) / 2)


def test_order_of_members_does_not_matter() -> None:
    team = {"a": member(1, 3), "b": member(-2, 1), "c": member(0.5, 2)}
    back = dict(reversed(team.items()))
    for weights in ("samples", "uniform", "confidence"):
        for mix in ("probs", "logits"):
            assert taught(team, mix=mix, weights=weights) == pytest.approx(
                taught(back, mix=mix, weights=weights), abs=1e-12
            )


def test_loss_of_losses_by_labels() -> None:
    """Its constant belongs to the weights that the classes really have: Σ_k Σ_c a_kc p_kc (log p_kc − log s_c)."""
    counts = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 0.0])}
    target = ensemble(toys.ctx(AROUND), TEAM, X[:1], mix="losses", weights="labels", counts=counts)
    # a: ¼·⅔ of class 0 and 1·⅓ of class 1; b: ¾·⅓ of class 0; divided by their sum 3/4
    parts = [(1 / 6, 2 / 3), (1 / 3, 1 / 3), (1 / 4, 1 / 3)]
    expected = sum(a * (log(p) - log(1 / 2)) for a, p in parts) / (3 / 4)
    zero = torch.zeros(1, 2, dtype=torch.float64)
    assert float(target.loss(torch.tensor([0]), zero, 1.0)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mix", "weights"),
    [
        (mix, weights)
        for mix in ("probs", "logits", "losses")
        for weights in ("samples", "uniform", "labels", "confidence", "learned")
        if (mix, weights) != ("logits", "labels")
    ],
)
def test_blocks_of_rows(mix: str, weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table may be gone through in parts, the last one smaller: nothing of a row depends on another."""
    x = torch.linspace(-3, 3, 20, dtype=torch.float64).unsqueeze(1)
    team = {"a": member(1, 3), "b": member(-2, 1), "c": member(0.5, 2)}
    options = {
        "counts": {name: torch.tensor([1.0 + i, 2.0]) for i, name in enumerate(team)},
        "shares": {"a": 0.2, "b": 0.5, "c": 0.3},
    }
    found = []
    for block in (100, 7):
        monkeypatch.setattr("headwater.tasks.ensemble.BLOCK", block)
        found.append(ensemble(toys.ctx(AROUND), team, x, mix=mix, weights=weights, **options))
    assert toys.gap(found[0].probs, found[1].probs) <= 1e-15
    assert toys.gap(found[0].constant, found[1].constant) <= 1e-15


def test_members_are_not_changed_by_their_mean() -> None:
    """The first member's outputs are where the mean begins; they may belong to somebody."""
    said = torch.tensor([[1.0, -1.0], [0.5, 2.0]])
    before, fold = said.clone(), Fold(mix="logits")
    fold.add("a", 1.0, said)
    fold.add("b", 3.0, -said)
    assert fold.target().probs[0].tolist() == pytest.approx(torch.softmax(-0.5 * before[0], 0).tolist())
    assert torch.equal(said, before)
