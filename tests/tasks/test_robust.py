"""Rules of robust fusion, by hand and by their promises."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.params import Layout, Params
from headwater.tasks.ensemble import Fold
from headwater.tasks.robust import Robust, agreement, fused, wrong_of

RULES = ("median", "trimmed-mean", "krum", "multi-krum", "geometric-median", "norm-bound")
LAYOUT = Layout("own", (("w", (2,)),), (), ())
SHARE = 0.2


def models(*vectors: tuple[float, float], weights: tuple[float, ...] = ()) -> dict[str, Params]:
    none = torch.zeros(0, dtype=torch.int64)
    given = weights or (1.0,) * len(vectors)
    pairs = zip(vectors, given, strict=True)
    return {f"c{i}": Params(torch.tensor(v, dtype=torch.float64), none, LAYOUT, w) for i, (v, w) in enumerate(pairs)}


def combined(rule: str, members: dict[str, Params], share: float = SHARE) -> list[float]:
    return [round(float(x), 6) for x in fused(members, "samples", Robust(rule, share)).vector]  # type: ignore[arg-type]


def test_by_hand() -> None:
    five = models((0.0, 5.0), (1.0, 4.0), (2.0, 3.0), (3.0, 2.0), (100.0, -100.0))
    assert combined("median", five) == [2.0, 3.0]
    assert combined("trimmed-mean", five) == [2.0, 3.0]  # without 0 and 100, without 5 and -100
    # One is assumed to be wrong, so two neighbours count: squared distances 2 + 8, 2 + 2, 2 + 2, 2 + 8.
    assert combined("krum", five) == [1.0, 4.0]
    assert combined("multi-krum", five) == [1.5, 3.5]
    even = models((0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (30.0, 0.0))
    assert combined("median", even) == [1.5, 0.0]
    # Distances from the median 1.5 are 1.5, 0.5, 0.5, 28.5; the bound is the lower of the two middle ones, 0.5.
    assert combined("norm-bound", even) == [1.5 + 0.25 * (-0.5 - 0.5 + 0.5 + 0.5), 0.0]


def test_the_geometric_median_of_a_right_angle() -> None:
    """The Fermat point of a triangle sees every side under 120 degrees."""
    (x, y) = fused(models((0.0, 0.0), (1.0, 0.0), (0.0, 1.0)), "uniform", Robust("geometric-median")).vector.tolist()
    point = torch.tensor([x, y])
    sides = [torch.tensor(v) - point for v in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))]
    cosine = torch.nn.functional.cosine_similarity(sides[1], sides[2], dim=0)
    assert float(cosine) == pytest.approx(-0.5, abs=1e-4)


@pytest.mark.parametrize("rule", RULES)
@given(st.integers(5, 9), st.floats(1e2, 1e6), st.booleans())
def test_a_minority_cannot_leave_the_honest_members(rule: str, count: int, far: float, same: bool) -> None:
    """However far wrong members go, in one direction or two, the result stays near the honest ones."""
    wrong = wrong_of(count, SHARE)
    honest = [(0.1 * i, -0.1 * i) for i in range(count - wrong)]
    bad = [(far if same or i % 2 else -far, far) for i in range(wrong)]
    found = fused(models(*honest, *bad), "uniform", Robust(rule, SHARE)).vector  # type: ignore[arg-type]
    assert float(found.abs().max()) <= 2.0


@pytest.mark.parametrize("rule", RULES)
def test_equal_members_give_that_member_and_the_order_does_not_matter(rule: str) -> None:
    assert combined(rule, models(*[(1.5, -2.0)] * 5)) == [1.5, -2.0]
    five = models((0.0, 5.0), (1.0, 4.0), (2.0, 3.0), (3.5, 2.0), (100.0, -100.0))
    turned = dict(reversed(five.items()))
    assert combined(rule, five) == combined(rule, turned)


def test_weights_add_up_and_nobody_can_lie_about_its_own() -> None:
    members = models((0.0, 0.0), (1.0, 1.0), (2.0, 2.0), weights=(1.0, 1.0, 1e9))
    found = fused(members, "samples", Robust("median"))
    assert found.vector.tolist() == [1.0, 1.0]
    assert found.weight == 1e9 + 2


def test_two_members_are_averaged() -> None:
    assert combined("median", models((0.0, 0.0), (4.0, 2.0), weights=(3.0, 1.0))) == [1.0, 0.5]


def test_without_a_rule_it_is_the_weighted_mean() -> None:
    assert combined("none", models((0.0, 0.0), (4.0, 2.0), (4.0, 2.0), weights=(2.0, 1.0, 1.0))) == [2.0, 1.0]


class TestTeachers:
    LOGITS = (torch.tensor([[4.0, 0.0]]), torch.tensor([[3.0, 0.0]]), torch.tensor([[5.0, 0.0]]))
    LIAR = torch.tensor([[-50.0, 50.0]])

    def probs(self, **options: object) -> float:
        fold = Fold(**options)  # type: ignore[arg-type]
        for at, output in enumerate((*self.LOGITS, self.LIAR, self.LIAR)):
            fold.add(f"t{at}", 1.0, output)
        return float(fold.target().probs[0, 0])

    def test_a_mean_follows_liars_and_a_median_does_not(self) -> None:
        assert self.probs() < 0.6
        assert self.probs(robust=Robust("median")) == pytest.approx(torch.sigmoid(torch.tensor(3.0)).item(), abs=1e-6)

    @pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "trimmed-mean"])
    def test_rules_keep_probabilities(self, rule: str) -> None:
        for mix in ("probs", "losses", "logits"):
            fold = Fold(mix=mix, robust=Robust(rule, 0.4))  # type: ignore[arg-type]
            for at, output in enumerate((*self.LOGITS, self.LIAR)):
                fold.add(f"t{at}", 1.0, output)
            target = fold.target()
            assert float(target.probs.sum()) == pytest.approx(1.0)
            assert float(target.probs[0, 0]) > 0.9

    def test_agreement_ignores_who_is_far_away(self) -> None:
        near = torch.tensor([[[0.9, 0.1]], [[0.8, 0.2]], [[0.7, 0.3]], [[0.0, 1.0]]])
        weights = agreement(near)
        assert weights[3] == 0
        assert all(weight > 0 for weight in weights[:3])

    def test_weights_by_agreement(self) -> None:
        fold = Fold(weights="agreement")
        for at, output in enumerate((*self.LOGITS, self.LIAR)):
            fold.add(f"t{at}", 1000.0 if at == 3 else 1.0, output)
        assert float(fold.target().probs[0, 0]) > 0.9
