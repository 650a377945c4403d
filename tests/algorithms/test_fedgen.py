"""FedGen: what clients add to their loss, and how the generator is taught."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import toys
from headwater.algorithms.fedgen import Generated, Lesson, classified, generator_loss, sameness, teach_generator
from headwater.core.params import Params
from headwater.data.base import Examples
from headwater.models.base import ModelSpec, Net
from headwater.models.generator import Generator
from headwater.specs import DistillSpec
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.local import Batch
from headwater.tasks.task import RunContext

GENERATOR = "generator"
ROWS = toys.blobs(6, features=2)


def flat() -> nn.Module:
    return Net(nn.Flatten(), nn.Linear(2, 3)).double()


def around(clients: Sequence[Examples] = (ROWS,), maker: Callable[[], nn.Module] = flat, hidden: int = 8) -> RunContext:
    """A net whose features are the input itself, and a generator of such features."""
    made = toys.context(clients, maker, classes=3)
    source = ModelSpec(GENERATOR, (2,), 3, builder=partial(Generator, 2, 3, hidden, 2, torch.float64))
    return replace(made, models=made.models | {GENERATOR: source})


def fixed(drawn: Sequence[Sequence[float]]) -> Params:
    """A generator that gives these features for the classes, whatever the noise."""
    made = Generator(2, 3, 3, 2, torch.float64)
    first, _, _, last = made.layers
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    first.weight.data = torch.cat([torch.zeros(3, 2), torch.eye(3)], dim=1).double() * math.sqrt(1 + 1e-5)
    last.weight.data = torch.tensor(drawn, dtype=torch.float64).T
    first.bias.data.zero_()
    last.bias.data.zero_()
    return Params.of(made, GENERATOR)


def prepared(term: Generated, here: RunContext, epoch: int = 0) -> tuple[FlatModule, Callable[[], Tensor]]:
    ctx = toys.ctx(here)
    start = here.initial(toys.ARCH, 0)
    flat = ctx.flat_module(start)

    def value() -> Tensor:
        torch.manual_seed(1)
        output = flat(ROWS.x)
        loss = flat.loss(output, ROWS.y)
        return term(Batch(ctx, flat, start, ROWS.x, ROWS.y, output, loss, torch.arange(6), epoch))

    return flat, value


DRAWN = [[2.0, 0.0], [0.0, 2.0], [1.0, -1.0]]


def term(alpha: float = 0.0, beta: float = 0.0, generator: Params | None = None) -> Generated:
    return Generated(alpha, beta, generator or fixed(DRAWN), batch=4, share=0.5, epochs=2)


def test_value_by_hand() -> None:
    """Of class 1 alone: alpha · share · NLL of the classifier at (0, 2), here 3 · ½ · it.

    The other part is 2 · mean over rows of Σ t (ln t − ln p), t being the softmax at the features of the row's class.
    """
    source = fixed(DRAWN)
    source.named()["held"].copy_(torch.tensor([0.0, 1.0, 0.0]))
    here = around(hidden=3)
    flat, value = prepared(term(alpha=3.0, generator=source), here)
    weight, bias = (flat.module.get_parameter(f"classifier.{n}").detach() for n in ("weight", "bias"))
    logits = weight @ torch.tensor([0.0, 2.0], dtype=torch.float64) + bias
    assert float(value().detach()) == pytest.approx(1.5 * float(torch.logsumexp(logits, 0) - logits[1]), abs=1e-12)
    flat, value = prepared(term(beta=2.0), here)
    targets = torch.softmax(torch.tensor(DRAWN, dtype=torch.float64) @ weight.T + bias, 1)
    expected = 0.0
    for x, y in zip(ROWS.x, ROWS.y.tolist(), strict=True):
        guess = torch.softmax(weight @ x + bias, 0)
        expected += 2 * float((targets[y] * (targets[y] / guess).log()).sum()) / 6
    assert float(value().detach()) == pytest.approx(expected, abs=1e-12)


def test_gradient_by_finite_differences() -> None:
    """Of both parts, the target of the second held: only its prediction feels it."""
    here = around(hidden=3)
    flat, value = prepared(term(alpha=3.0, beta=2.0), here)
    flat.grad.zero_()
    value().backward()
    slope, step = flat.grad.clone(), 1e-6
    weights = [flat.module.get_parameter(f"classifier.{n}") for n in ("weight", "bias")]
    with torch.no_grad():
        targets = torch.softmax(flat.classify(torch.tensor(DRAWN, dtype=torch.float64)), 1)[ROWS.y]
    drawn = prepared(term(alpha=3.0), here)[1]

    def held() -> float:
        with torch.no_grad():
            guess = torch.log_softmax(flat(ROWS.x), 1)
            return float(drawn()) + 2 * float((targets * (targets.log() - guess)).sum(1).mean())

    assert float(slope.abs().max()) > 1e-2
    assert sum(w.numel() for w in weights) == len(slope)
    for i in range(len(slope)):
        ends = []
        for side in (step, -2 * step):
            flat.vector[i] += side
            ends.append(held())
        flat.vector[i] += step
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(float(slope[i]), abs=1e-6)


def test_no_generator_and_later_epochs_add_nothing() -> None:
    here = around(hidden=3)
    assert float(prepared(term(alpha=3.0, beta=2.0), here, epoch=1)[1]().detach()) > 0
    assert float(prepared(term(alpha=3.0, beta=2.0), here, epoch=2)[1]()) == 0
    assert float(prepared(replace(term(alpha=3.0), generator=None), here)[1]()) == 0


def test_sameness_by_hand() -> None:
    """Two draws: noise (0, 0) and (1, 3), outputs 1 and 5. Squared noise distance (1 + 9)/2 = 5, output distance 4.

    The mean over the four pairs, two of them of a draw with itself, is (0 + 20 + 20 + 0)/4 = 10.
    """
    noise, drawn = torch.tensor([[0.0, 0.0], [1.0, 3.0]]).double(), torch.tensor([[1.0], [5.0]]).double()
    assert float(sameness(noise, drawn)) == pytest.approx(math.exp(-10), rel=1e-12)
    assert float(sameness(noise, drawn[:1].expand(2, 1))) == 1.0


def judged() -> tuple[FlatModule, list[dict[str, Tensor]], dict[str, Tensor]]:
    """Two clients' classifiers and a student's, of single numbers: logits w·h."""
    here = toys.context([ROWS], lambda: Net(nn.Flatten(), nn.Linear(1, 2, bias=False)).double(), classes=2)
    flat = toys.ctx(here).flat_module(here.initial(toys.ARCH, 0))
    heads = [{"weight": torch.tensor([[a], [b]], dtype=torch.float64)} for a, b in ((1.0, 0.0), (0.0, 2.0), (3.0, 0.0))]
    return flat, heads[:2], heads[2]


def test_loss_of_the_generator_by_hand() -> None:
    """h = 1 and 2 for classes 0 and 1; the first client weighs ¾ on class 0 and ½ on class 1.

    Logits of client one are (1, 0) and (2, 0), of client two (0, 2) and (0, 4).
    NLL of class 0: ln(1 + e^−1), ln(1 + e²); of class 1: ln(1 + e²), ln(1 + e^−4). Weighted: ¾·, ¼·; ½·, ½·.
    Mean teacher: (¾, ½) and (1, 2); student: (3, 0) and (6, 0).
    """
    flat, heads, student = judged()
    noise, drawn = torch.tensor([[0.0], [1.0]]).double(), torch.tensor([[1.0], [2.0]]).double()
    weights, y = torch.tensor([[0.75, 0.5], [0.25, 0.5]]).double(), torch.tensor([0, 1])
    lesson = Lesson(2.0, 3.0, 0.0, DistillSpec(steps=1))

    def soft(x: float) -> float:
        return math.log(1 + math.exp(x))

    first = 0.75 * soft(-1) + 0.25 * soft(2)
    second = 0.5 * soft(2) + 0.5 * soft(-4)
    alike = math.exp(-0.5)  # pairs: noise distance 1, output distance 1, half of them
    expected = 2 * (first + second) / 2 + 3 * alike
    found = generator_loss(flat, heads, weights, student, noise, drawn, y, lesson)
    assert float(found) == pytest.approx(expected, abs=1e-12)

    def divergence(teacher: float, guess: float) -> float:
        """Between logits that differ by so much."""
        t, p = (1 / (1 + math.exp(-d)) for d in (teacher, guess))
        return t * math.log(t / p) + (1 - t) * math.log((1 - t) / (1 - p))

    against = (divergence(0.25, 3) + divergence(-1, 6)) / 2
    found = generator_loss(flat, heads, weights, student, noise, drawn, y, replace(lesson, beta=0.5))
    assert float(found) == pytest.approx(expected - 0.5 * against, abs=1e-12)


def test_gradient_of_the_generator_by_finite_differences() -> None:
    flat, heads, student = judged()
    noise, y = torch.tensor([[0.0], [1.0]]).double(), torch.tensor([0, 1])
    weights = torch.tensor([[0.75, 0.5], [0.25, 0.5]]).double()
    lesson = Lesson(2.0, 3.0, 0.5, DistillSpec(steps=1))
    drawn = torch.tensor([[1.0], [2.0]], dtype=torch.float64, requires_grad=True)

    def loss(at: Tensor) -> Tensor:
        return generator_loss(flat, heads, weights, student, noise, at, y, lesson)

    slope = torch.autograd.grad(loss(drawn), drawn)[0]
    for i in range(2):
        move = torch.zeros(2, 1, dtype=torch.float64)
        move[i] = 1e-6
        ends = loss(drawn + move) - loss(drawn - move)
        assert float(ends.detach()) / 2e-6 == pytest.approx(float(slope[i]), abs=1e-7)


CLIENTS = [toys.blobs(20, seed=i, features=2) for i in range(2)]
LESSON = Lesson(1.0, 0.1, 0.0, DistillSpec(steps=150, batch=16, lr=0.02))


def taught(counts: dict[str, Tensor], lesson: Lesson = LESSON) -> tuple[RunContext, dict[str, Params], Params]:
    here = around(CLIENTS)
    teachers = {f"c{i}": here.initial(toys.ARCH, i + 1) for i in range(2)}
    start = here.initial(GENERATOR, 0)
    torch.manual_seed(0)
    ctx = toys.ctx(here, "server")
    return here, teachers, teach_generator(ctx, start, teachers, counts, teachers["c0"], lesson)


ONE = torch.ones(3, dtype=torch.float64)


def test_teachers_come_to_see_what_was_asked_for() -> None:
    here, teachers, generator = taught({"c0": 10 * ONE, "c1": 10 * ONE})
    ctx, y = toys.ctx(here, "server"), torch.arange(3).repeat(20)

    def verdict(source: Params) -> float:
        torch.manual_seed(5)
        drawn = ctx.flat_module(source).module.eval().draw(y)[1]
        flat = ctx.flat_module(teachers["c0"])
        return float(torch.nn.functional.cross_entropy(flat.classify(drawn), y).detach())

    assert verdict(generator) < 0.8 * verdict(here.initial(GENERATOR, 0))


def test_only_held_classes_are_asked_for() -> None:
    _, _, generator = taught({"c0": torch.tensor([5.0, 0.0, 0.0]).double(), "c1": torch.tensor([2.0, 0, 1]).double()})
    assert generator.named()["held"].tolist() == [1.0, 0.0, 1.0]


def test_whose_counts_were_lost_has_no_say() -> None:
    """The result is that of the other teacher alone."""
    _, teachers, alone = taught({"c1": ONE})
    assert toys.gap(alone, taught({"c1": 9 * ONE})[2]) == 0.0  # the only one weighs 1, whatever it counts
    assert toys.gap(alone, taught({"c0": ONE, "c1": ONE})[2]) > 1e-3
    here = around(CLIENTS)
    start = here.initial(GENERATOR, 0)
    assert teach_generator(toys.ctx(here, "server"), start, {}, {"c0": ONE}, teachers["c0"], LESSON) is start


def test_weights_by_class() -> None:
    """A client that holds nearly all of every class nearly decides alone."""
    many, few = 1e9 * ONE, 0 * ONE
    alone = taught({"c0": ONE})[2]
    assert (
        toys.gap(taught({"c0": many, "c1": few})[2], alone) < 1e-3 < toys.gap(taught({"c0": few, "c1": many})[2], alone)
    )


def test_a_classifier_by_its_weights() -> None:
    here = around()
    flat = toys.ctx(here).flat_module(here.initial(toys.ARCH, 0))
    other = here.initial(toys.ARCH, 7)
    head = {name.removeprefix("classifier."): tensor for name, tensor in other.named().items()}
    found = classified(flat, head, ROWS.x)
    assert torch.equal(found, toys.ctx(here).flat_module(other, slot=1).outputs(ROWS.x))
