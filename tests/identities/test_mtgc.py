"""M1 to M11: what MTGC's corrections are, where they lead, and what the method is without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import bowls
import chosen
import toys
from headwater.algorithms.centralized import Centralized
from headwater.algorithms.hfedavg import HFedAvg
from headwater.algorithms.hscaffold import HScaffold
from headwater.algorithms.mtgc import Mtgc
from headwater.algorithms.scaffold import Scaffold
from headwater.core.federation import CLIENTS, SECTORS, SERVER, each
from headwater.data.base import Examples
from headwater.errors import ConfigError
from headwater.models.base import ModelSpec
from headwater.specs import LocalSpec

SIZES = (5, 1, 3, 8, 2, 4)
MAP = (0, 1, 0, 1, 1, 2)
TEAMS = [[i for i in range(6) if MAP[i] == sector] for sector in range(3)]
FEW = LocalSpec(steps=3, batch=99, lr=0.1)
BATCHES = LocalSpec(steps=4, batch=2, lr=0.2)
NETS = [toys.blobs(n, seed=i) for i, n in enumerate(SIZES)]


def net(method: object, rounds: int = 3, sectors: Sequence[int] = MAP) -> torch.Tensor:
    """The model after some rounds with mini-batches on a net."""
    return toys.play(method, NETS, sectors, toys.net, rounds, classes=3).vector


def test_a_stochastic_start_is_that_by_gradients_where_a_batch_has_all_rows() -> None:
    whole, small = replace(BATCHES, batch=8), BATCHES
    both = [[net(Mtgc(spec, z_init=z_init)) for z_init in ("gradient", "stochastic")] for spec in (whole, small)]
    assert torch.equal(*both[0])
    assert toys.gap(*both[1]) > 1e-4


@pytest.mark.parametrize("by", ["uniform", "samples"])
@pytest.mark.parametrize(
    ("options", "who"),
    [
        ({}, None),
        ({}, bowls.half),
        ({"z_init": "gradient"}, None),
        ({"z_init": "stochastic"}, None),
        ({"z_scale": "HE"}, bowls.half),
        ({"sample": "sector-round"}, bowls.half),
    ],
)
def test_m1_corrections_add_up_to_nothing(options: dict[str, Any], who: Any, by: str) -> None:
    """M1 (and M9): in every sector Σ z = 0, and Σ y = 0, by weight where the means are weighted."""
    with toys.lab(Mtgc(BATCHES, by=by, **options), NETS, MAP, toys.net, classes=3) as lab:
        for number in range(1, 4):
            came = who(lab, number) if who else lab.tree.holders
            lab.round(number, came)
            z, y = bowls.values(lab, lab.state.z), bowls.values(lab, lab.state.y)
            for team in TEAMS:
                weights = {f"c{i}": SIZES[i] if by == "samples" else 1 for i in team}
                assert np.abs(sum(w * z[c] for c, w in weights.items() if c in z)).max() <= 1e-9
            if by == "uniform":
                assert np.abs(sum(y.values())).max() <= 1e-9
            elif who is None:
                weight = {f"s{sector}": sum(SIZES[i] for i in team) for sector, team in enumerate(TEAMS)}
                assert np.abs(sum(weight[s] * y[s] for s in y)).max() <= 1e-9
        assert max(np.abs(v).max() for v in y.values()) > 1e-3


def closed_form(losses: list[Any], rounds: int, paces: int, keep: bool) -> list[dict[str, Any]]:
    """M2's other way to write the method: z = mean ḡ − ḡ_i and y = mean G − G_j, without memory of what they were."""
    x, z, y, states = np.zeros(2), np.zeros((6, 2)), np.zeros((3, 2)), []
    for _ in range(rounds):
        z = z if keep else np.zeros((6, 2))
        models, used = np.tile(x, (3, 1)), np.zeros((3, paces, 2))
        for e in range(paces):
            for j, team in enumerate(TEAMS):
                ends, means = [], []
                for i in team:
                    w, gradients = models[j], []
                    for _ in range(FEW.steps or 0):
                        gradients.append(losses[i].gradient(w))
                        w = w - FEW.lr * (gradients[-1] + z[i] + y[j])
                    ends.append(w)
                    means.append(np.mean(gradients, axis=0))
                models[j], used[j, e] = np.mean(ends, axis=0), np.mean(means, axis=0)
                for i, own in zip(team, means, strict=True):
                    z[i] = used[j, e] - own
        x, by_sector = models.mean(axis=0), used.mean(axis=1)
        y = by_sector.mean(axis=0) - by_sector
        states.append({"x": x, "z": z.copy(), "y": y.copy()})
    return states


@pytest.mark.parametrize("z_init", ["keep", "zero"])
@pytest.mark.parametrize("paces", [1, 3])
def test_m2_corrections_are_differences_of_mean_gradients(z_init: str, paces: int) -> None:
    """M2, with scales 1/(Hγ) and 1/(HEγ): the whole state, round by round."""
    clients, losses = bowls.bowls(6, 1, rows=SIZES)
    with toys.lab(Mtgc(FEW, sector_rounds=paces, z_init=z_init), clients, MAP, toys.Bowl) as lab:
        for number, expected in enumerate(closed_form(losses, 4, paces, z_init == "keep"), 1):
            lab.round(number)
            z, y = bowls.values(lab, lab.state.z), bowls.values(lab, lab.state.y)
            assert np.abs(lab.vector.numpy() - expected["x"]).max() <= 1e-10
            assert max(np.abs(z[f"c{i}"] - expected["z"][i]).max() for i in range(6)) <= 1e-10
            assert max(np.abs(y[f"s{j}"] - expected["y"][j]).max() for j in range(3)) <= 1e-10


def test_m2_does_not_hold_for_the_other_scale() -> None:
    clients, losses = bowls.bowls(6, 1, rows=SIZES)
    found = bowls.run(Mtgc(FEW, sector_rounds=3, z_scale="HE"), clients, MAP, 4)
    assert bowls.error(found, closed_form(losses, 4, 3, True)[-1]["x"]) > 1e-4


@pytest.mark.parametrize("by", chosen.first(["uniform", "samples"], ["samples"]))
def test_m3_without_corrections(by: str) -> None:
    """M3: it is hierarchical FedAvg, with mini-batches; y off is HScaffold; z off is neither."""
    off = net(Mtgc(BATCHES, sector_rounds=3, use_z=False, use_y=False, by=by))
    assert toys.gap(off, net(HFedAvg(BATCHES, sector_rounds=3, by=by))) <= 1e-12
    no_y = net(Mtgc(BATCHES, sector_rounds=3, use_y=False, by=by))
    assert toys.gap(no_y, net(HScaffold(BATCHES, sector_rounds=3, by=by))) <= 1e-12
    no_z = net(Mtgc(BATCHES, sector_rounds=3, use_z=False, by=by))
    both = net(Mtgc(BATCHES, sector_rounds=3, by=by))
    found = [off, no_y, no_z, both]
    assert min(toys.gap(a, b) for n, a in enumerate(found) for b in found[:n]) > 1e-4


FOUR = (0, 0, 1, 1)
PACE = LocalSpec(steps=2, batch=99, lr=0.15)


def limit(losses_seed: int, method: object, rounds: int, **options: Any) -> float:
    """How far from the optimum a method is after so many rounds on four clients in two sectors."""
    clients, losses = bowls.bowls(4, losses_seed)
    return bowls.error(bowls.run(method, clients, FOUR, rounds, **options), bowls.optimum(losses))


def test_m4_who_reaches_the_optimum() -> None:
    """M4: "gradient" and "keep" do, "zero" is near, either correction alone is not, and neither is farthest off."""
    found = {
        "neither": limit(3, HFedAvg(PACE, sector_rounds=2, by="uniform"), 10),
        "z": limit(3, Mtgc(PACE, use_y=False), 10),
        "y": limit(3, Mtgc(PACE, use_z=False), 10),
        "zero": limit(3, Mtgc(PACE, z_init="zero"), 10),
        "keep": limit(3, Mtgc(PACE), 28),
        "gradient": limit(3, Mtgc(PACE, z_init="gradient"), 28),
    }
    assert max(found["keep"], found["gradient"]) <= 1e-10
    assert min(found["neither"], found["z"], found["y"]) > 1e-3
    assert 1e-6 < found["zero"] < min(found["neither"], found["z"], found["y"])


def test_one_step_a_sector_round_needs_no_z() -> None:
    """H = 1: clients of a sector step from one point, z cancels in their mean, and y alone reaches the optimum."""
    once = replace(PACE, steps=1)
    clients, _ = bowls.bowls(4, 3)
    both, alone = (bowls.run(Mtgc(once, use_z=use_z), clients, FOUR, 3) for use_z in (True, False))
    assert toys.gap(both, alone) <= 1e-10
    assert limit(3, Mtgc(once, use_z=False), 60) <= 1e-9


@pytest.mark.parametrize(("steps", "paces", "lr"), [(1, 1, 0.3), (4, 3, 0.1), (2, 5, 0.6)])
def test_m5_fixed_point(steps: int, paces: int, lr: float) -> None:
    """M5: at the optimum, with z = ∇f_j − ∇F_i and y = ∇f − ∇f_j, nothing moves, for any H, E and step."""
    clients, losses = bowls.bowls(6, 5, rows=SIZES)
    by_sector = [1 / (3 * len(TEAMS[MAP[i]])) for i in range(6)]  # uniform over sectors, then over clients
    target = bowls.optimum(losses, by_sector)
    own = {i: losses[i].gradient(target) for i in range(6)}
    ours = {j: np.mean([own[i] for i in team], axis=0) for j, team in enumerate(TEAMS)}
    z = {f"c{i}": tuple(ours[MAP[i]] - own[i]) for i in range(6)}
    y = {f"s{j}": tuple(-ours[j]) for j in range(3)}
    method = Mtgc(LocalSpec(steps=steps, batch=99, lr=lr), sector_rounds=paces)
    with toys.lab(method, clients, MAP, toys.Bowl) as lab:
        fed, model = lab.fed, lab.state.model
        there = fed.run(bowls.placed, at=SERVER, like=model, numbers=tuple(target))
        sector, client = fed.down(model), fed.down(model, to=CLIENTS)
        lab.state = replace(
            lab.state,
            model=there,
            start=fed.down(there),
            y=fed.run(bowls.placed, at=SECTORS, like=sector, numbers=each(y)),
            z=fed.run(bowls.placed, at=CLIENTS, like=client, numbers=each(z)),
        )
        lab.round(1).round(2)
        assert np.abs(lab.vector.numpy() - target).max() <= 1e-10
        assert max(np.abs(v - y[s]).max() for s, v in bowls.values(lab, lab.state.y).items()) <= 1e-9
        assert max(np.abs(v - z[c]).max() for c, v in bowls.values(lab, lab.state.z).items()) <= 1e-9


def test_m6_one_sector_is_scaffold() -> None:
    """M6: with mini-batches when averaged once a round, and also many sector rounds as many rounds."""
    once = net(Mtgc(BATCHES, sector_rounds=1), 4, (0,) * 6)
    assert toys.gap(once, net(Scaffold(BATCHES), 4, (0,) * 6)) <= 1e-10
    clients, _ = bowls.bowls(6, 6, rows=SIZES)
    many = bowls.run(Mtgc(FEW, sector_rounds=5), clients, (0,) * 6, 1)
    assert toys.gap(many, bowls.run(Scaffold(FEW), clients, (0,) * 6, 5)) <= 1e-10


def test_m6_sectors_of_one_client_are_scaffold() -> None:
    """M6: a sector's correction is then its client's, over H · E steps."""
    clients, _ = bowls.bowls(6, 7, rows=SIZES)
    paced = bowls.run(Mtgc(FEW, sector_rounds=2), clients, range(6), 4)
    assert toys.gap(paced, bowls.run(Scaffold(replace(FEW, steps=6)), clients, range(6), 4)) <= 1e-10
    assert toys.gap(paced, bowls.run(Scaffold(FEW), clients, range(6), 4)) > 1e-3


def test_m7_one_sector_round_from_zero_never_uses_z() -> None:
    """M7: it is y alone, with mini-batches."""
    zero = net(Mtgc(BATCHES, sector_rounds=1, z_init="zero"))
    assert torch.equal(zero, net(Mtgc(BATCHES, sector_rounds=1, use_z=False)))
    assert toys.gap(zero, net(Mtgc(BATCHES, sector_rounds=1))) > 1e-4


@pytest.mark.parametrize("z_init", ["keep", "gradient", "zero"])
def test_m8_equal_clients(z_init: str) -> None:
    """M8: nothing to correct, and every round is H · E steps of gradient descent."""
    clients, _ = bowls.bowls(1, 8)
    with toys.lab(Mtgc(FEW, sector_rounds=2, z_init=z_init), clients * 5, (0, 0, 1, 1, 1), toys.Bowl) as lab:
        lab.round(1).round(2)
        assert all(np.abs(v).max() <= 1e-12 for v in bowls.values(lab, lab.state.z).values())
        assert all(np.abs(v).max() <= 1e-12 for v in bowls.values(lab, lab.state.y).values())
        pooled = bowls.run(Centralized(replace(FEW, steps=12)), clients, (0,), 1)
        assert toys.gap(lab.model, pooled) <= 1e-10


def two_of_each(lab: toys.Lab, number: int) -> tuple[str, ...]:
    """Two of each sector's three. One alone is its sector's mean, and would learn nothing of how it differs."""
    rng = np.random.default_rng(number)
    teams = (["c0", "c1", "c2"], ["c3", "c4", "c5"])
    return tuple(c for team in teams for c in rng.choice(team, 2, replace=False).tolist())


@pytest.mark.parametrize("sample", ["round", pytest.param("sector-round", marks=pytest.mark.thorough)])
def test_m9_partial_participation(sample: str) -> None:
    """M9: "keep" still reaches the optimum; corrections from the gradients of those who came do not."""
    clients, losses = bowls.bowls(6, 9)
    found = {
        z_init: bowls.run(Mtgc(PACE, z_init=z_init, sample=sample), clients, (0, 0, 0, 1, 1, 1), rounds, two_of_each)
        for z_init, rounds in (("keep", 55), ("gradient", 12))
    }
    assert bowls.error(found["keep"], bowls.optimum(losses)) <= 1e-9
    assert bowls.error(found["gradient"], bowls.optimum(losses)) > 1e-3


def test_m9_sectors_may_sit_out() -> None:
    """Only y of those who took part changes, and the next round starts from the newest model everywhere."""
    clients, _ = bowls.bowls(6, 9, rows=SIZES)
    with toys.lab(Mtgc(FEW), clients, MAP, toys.Bowl) as lab:
        lab.round(1)
        before, model = bowls.values(lab, lab.state.y), None
        lab.round(2, ("c0", "c2", "c3"))  # nobody of s2
        after, starts = bowls.values(lab, lab.state.y), bowls.values(lab, lab.state.start)
        model = lab.vector.numpy()
        assert np.array_equal(before["s2"], after["s2"])
        assert not np.array_equal(before["s0"], after["s0"])
        assert all(np.array_equal(start, model) for start in starts.values())
        assert set(starts) == {"s0", "s1", "s2"}


def skewed(by_client: bool) -> list[Examples]:
    """Eight clients in two sectors: labels differ by client and not by sector, or the other way round."""
    rows = toys.blobs(1200, seed=4)
    parts = []
    for i in range(8):
        favourite = i % 4 % 3 if by_client else i // 4
        chosen = [k for k in range(i, 1200, 8) if int(rows.y[k]) == favourite or k % 5 == 0]
        parts.append(rows.take(chosen[:60]))
    return parts


def test_m10_corrections_show_where_the_difference_is() -> None:
    """M10: sectors alike give a small y, clients alike inside sectors a small z."""
    found = {}
    for by_client in (True, False):
        method = Mtgc(LocalSpec(steps=3, batch=99, lr=0.1), sector_rounds=3)
        with toys.lab(method, skewed(by_client), (0,) * 4 + (1,) * 4, toys.linear, classes=3) as lab:
            lab.round(1).round(2)
            found[by_client] = tuple(
                float(np.mean([np.linalg.norm(v) for v in bowls.values(lab, x).values()]))
                for x in (lab.state.z, lab.state.y)
            )
    assert found[True][1] < 0.5 * found[True][0]
    assert found[False][0] < 0.5 * found[False][1]


def test_m11_names_do_not_matter() -> None:
    """M11: other numbers for sectors and clients give the same trajectory."""
    clients, _ = bowls.bowls(6, 11)
    order, names = (3, 0, 5, 1, 4, 2), {0: 2, 1: 0, 2: 1}
    for options in ({}, {"z_init": "gradient"}):
        first = bowls.run(Mtgc(FEW, **options), clients, MAP, 3)
        again = bowls.run(Mtgc(FEW, **options), [clients[i] for i in order], [names[MAP[i]] for i in order], 3)
        assert toys.gap(first, again) <= 1e-10


@pytest.mark.parametrize(
    ("leader", "options"),
    [("random", {}), ("rotating", {"z_init": "gradient"}), ("fixed", {"sample": "sector-round"})],
)
def test_led_sectors_compute_the_same(leader: str, options: dict[str, Any]) -> None:
    """A client that sits for its sector changes where things are computed, not what: the whole state, bit for bit."""
    states = []
    for rule in ("none", leader):
        with toys.lab(Mtgc(BATCHES, leader=rule, **options), NETS, MAP, toys.net, classes=3) as lab:
            for number in range(1, 4):
                lab.round(number, bowls.half(lab, number))
            states.append([bowls.values(lab, getattr(lab.state, name)) for name in ("model", "start", "y", "z")])
    for one, other in zip(*states, strict=True):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[node], other[node]) for node in one)


def test_clients_hold_nothing_before_they_take_part() -> None:
    with toys.lab(Mtgc(FEW), NETS, MAP, toys.net, classes=3) as lab:
        assert not lab.state.z.nodes
        lab.round(1, ("c0", "c1"))
        assert set(lab.state.z.nodes) == {"c0", "c1"}


def test_redrawing_takes_as_many_from_each_sector() -> None:
    """Two of s1's three clients in the round, so two in each sector round, and not always the same."""
    with toys.lab(Mtgc(FEW, sector_rounds=6, sample="sector-round"), NETS, MAP, toys.net, classes=3) as lab:
        lab.round(1, ("c1", "c3", "c5"))
        done = sorted((int(d.name.split(".")[1]), d.node) for d in lab.done if d.title == "local_train")
    nodes = [node for _, node in done]  # in the order of the program
    trained = [tuple(sorted(nodes[3 * e : 3 * e + 3])) for e in range(6)]
    assert trained[0] == ("c1", "c3", "c5")
    assert all(sum(c in ("c1", "c3", "c4") for c in team) == 2 and "c5" in team for team in trained)
    assert len(set(trained)) > 1


@pytest.mark.parametrize("kind", [Mtgc, HScaffold])
@pytest.mark.parametrize(
    "options", [{"optimizer": "adam"}, {"momentum": 0.9}, {"drop_last": True}, {"epochs": 0}], ids=str
)
def test_refuses(kind: type, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"local\."):
        kind(LocalSpec(**({"epochs": 1} | options)))


def test_cautions() -> None:
    plain, normed = ModelSpec("mlp", (3,), 3), ModelSpec("custom", (3,), 3, builder=toys.normed)
    assert Mtgc(FEW).cautions(plain, participation=0.5) == ()
    assert Mtgc(FEW, z_init="zero").cautions(plain) == ()
    (drawn,) = Mtgc(FEW, z_init="gradient").cautions(plain, participation=0.5)
    assert "z_init = 'gradient'" in drawn
    assert "use 'keep'" in drawn
    assert "batch norm" in Mtgc(FEW).cautions(normed)[0]
    assert "batch norm" in HScaffold(FEW).cautions(normed)[0]
