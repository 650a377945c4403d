"""Bounds and noise on updates: by hand, by brute force over neighbouring sets of clients, and by their variance."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.params import Layout, Params
from headwater.core.rng import SecretStream
from headwater.core.tree import ROOT
from headwater.errors import ConfigError
from headwater.models.base import ModelSpec
from headwater.tasks.average import average
from headwater.tasks.local import local_train
from headwater.tasks.privacy import Privacy, as_sent, check, draws_noise, mean_and_influence, shortened
from headwater.tasks.task import TaskContext
from toys import context, linear, normed, points

LAYOUT = Layout("own", (("w", (2,)),), (), ())
CLIP = 1.5
ROWS = [points((1.0, 0), (2.0, 1)), points((-1.0, 1))]


def model(*numbers: float, weight: float = 1.0) -> Params:
    vector = torch.tensor(numbers, dtype=torch.float64)
    layout = LAYOUT if len(numbers) == 2 else Layout("own", (("w", (len(numbers),)),), (), ())
    return Params(vector, torch.zeros(0, dtype=torch.int64), layout, weight)


def sent(privacy: Privacy, start: Params, trained: Any, secret: str = "", seed: int = 0, node: str = "c0") -> Any:
    run = replace(context(ROWS, linear), privacy=privacy, secret=secret, seed=seed)
    call = SimpleNamespace(task=local_train, phase="train")
    return as_sent(run, call, node, {"start": start}, (1, "local_train", 0, node), trained)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2), st.floats(1e-3, 1e3))
def test_no_update_is_longer_than_the_bound(update: list[float], bound: float) -> None:
    given_ = torch.tensor(update, dtype=torch.float32)
    short = shortened(given_, bound)
    assert float(short.double().norm()) <= bound
    if float(given_.double().norm()) <= bound:
        assert short is given_
    elif float(short.norm()) > 0:
        assert torch.allclose(short / short.norm(), given_ / given_.norm(), atol=1e-5)


def test_a_model_is_moved_back_to_the_bound_and_counts_as_one() -> None:
    found = sent(Privacy(clip=5.0), model(1.0, 1.0), {"model": model(7.0, 9.0, weight=40.0), "count": 40})
    assert found["model"].vector.tolist() == pytest.approx([4.0, 5.0], rel=1e-5)
    assert (found["model"].weight, found["count"]) == (1.0, 40)
    near = model(1.5, 1.0, weight=40.0)
    assert sent(Privacy(clip=5.0), model(1.0, 1.0), near).vector is near.vector  # to the bit
    assert sent(Privacy(), model(1.0, 1.0), near) is near
    assert sent(Privacy(clip=5.0), model(1.0, 1.0), near, node="server") is near
    broken = sent(Privacy(clip=5.0), model(1.0, 1.0), model(float("nan"), 2.0))
    assert broken.vector.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("by", ["samples", "uniform"])
@pytest.mark.parametrize("tiers", [1, 2])
def test_one_client_changes_a_mean_by_the_bound_and_no_more(by: Any, tiers: int) -> None:
    """Brute force: every set of clients with updates at the ends, without the update of each, or with another one."""
    start, ends = model(0.3, -0.2), [(9.0, 0.0), (-9.0, 0.0), (0.0, 7.0), (0.1, -0.4)]
    pool = [sent(Privacy(clip=CLIP), start, start + model(*u)) for u in ends]

    def fused(members: list[Params]) -> tuple[Params, float]:
        if tiers == 1:
            return mean_and_influence(members, by)
        halves = [members[: len(members) // 3 + 1], members[len(members) // 3 + 1 :]]  # of unequal size
        return mean_and_influence([mean_and_influence(half, by)[0] for half in halves if half], by)

    reached: dict[int, float] = {}
    for size in range(2, 6):
        for members in combinations([*pool, *pool[:2]], size):
            whole, influence = fused(list(members))
            assert influence >= 1 / size - 1e-12
            for at in range(size):
                others = [start, *pool]
                moved = [
                    float((whole - fused([*members[:at], other, *members[at + 1 :]])[0]).vector.norm())
                    for other in others
                ]
                assert moved[0] <= CLIP * influence * (1 + 1e-9)  # its update left out
                assert max(moved) <= 2 * CLIP * influence * (1 + 1e-9)  # another one in its place
                reached[size] = max(reached.get(size, 0.0), moved[0] / (CLIP * influence))
    assert min(reached.values()) > 0.999  # the bound is not larger than it has to be


def test_the_noise_of_a_client_has_the_configured_variance() -> None:
    start = model(*[0.0] * 4000)
    for secret in ("", "own"):
        noise = sent(Privacy(CLIP, 2.0), start, start, secret).vector
        assert float(noise.std()) == pytest.approx(2.0 * CLIP, rel=0.05)
        assert abs(float(noise.mean())) < 4 * 2.0 * CLIP / 4000**0.5
        assert torch.equal(noise, sent(Privacy(CLIP, 2.0), start, start, secret).vector)
    assert not torch.equal(noise, sent(Privacy(CLIP, 2.0), start, start, "other").vector)
    assert torch.equal(noise, sent(Privacy(CLIP, 2.0), start, start, "own", seed=7).vector)  # the seed is public


def test_a_secret_draws_other_noise_for_another_update() -> None:
    """Else a repeated round would show the difference of two updates without noise."""
    start, privacy = model(0.0, 0.0), Privacy(CLIP, 1.0)
    first, second = (sent(privacy, start, model(x, 0.0), "own").vector - model(x, 0.0).vector for x in (0.1, 0.2))
    assert not torch.allclose(first, second, atol=1e-3)


@pytest.mark.parametrize(("at", "home"), [("server", ROOT), ("sector", "s0")])
def test_the_noise_of_a_mean_is_scaled_by_the_clients_in_it(at: Any, home: str) -> None:
    run = replace(context(ROWS, linear), privacy=Privacy(CLIP, 2.0, at))
    start = model(*[0.0] * 4000)
    members = {f"c{i}": replace(start, weight=float(n)) for i, n in enumerate((1, 3))}  # the second is of three clients
    deviations = {}
    for by in ("samples", "uniform"):
        mean = average(TaskContext(run, home, (1, "average", 0, home)), members, by=by)
        deviations[by] = float(mean.vector.std())
        assert mean.weight == 4.0
    assert deviations["samples"] == pytest.approx(2.0 * CLIP / 4, rel=0.05)
    assert deviations["uniform"] == pytest.approx(2.0 * CLIP / 2, rel=0.05)  # the single client counts a half
    elsewhere = "s0" if home == ROOT else ROOT
    plain = average(TaskContext(run, elsewhere, (1, "average", 0, elsewhere)), members)
    assert float(plain.vector.abs().max()) == 0.0


def test_an_adapted_bound_costs_a_part_of_the_same_privacy() -> None:
    privacy = Privacy(CLIP, 2.0, "server", quantile=0.5)
    assert privacy.of_updates > 2.0
    # Two Gaussian mechanisms together: of a sum with sensitivity clip, and of a count with sensitivity one half.
    assert privacy.of_updates**-2 + (2 * privacy.of_shares) ** -2 == pytest.approx(2.0**-2)
    for within, expected in (([1.0, 1.0], np.exp(-0.2 * 0.5)), ([0.0, 0.0], np.exp(0.2 * 0.5)), ([1.0, 0.0], 1.0)):
        assert privacy.adapted(CLIP, within, 0.0) == pytest.approx(CLIP * expected)
    assert privacy.adapted(CLIP, [1.0, 0.0], 1.0) == pytest.approx(CLIP * np.exp(-0.2 * privacy.of_shares / 2))
    assert privacy.adapted(CLIP, [], 1.0) == CLIP
    found = sent(privacy, model(0.0, 0.0), model(3.0, 4.0))
    assert float(found.vector.norm()) == pytest.approx(CLIP, rel=1e-5)


def test_clients_report_no_losses_if_there_is_noise() -> None:
    for privacy, expected in ((Privacy(CLIP, 1.0), {"released": 2.0}), (Privacy(), {"loss": 0.5, "released": 2.0})):
        run = replace(context(ROWS, linear), privacy=privacy)
        own, server = (TaskContext(run, home, (1,)) for home in ("c0", ROOT))
        for each in (own, server):
            each.note(loss=0.5, released=2)
        assert own.notes == expected
        assert server.notes == {"loss": 0.5, "released": 2.0}


def test_numbers_of_a_secret_are_uniform_and_normal() -> None:
    drawn = SecretStream("own", 1, "c0")
    uniform, normal = drawn.random(20_000), drawn.normal(20_000)
    assert 0 < uniform.min() < uniform.max() < 1
    assert np.histogram(uniform, 10, (0, 1))[0] == pytest.approx(2000, abs=200)
    assert (normal.mean(), normal.std()) == pytest.approx((0, 1), abs=0.03)
    assert not np.array_equal(uniform, drawn.random(20_000))


def test_a_training_with_noise_is_a_release() -> None:
    assert draws_noise(local_train, Privacy(1.0, 1.0))
    assert draws_noise(local_train, Privacy(row_clip=1.0, row_noise=1.0))
    assert not draws_noise(local_train, Privacy(1.0, 1.0, "server"))
    assert not draws_noise(average, Privacy(1.0, 1.0))


@pytest.mark.parametrize(
    ("privacy", "rules", "maker", "said"),
    [
        (Privacy(noise=1.0), {}, linear, "privacy.noise = 1 is a multiple of privacy.clip, which must be above 0"),
        (Privacy(float("inf"), 1.0), {}, linear, "above 0 and finite, got inf"),
        (Privacy(row_noise=1.0), {}, linear, "a multiple of privacy.row_clip"),
        (Privacy(1.0, 1.0, "server"), {"server": "median"}, linear, "robust.server = 'median' is none"),
        (Privacy(1.0, 1.0, quantile=0.5), {}, linear, "privacy.quantile = 0.5 adapts the bound"),
        (Privacy(1.0, 1.0), {}, normed, "has batch norm"),
        (Privacy(row_clip=1.0), {}, normed, "such as one with model.norm = 'group'"),
    ],
)
def test_noise_that_would_not_protect_is_refused(privacy: Privacy, rules: Any, maker: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check(privacy, rules, [ModelSpec("own", (3,), 3, builder=maker)])
    check(
        replace(privacy, noise=0.0, row_noise=0.0, row_clip=0.0, quantile=0.0),
        rules,
        [ModelSpec("own", (3,), 3, builder=normed)],
    )
