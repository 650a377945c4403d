from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import toys
from headwater.specs import DistillSpec, LocalSpec
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.optimizers import FusedOptimizer, Stepper, batches, steps_per_epoch, total_steps

ROWS = toys.blobs(24)


def sizes(n: int, seed: int = 0, **length: Any) -> list[int]:
    return [len(b) for b in batches(n, LocalSpec(**length), np.random.default_rng(seed))]


class TestBatches:
    def test_the_last_batch_may_be_smaller(self) -> None:
        assert sizes(10, epochs=2, batch=4) == [4, 4, 2, 4, 4, 2]

    def test_steps_end_within_an_epoch(self) -> None:
        assert sizes(10, steps=4, batch=4) == [4, 4, 2, 4]
        assert sizes(10, steps=2, batch=4) == [4, 4]

    def test_a_batch_larger_than_the_data(self) -> None:
        assert sizes(3, epochs=2, batch=100) == [3, 3]
        assert sizes(1, steps=3, batch=100) == [1, 1, 1]

    def test_none(self) -> None:
        assert sizes(10, epochs=0) == sizes(10, steps=0) == sizes(0, epochs=5) == sizes(0, steps=5) == []

    def test_an_epoch_sees_every_row_once_in_a_new_order(self) -> None:
        found = list(batches(9, LocalSpec(epochs=3, batch=4), np.random.default_rng(1)))
        epochs = [torch.cat(found[i : i + 3]).tolist() for i in (0, 3, 6)]
        assert all(sorted(order) == list(range(9)) for order in epochs)
        assert epochs[0] != epochs[1] != epochs[2]

    def test_follow_the_stream(self) -> None:
        spec = LocalSpec(epochs=2, batch=4)
        one, two, other = (torch.cat(list(batches(9, spec, np.random.default_rng(s)))) for s in (1, 1, 2))
        assert torch.equal(one, two)
        assert not torch.equal(one, other)

    @pytest.mark.parametrize("n", [1, 7, 8, 9, 64])
    def test_counts_agree(self, n: int) -> None:
        for length in ({"epochs": 3}, {"steps": 5}):
            spec = LocalSpec(batch=8, **length)
            assert len(list(batches(n, spec, np.random.default_rng(0)))) == total_steps(n, spec)
            assert steps_per_epoch(n, spec) == -(-n // 8)

    def test_drop_last(self) -> None:
        """As FedHEAD's code does for images: only whole batches, and none at all for a client with less than one."""
        assert sizes(10, epochs=2, batch=4, drop_last=True) == [4, 4, 4, 4]
        assert sizes(8, epochs=1, batch=4, drop_last=True) == [4, 4]
        assert sizes(10, steps=3, batch=4, drop_last=True) == [4, 4, 4]
        assert sizes(3, epochs=5, batch=4, drop_last=True) == sizes(3, steps=5, batch=4, drop_last=True) == []


def flat_module(maker: Any = toys.net) -> FlatModule:
    around = toys.context([ROWS], maker, classes=3)
    torch.manual_seed(0)
    return toys.ctx(around).flat_module(toys.params(maker()))


VARIANTS = {
    "sgd": ({"optimizer": "sgd", "lr": 0.1}, lambda p: torch.optim.SGD(p, lr=0.1)),
    "sgd with weight decay": (
        {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.03},
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.03),
    ),
    "momentum": (
        {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9},
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    ),
    "adam": (
        {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1},
        lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    ),
    "adamw": (
        {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    ),
}


RULES: list[dict[str, Any]] = [
    {"optimizer": "sgd"},
    {"optimizer": "sgd", "weight_decay": 0.03},
    {"optimizer": "sgd", "momentum": 0.9},
    {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.03},
    {"optimizer": "adam"},
    {"optimizer": "adam", "weight_decay": 0.03},
    {"optimizer": "adamw", "weight_decay": 0.03},
]
KINDS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def drawn(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("settings", RULES, ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize("size", [1, 7, 64, 40_013])
def test_a_step_has_the_bits_of_torch(settings: dict[str, Any], dtype: torch.dtype, size: int) -> None:
    """Of its fused optimisers, over several steps at changing rates; also of the numbers left over by the vector
    instructions.
    """
    spec, start = LocalSpec(steps=1, **settings), drawn(size, dtype=dtype, seed=1)
    ours, theirs = start.clone(), nn.Parameter(start.clone())
    others = {name: value for name, value in settings.items() if name != "optimizer"}
    rule, optimiser = FusedOptimizer(spec, ours), KINDS[spec.optimizer]([theirs], lr=0.1, fused=True, **others)
    for at in range(6):
        grad = drawn(size, dtype=dtype, seed=10 + at)
        rule.step(grad.clone() if at % 2 else grad, 0.1 / (1 + at))
        theirs.grad, optimiser.param_groups[0]["lr"] = grad, 0.1 / (1 + at)
        optimiser.step()
        assert torch.equal(ours, theirs.detach()), f"step {at}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("settings", RULES, ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize("size", [5, 64, 1_003])
def test_the_members_of_a_stack_do_not_touch_each_other(
    settings: dict[str, Any], dtype: torch.dtype, size: int
) -> None:
    """Every member gets the bits of a step on its own, wherever it is in the stack; those that have ended rest."""
    spec, length = LocalSpec(steps=1, **settings), [5, 5, 4, 2, 1]
    stack = drawn(5, size, dtype=dtype, seed=1)
    alone = [row.clone() for row in stack]
    rule, rules = FusedOptimizer(spec, stack), [FusedOptimizer(spec, row) for row in alone]
    for at in range(5):
        grad = drawn(5, size, dtype=dtype, seed=10 + at)
        active = sum(n > at for n in length)
        rule.step(grad, 0.1 / (1 + at), members=active if at else None)
        for own, row in list(zip(rules, grad, strict=True))[:active]:
            own.step(row.clone(), 0.1 / (1 + at))
        assert torch.equal(stack, torch.stack(alone)), f"step {at}"


def test_a_step_needs_numbers_side_by_side() -> None:
    """Every second number of a tensor: the kernels would take the ones between for the tensor's own."""
    with pytest.raises(ValueError, match="side by side"):
        FusedOptimizer(LocalSpec(steps=1), torch.zeros(4)).step(torch.zeros(8)[::2], 0.1)


@pytest.mark.parametrize("grad", [torch.zeros(3), torch.zeros(5), torch.zeros(2, 2), torch.zeros(4).double()])
def test_a_step_needs_a_gradient_for_every_weight(grad: Tensor) -> None:
    with pytest.raises(ValueError, match=r"a gradient of shape .* for \(4,\) weights"):
        FusedOptimizer(LocalSpec(steps=1), torch.zeros(4)).step(grad, 0.1)


def reference(of: FlatModule) -> nn.Module:
    """An ordinary module with tensors of its own and the flat's numbers in them."""
    return of.params(1.0).load_into(toys.net())


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


@pytest.mark.parametrize("name", VARIANTS)
def test_flat_optimiser_equals_torch_on_separate_tensors(name: str) -> None:
    """Step by step; for local training and for distillation alike."""
    settings, make = VARIANTS[name]
    for spec in (LocalSpec(steps=9, **settings), DistillSpec(steps=9, **settings)):
        ours = flat_module()
        theirs = reference(ours)
        optimiser = make(list(theirs.parameters()))
        stepper = Stepper(ours, spec, 9)
        for at in range(9):
            x, y = ROWS.x[at : at + 8], ROWS.y[at : at + 8]
            ours.train(8)
            stepper.step(ours.loss(ours(x), y))
            optimiser.zero_grad()
            nn.functional.cross_entropy(theirs(x), y).backward()
            optimiser.step()
            assert toys.gap(ours.vector, flat(theirs)) <= 1e-12, f"step {at}"


@pytest.mark.parametrize("clip", [1e-3, 0.1, 100.0])
def test_clip_equals_torch(clip: float) -> None:
    ours = flat_module()
    theirs = reference(ours)
    optimiser = torch.optim.SGD(theirs.parameters(), lr=0.5)
    stepper = Stepper(ours, LocalSpec(steps=4, lr=0.5, clip=clip), 4)
    for _ in range(4):
        stepper.step(ours.loss(ours(ROWS.x), ROWS.y))
        optimiser.zero_grad()
        nn.functional.cross_entropy(theirs(ROWS.x), ROWS.y).backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        optimiser.step()
        assert toys.gap(ours.vector, flat(theirs)) <= 1e-12
        assert float(ours.grad.norm()) <= clip + 1e-12


def test_correction_is_added_to_every_gradient() -> None:
    """Two steps on a quadratic: w ← w − lr·(A(w − b) + c), worked out by hand."""
    around = toys.context([toys.bowl(np.diag([1.0, 2.0]), [1, 1], 1)], toys.Bowl)
    ours = toys.ctx(around).flat_module(toys.params(toys.Bowl()))
    stepper = Stepper(ours, LocalSpec(steps=2, lr=0.5), 2, torch.tensor([1.0, -2.0], dtype=torch.float64))
    rows = around.split.train
    for _ in range(2):
        stepper.step(ours.loss(ours(rows.x), rows.y))
    # (−1, −2) + (1, −2) = (0, −4), so (0, 2); then (−1, 2) + (1, −2) = (0, 0)
    assert ours.vector.tolist() == [0.0, 2.0]


def test_clip_comes_after_the_correction() -> None:
    around = toys.context([toys.bowl(np.eye(2), [0, 0], 1)], toys.Bowl)
    ours = toys.ctx(around).flat_module(toys.params(toys.Bowl()))
    stepper = Stepper(ours, LocalSpec(steps=1, lr=1.0, clip=1.0), 1, torch.tensor([30.0, 40.0], dtype=torch.float64))
    stepper.step(ours.loss(ours(around.split.train.x), around.split.train.y))
    assert ours.vector.tolist() == pytest.approx([-0.6, -0.8], abs=1e-6)


def rates(spec: LocalSpec | DistillSpec, steps: int) -> list[float]:
    ours = flat_module()
    stepper, found = Stepper(ours, spec, steps), []
    for _ in range(steps):
        before = ours.vector.clone()
        stepper.step(ours(ROWS.x).square().mean())
        found.append(toys.rate(before, ours.vector, ours.grad))
    return found


def test_rates() -> None:
    assert rates(LocalSpec(steps=3, lr=0.2), 3) == pytest.approx([0.2] * 3)
    assert rates(DistillSpec(steps=3, optimizer="sgd", lr=0.2), 3) == pytest.approx([0.2] * 3)
    assert rates(LocalSpec(steps=3, lr=0.2, lr_time_decay=0.5), 3) == pytest.approx([0.2, 0.2 / 1.5, 0.1])


def test_training_is_a_function_of_rows_seen() -> None:
    """Every row is used equally often, whatever the batch."""
    for batch in (1, 5, 24):
        seen: Counter[int] = Counter()
        for part in batches(24, LocalSpec(epochs=4, batch=batch), np.random.default_rng(3)):
            seen.update(part.tolist())
        assert set(seen.values()) == {4}
