"""Rounds of the correcting and regularising methods on a model of two numbers, worked out by hand.

c0: A = diag(1, 2), b = (1, 1), three rows. c1: A = diag(2, 1), b = (−1, 2), one row. The gradient is A(w − b);
everybody starts at (0, 0) and takes steps of 0.5. Where there is a second sector it holds c2: A = I, b = (2, −2), two
rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import toys
from headwater.algorithms.fedavgm import FedAvgM
from headwater.algorithms.feddyn import FedDyn
from headwater.algorithms.fedprox import FedProx
from headwater.algorithms.hfeddyn import HFedDyn
from headwater.algorithms.hfedprox import HFedProx
from headwater.algorithms.hscaffold import HScaffold
from headwater.algorithms.mtgc import Mtgc
from headwater.algorithms.scaffold import Scaffold
from headwater.core.federation import SERVER, Located
from headwater.core.params import Params
from headwater.core.tree import Place
from headwater.specs import LocalSpec

TWO = [toys.bowl([[1, 0], [0, 2]], [1, 1], rows=3), toys.bowl([[2, 0], [0, 1]], [-1, 2], rows=1)]
THREE = [*TWO, toys.bowl([[1, 0], [0, 1]], [2, -2], rows=2)]
ONCE = LocalSpec(steps=1, batch=8, lr=0.5)
TWICE = LocalSpec(epochs=2, batch=8, lr=0.5)


def near(*numbers: float) -> object:
    return pytest.approx(numbers, abs=1e-12)


def held(lab: toys.Lab, x: Located) -> dict[str, tuple[float, ...]]:
    """What every node holds, wherever it is."""
    fed = lab.fed.whole.with_purpose("export")
    found: Any = fed.read(x if x.place is Place.SERVER else fed.up(x, to=SERVER))
    values: dict[str, Params] = {"server": found} if isinstance(found, Params) else found
    return {node: tuple(value.vector.tolist()) for node, value in values.items()}


def numbers(lab: toys.Lab) -> tuple[float, ...]:
    return tuple(lab.vector.tolist())


@pytest.mark.parametrize(("by", "expected"), [("samples", (0.25, 0.625)), ("uniform", (0.0, 0.75))])
@pytest.mark.parametrize("through", [False, True])
def test_fedprox(by: str, expected: tuple[float, float], through: bool) -> None:
    """mu = 1, two steps; the second feels w − (0, 0) beside the gradient.

    c0: gradient (−1, −2), so (0.5, 1); then (−0.5, 0) + (0.5, 1) = (0, 1), so (0.5, 0.5).
    c1: gradient (2, −2), so (−1, 1); then (0, −1) + (−1, 1) = (−1, 0), so (−0.5, 1).
    By 3 and 1 rows: ¾·0.5 − ¼·0.5 = 0.25 and ¾·0.5 + ¼ = 0.625. Alike: (0, 0.75).
    """
    method = FedProx(TWICE, mu=1.0, by=by, through_sectors=through)
    assert tuple(toys.play(method, TWO, (0, 1), toys.Bowl).vector.tolist()) == near(*expected)


@pytest.mark.parametrize(
    ("form", "first", "second"),
    [
        ("A", (0.3125, 1.125), (0.52734375, 1.7578125)),
        ("B", (0.15625, 0.5625), (0.3271484375, 1.142578125)),
        ("C", (0.46875, 1.6875), (0.4443359375, 1.283203125)),
    ],
)
def test_fedavgm(form: str, first: tuple[float, float], second: tuple[float, float]) -> None:
    """beta = 0.5. Two steps take c0 from w to (1 + ¼(w_0 − 1), 1) and c1 to (−1, 2 + ¼(w_1 − 2)).

    Round 1 from (0, 0): c0 (0.75, 1), c1 (−1, 1.5), mean (0.3125, 1.125), Δ = (−0.3125, −1.125).
    A: v = Δ, so the mean itself. B: v = Δ/2, half the way. C: the step is Δ + ½Δ.
    Round 2, A, from (0.3125, 1.125): c0 (0.828125, 1), c1 (−1, 1.78125), mean (0.37109375, 1.1953125),
    Δ = (−0.05859375, −0.0703125), v = ½(−0.3125, −1.125) + Δ = (−0.21484375, −0.6328125).
    B, from (0.15625, 0.5625): c0 (0.7890625, 1), c1 (−1, 1.640625), mean (0.341796875, 1.16015625),
    Δ = (−0.185546875, −0.59765625), v = ½(−0.15625, −0.5625) + ½Δ = (−0.1708984375, −0.580078125).
    C, from (0.46875, 1.6875): c0 (0.8671875, 1), c1 (−1, 1.921875), mean (0.400390625, 1.23046875),
    Δ = (0.068359375, 0.45703125), v = ½(−0.3125, −1.125) + Δ = (−0.087890625, −0.10546875),
    step Δ + ½v = (0.0244140625, 0.404296875), so (0.4443359375, 1.283203125).
    """
    with toys.lab(FedAvgM(TWICE, beta=0.5, form=form), TWO, (0, 1), toys.Bowl) as lab:
        assert numbers(lab.round(1)) == near(*first)
        assert numbers(lab.round(2)) == near(*second)


ROUND_1 = {"c0": near(-0.75, -1.0), "c1": near(1.0, -1.5)}
ROUND_2 = {"c0": near(-1.0625, 0.375), "c1": near(1.3125, -0.625)}


@pytest.mark.parametrize("options", [{}, {"through_sectors": True}, {"reconstruct": True}], ids=str)
def test_scaffold(options: dict[str, Any]) -> None:
    """Two steps of 0.5 (K · lr = 1), clients alike.

    Round 1, no variates: c0 (0.75, 1), c1 (−1, 1.5), mean (−0.125, 1.25). c_0 = (0, 0) − (0.75, 1), c_1 = (1, −1.5),
    c = (0.125, −1.25).
    Round 2 from (−0.125, 1.25), corrections c − c_0 = (0.875, −0.25) and c − c_1 = (−0.875, 0.25).
    c0: (−1.125, 0.5) + correction = (−0.25, 0.25), so (0, 1.125); then (−1, 0.25) + … = (−0.125, 0), so (0.0625,
    1.125). c1: (1.75, −0.75) + … = (0.875, −0.5), so (−0.5625, 1.5); then (0.875, −0.5) + … = (0, −0.25), so (−0.5625,
    1.625). Mean (−0.25, 1.375). c_0 = (−0.875, 0.25) + (−0.1875, 0.125), c_1 = (0.875, −0.25) + (0.4375, −0.375).
    """
    with toys.lab(Scaffold(TWICE, **options), TWO, (0, 1), toys.Bowl) as lab:
        assert numbers(lab.round(1)) == near(-0.125, 1.25)
        assert held(lab, lab.state.own) == ROUND_1
        assert held(lab, lab.state.common) == {"server": near(0.125, -1.25)}
        assert numbers(lab.round(2)) == near(-0.25, 1.375)
        assert held(lab, lab.state.own) == ROUND_2
        assert held(lab, lab.state.common) == {"server": near(0.125, -0.125)}


def test_scaffold_by_gradients_and_half_a_server_step() -> None:
    """Option I: c_i is the gradient at the model received, (−1, −2) and (2, −2) at (0, 0), so c = (0.5, −2).

    With a server step of ½ the model goes half the way to the mean (−0.125, 1.25).
    """
    with toys.lab(Scaffold(TWICE, variates="gradient", server_lr=0.5), TWO, (0, 1), toys.Bowl) as lab:
        assert numbers(lab.round(1)) == near(-0.0625, 0.625)
        assert held(lab, lab.state.own) == {"c0": near(-1.0, -2.0), "c1": near(2.0, -2.0)}
        assert held(lab, lab.state.common) == {"server": near(0.5, -2.0)}


def test_scaffold_by_samples() -> None:
    """By 3 and 1 rows: the mean of round 1 is FedAvg's (0.3125, 1.125), and c = ¾(−0.75, −1) + ¼(1, −1.5)."""
    with toys.lab(Scaffold(TWICE, by="samples"), TWO, (0, 1), toys.Bowl) as lab:
        assert numbers(lab.round(1)) == near(0.3125, 1.125)
        assert held(lab, lab.state.common) == {"server": near(-0.3125, -1.125)}


@pytest.mark.parametrize("through", [False, True])
def test_feddyn(through: bool) -> None:
    """alpha = 1, two steps.

    Round 1 is FedProx with mu = 1: c0 (0.5, 0.5), c1 (−0.5, 1), mean (0, 0.75). own_0 = (−0.5, −0.5), own_1 = (0.5,
    −1), h = −½(0, 1.5) = (0, −0.75), sent (0, 0.75) + (0, 0.75). Round 2 from (0, 1.5), gradient A(w − b) − own + (w −
    sent). c0: (−1, 1) + (0.5, 0.5), so (0.25, 0.75); then (−0.75, −0.5) + (0.5, 0.5) + (0.25, −0.75), so (0.25, 1.125).
    c1: (2, −0.5) − (0.5, −1), so (−0.75, 1.25); then (0.5, −0.75) − (0.5, −1) + (−0.75, −0.25), so (−0.375, 1.25). Mean
    (−0.0625, 1.1875). own_0 = (−0.5, −0.5) − (0.25, −0.375), own_1 = (0.5, −1) − (−0.375, −0.25), h = (0, −0.75) −
    ½(−0.125, −0.625), sent = mean − h.
    """
    with toys.lab(FedDyn(TWICE, dyn_alpha=1.0, through_sectors=through), TWO, (0, 1), toys.Bowl) as lab:
        assert numbers(lab.round(1)) == near(0.0, 1.5)
        assert held(lab, lab.state.also["averaged"]) == {"server": near(0.0, 0.75)}
        assert held(lab, lab.state.own) == {"c0": near(-0.5, -0.5), "c1": near(0.5, -1.0)}
        assert numbers(lab.round(2)) == near(-0.125, 1.625)
        assert held(lab, lab.state.own) == {"c0": near(-0.75, -0.125), "c1": near(0.875, -0.75)}
        assert held(lab, lab.state.h) == {"server": near(0.0625, -0.4375)}


def test_feddyn_alpha_by_size() -> None:
    """Sizes 3 and 1, mean 2: alphas 2/3 and 2. One step is free of the pull: c0 (0.5, 1), c1 (−1, 1).

    own_0 = −⅔(0.5, 1), own_1 = −2(−1, 1); the server divides by alpha = 1 as before: h = −½(−0.5, 2).
    """
    with toys.lab(FedDyn(ONCE, dyn_alpha=1.0, alpha_by="size"), TWO, (0, 1), toys.Bowl) as lab:
        assert numbers(lab.round(1)) == near(-0.5, 2.0)
        assert held(lab, lab.state.own) == {"c0": near(-1 / 3, -2 / 3), "c1": near(2.0, -2.0)}


MTGC_1 = {"c0": near(1.375, -0.5), "c1": near(-1.375, 0.5), "c2": near(0.0, 0.0)}
MTGC_2 = (0.6298828125, -0.05859375)


@pytest.mark.parametrize("options", [{}, {"leader": "rotating"}, {"sample": "sector-round"}], ids=str)
def test_mtgc(options: dict[str, Any]) -> None:
    """H = 1, E = 2, everybody alike.

    Round 1, s0: c0 (0.5, 1), c1 (−1, 1), mean (−0.25, 1), z_0 = (0.75, 0)/0.5 = (1.5, 0) = −z_1.
    Then c0 (−1.25, 0) + (1.5, 0), so (−0.375, 1); c1 (1.5, −1) − (1.5, 0), so (−0.25, 1.5); mean (−0.3125, 1.25);
    z_0 = (1.5, 0) + (−0.0625, −0.25)/0.5 = (1.375, −0.5). s1: (1, −1), then (1.5, −1.5).
    Global (0.59375, −0.125); H·E·lr = 1, so y_0 = (−0.90625, 1.375) = −y_1.
    Round 2, s0: c0 (−0.40625, −2.25) + z + y = (0.0625, −1.375), so (0.5625, 0.5625); c1 (3.1875, −2.125) + … =
    (0.90625, −0.25), so (0.140625, 0); mean (0.3515625, 0.28125); z_0 = (1.796875, 0.0625).
    c0 (−0.6484375, −1.4375) + … = (0.2421875, 0), so (0.23046875, 0.28125); c1 (2.703125, −1.71875) + … = (0,
    −0.40625), so (0.3515625, 0.484375); mean (0.291015625, 0.3828125). s1: (−1.40625, 1.875) + y = (−0.5, 0.5), so
    (0.84375, −0.375); then (−0.25, 0.25), so (0.96875, −0.5).
    """
    with toys.lab(Mtgc(ONCE, sector_rounds=2, **options), THREE, (0, 0, 1), toys.Bowl) as lab:
        assert numbers(lab.round(1)) == near(0.59375, -0.125)
        assert held(lab, lab.state.z) == MTGC_1
        assert held(lab, lab.state.y) == {"s0": near(-0.90625, 1.375), "s1": near(0.90625, -1.375)}
        assert numbers(lab.round(2)) == near(*MTGC_2)


def test_mtgc_from_gradients() -> None:
    """At (0, 0) the gradients are (−1, −2), (2, −2) and (−2, 2): s0's mean (0.5, −2), s1's (−2, 2), global (−0.75, 0).

    So z_0 = (1.5, 0) = −z_1, z_2 = 0, y_0 = (−1.25, 2), y_1 = (1.25, −2), and the first step is everybody's: (0.375,
    0). With E = 1 and H = 1 all end there: z and y are as they were.
    """
    with toys.lab(Mtgc(ONCE, sector_rounds=1, z_init="gradient"), THREE, (0, 0, 1), toys.Bowl) as lab:
        assert numbers(lab.round(1)) == near(0.375, 0.0)
        assert held(lab, lab.state.z) == {"c0": near(1.5, 0.0), "c1": near(-1.5, 0.0), "c2": near(0.0, 0.0)}
        assert held(lab, lab.state.y) == {"s0": near(-1.25, 2.0), "s1": near(1.25, -2.0)}


def test_mtgc_with_the_other_scale() -> None:
    """z's change divided by E = 2 as well: after the first sector round z_0 = (0.75, 0), half of what it was.

    Then c0 (−1.25, 0) + (0.75, 0), so (0, 1); c1 (1.5, −1) − (0.75, 0), so (−0.625, 1.5); mean (−0.3125, 1.25) as
    before; z_0 = (0.75, 0) + (0.3125, −0.25).
    """
    with toys.lab(Mtgc(ONCE, sector_rounds=2, z_scale="HE"), THREE, (0, 0, 1), toys.Bowl) as lab:
        assert numbers(lab.round(1)) == near(0.59375, -0.125)
        assert held(lab, lab.state.z)["c0"] == near(1.0625, -0.25)


def test_mtgc_takes_as_many_steps_everywhere() -> None:
    """Sizes 3, 1 and 2, batch 1: one epoch is ceil(2 / 1) = 2 steps for every client, whatever it holds.

    Two steps of the clients of `test_scaffold` (their sizes play no part) and of c2, (1, −1) and then (1.5, −1.5).
    """
    epochs = Mtgc(LocalSpec(epochs=1, batch=1, lr=0.5), sector_rounds=1)
    found = toys.play(epochs, THREE, (0, 0, 1), toys.Bowl)
    assert tuple(found.vector.tolist()) == near((-0.125 + 1.5) / 2, (1.25 - 1.5) / 2)
    steps = toys.play(replace(epochs, local=LocalSpec(steps=2, batch=1, lr=0.5)), THREE, (0, 0, 1), toys.Bowl)
    assert torch.equal(found.vector, steps.vector)


def test_hfedprox() -> None:
    """mu = 1, two steps, E = 2, by samples, one sector. The first average is FedProx's (0.25, 0.625).

    c0 from there: (−0.75, −0.75), so (0.625, 1); then (−0.375, 0) + (0.375, 0.375), so (0.625, 0.8125).
    c1: (2.5, −1.375), so (−1, 1.3125); then (0, −0.6875) + (−1.25, 0.6875), so (−0.375, 1.3125).
    ¾·0.625 − ¼·0.375 = 0.375 and ¾·0.8125 + ¼·1.3125 = 0.9375.
    """
    found = toys.play(HFedProx(TWICE, sector_rounds=2, mu=1.0), TWO, (0, 0), toys.Bowl)
    assert tuple(found.vector.tolist()) == near(0.375, 0.9375)


def test_hfedprox_with_a_plain_mean_of_clients() -> None:
    """One sector: the sector's own mean is by samples, as above, the global one (0.625 − 0.375)/2 and 1.0625.

    With c0 and c1 in s0 and c2 in s1, each client has a third at the server, not each sector its share of samples.
    """
    plain = HFedProx(TWICE, sector_rounds=2, mu=1.0, server_mean="clients")
    found = toys.play(plain, TWO, (0, 0), toys.Bowl)
    assert tuple(found.vector.tolist()) == near(0.125, 1.0625)
    apart = [toys.play(HFedProx(ONCE, 1, 1.0), [rows], (0,), toys.Bowl).vector for rows in THREE]
    three = toys.play(replace(plain, local=ONCE, sector_rounds=1), THREE, (0, 0, 1), toys.Bowl)
    assert toys.gap(three.vector, sum(apart) / 3) <= 1e-12  # type: ignore[arg-type]


def test_hscaffold() -> None:
    """H = 1, E = 2: round 1 is MTGC's. Round 2 has no y.

    s0 from (0.59375, −0.125): c0 (−0.40625, −2.25) + (1.375, −0.5), so (0.109375, 1.25); c1 (3.1875, −2.125) − …, so
    (−0.3125, 0.6875); mean (−0.1015625, 0.96875); z_0 = (1.796875, 0.0625).
    c0 (−1.1015625, −0.0625) + …, so (−0.44921875, 0.96875); c1 (1.796875, −1.03125) − …, so (−0.1015625, 1.515625);
    mean (−0.275390625, 1.2421875). s1: (1.296875, −1.0625), then (1.6484375, −1.53125).
    """
    with toys.lab(HScaffold(ONCE, sector_rounds=2), THREE, (0, 0, 1), toys.Bowl) as lab:
        assert numbers(lab.round(1)) == near(0.59375, -0.125)
        assert held(lab, lab.state.z) == MTGC_1
        assert numbers(lab.round(2)) == near(0.6865234375, -0.14453125)


def test_hfeddyn() -> None:
    """alpha = 1 for all, one step, E = 2.

    s0: c0 (0.5, 1), c1 (−1, 1), own −(0.5, 1) and (1, −1), h = −½(−0.5, 2) = (0.25, −1), model (−0.25, 1) − h = (−0.5,
    2). From there: c0 (−1.5, 2) + (0.5, 1), so (0, 0.5); c1 (1, 0) − (1, −1), so (−0.5, 1.5); mean (−0.25, 1); h =
    (0.25, −1) − ½(0.5, −2) = (0, 0). own_0 = (−0.5, −1) − (0.5, −1.5), own_1 = (1, −1) − (0, −0.5). s1: (1, −1), own =
    h = (−1, 1), model (2, −2); there the gradient is −own = (1, −1), so (1.5, −1.5), h = (−0.5, 0.5), model (2, −2).
    Global: the mean of (−0.25, 1) and (2, −2).
    """
    with toys.lab(HFedDyn(ONCE, sector_rounds=2, dyn_alpha=1.0, alpha_by="equal"), THREE, (0, 0, 1), toys.Bowl) as lab:
        assert numbers(lab.round(1)) == near(0.875, -0.5)
        assert held(lab, lab.state.own) == {"c0": near(-1.0, 0.5), "c1": near(1.0, -0.5), "c2": near(-0.5, 0.5)}
        assert held(lab, lab.state.h) == {"s0": near(0.0, 0.0), "s1": near(-0.5, 0.5)}


def test_hfeddyn_counts_those_who_stay_away() -> None:
    """Only c0 of s0 takes part: the mean is its (0.5, 1), but h is −(0.5, 1)/2, as s0 has two clients."""
    with toys.lab(HFedDyn(ONCE, sector_rounds=1, dyn_alpha=1.0, alpha_by="equal"), THREE, (0, 0, 1), toys.Bowl) as lab:
        lab.round(1, ("c0",))
        assert held(lab, lab.state.h) == {"s0": near(-0.25, -0.5)}
        assert numbers(lab) == near(0.75, 1.5)
        assert set(lab.state.own.nodes) == {"c0"}
