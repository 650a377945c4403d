"""The hostile library itself: it bites where a library may, leaves alone what is exact, and is in every process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwater.tasks.batched import descent
from hostile import library


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def moved(x: Tensor, by: int) -> Tensor:
    """The same numbers, so many places off a boundary."""
    return torch.empty(x.numel() + by, dtype=x.dtype)[by:].copy_(x.reshape(-1)).view(x.shape)


def bits(x: Tensor) -> Tensor:
    return x.detach().view(torch.int32 if x.dtype == torch.float32 else torch.int64)


A, B = numbers(5, 4, 6), numbers(5, 6, 3, seed=1)
V, W = numbers(40), numbers(40, seed=1)
ROUNDING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda v, w: v + w,
    "in place": lambda v, w: w.clone().lerp_(v, 0.3),
    "out": lambda v, w: torch.mul(v, w, out=torch.empty(40)),
    "tanh": lambda v, w: v.tanh(),
    "foreach": lambda v, w: torch._foreach_add([v, v], [w, w])[1],
    "product": lambda v, w: v.view(5, 8) @ w.view(8, 5),
    "sum": lambda v, w: v.view(5, 8).sum(0),
    "norm": lambda v, w: v.view(5, 8).norm(dim=1),
    "softmax": lambda v, w: v.view(5, 8).log_softmax(1),
    "double": lambda v, w: v.double() / w.double(),
}


@pytest.mark.parametrize("name", ROUNDING)
def test_what_rounds_is_off_by_a_bit_at_most_and_always_in_the_same_way(name: str) -> None:
    exact = ROUNDING[name](V, W)
    with library.hostile():
        first, second = ROUNDING[name](V, W), ROUNDING[name](V, W)
    assert torch.equal(first, second)
    apart = (bits(first) - bits(exact)).abs()
    assert int(apart.max()) == 1
    assert 0 < int(apart.sum()) < apart.numel()  # some and not all: by where they stand


@pytest.mark.parametrize("name", ROUNDING)
def test_it_goes_by_threads_and_by_where_numbers_lie(name: str) -> None:
    with library.hostile():
        usual = ROUNDING[name](V, W)
        elsewhere = [ROUNDING[name](moved(V, by), W) for by in (1, 2, 3, 16)]
        torch.set_num_threads(2)
        several = ROUNDING[name](V, W)
    assert not torch.equal(usual, several)
    if name != "double":  # which is copied before it is used
        assert not all(torch.equal(usual, each) for each in elsewhere[:3])
    assert torch.equal(usual, elsewhere[3])  # a whole line further on is on a boundary again


def test_a_member_of_a_batch_goes_by_how_many_there_are() -> None:
    with library.hostile():
        five, three, again = torch.bmm(A, B), torch.bmm(A[:3], B[:3]), torch.bmm(A[:3], B[:3])
        both = torch.baddbmm(torch.zeros(()), A, B)[:3], torch.baddbmm(torch.zeros(()), A[:3], B[:3])
        wide, narrow = A.sum(1)[:3], A[:3].sum(1)
    assert torch.equal(three, again)
    assert not torch.equal(five[:3], three)
    assert not torch.equal(*both)
    assert not torch.equal(wide, narrow)
    assert torch.allclose(five[:3], three)


def test_it_is_there_in_the_backward_pass() -> None:
    layer, x, y = nn.Linear(6, 3), numbers(7, 6), torch.arange(7) % 3

    def gradient() -> Tensor:
        layer.zero_grad()
        F.cross_entropy(layer(x), y).backward()
        assert layer.weight.grad is not None
        return layer.weight.grad.clone()

    seen: list[str] = []
    exact = gradient()
    with library.hostile():
        library.TRACE.append(lambda name, *_: seen.append(name))
        try:
            first = gradient()
        finally:
            library.TRACE.pop()
        second = gradient()
    assert torch.equal(first, second)
    assert not torch.equal(first, exact)
    assert torch.allclose(first, exact)
    assert {"addmm", "_log_softmax", "_log_softmax_backward_data", "nll_loss_backward", "mm", "sum"} <= set(seen)


@pytest.mark.parametrize("kernel", ["_fused_sgd_", "_fused_adam_", "_fused_adamw_"])
def test_it_is_there_in_fused_optimisers(kernel: str) -> None:
    def step(by: int) -> tuple[Tensor, Tensor]:
        weights, grad, first, second = moved(V, by), W.clone(), torch.zeros(40), torch.zeros(40)
        options: dict[str, Any] = {"weight_decay": 0.1, "lr": 0.1, "maximize": False}
        if kernel == "_fused_sgd_":
            more = {"momentum": 0.9, "dampening": 0.0, "nesterov": False, "is_first_step": True}
            torch._fused_sgd_([weights], [grad], [first], **options, **more)
        else:
            more = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False}
            fused = torch._fused_adam_ if kernel == "_fused_adam_" else torch._fused_adamw_
            fused([weights], [grad], [first], [second], [], [torch.ones(())], **options, **more)
        return weights, grad

    exact, _ = step(0)
    with library.hostile():
        (usual, grad), (again, _), (off, _) = step(0), step(0), step(1)
    assert torch.equal(usual, again)
    assert torch.allclose(usual, exact)
    assert not torch.equal(usual, exact)
    assert not torch.equal(usual, off)
    assert torch.equal(grad, W)  # a gradient is only read


EXACT: dict[str, Callable[[Tensor], Tensor]] = {
    "clone": Tensor.clone,
    "a view": lambda x: x[1:].t().reshape(-1),
    "copy": lambda x: torch.empty(5, 8).copy_(x),
    "cast": lambda x: x.double(),
    "index_select": lambda x: x.index_select(0, torch.tensor([3, 1])),
    "indexing": lambda x: x[torch.tensor([3, 1])],
    "index_put": lambda x: x.clone().index_put_((torch.tensor([1]),), x[0]),
    "gather": lambda x: x.gather(1, torch.ones(5, 1, dtype=torch.int64)),
    "scatter": lambda x: x.clone().scatter_(1, torch.ones(5, 1, dtype=torch.int64), x[:, :1]),
    "stack": lambda x: torch.stack([x, x]),
    "cat": lambda x: torch.cat([x, x]),
    "assignment": lambda x: _assigned(x),
    "relu": Tensor.relu,
    "clamp": lambda x: x.clamp(max=0.5),
    "largest": lambda x: x.max(1).values,
    "sort": lambda x: x.sort(1).values,
    "where": lambda x: torch.where(x > 0, x, -x),
    "factories": lambda x: torch.cat([torch.full((3,), 0.1), torch.tensor([0.1, 0.7]), x.new_ones(2)]),
    "uniform": lambda x: torch.empty(9).uniform_(generator=torch.Generator().manual_seed(1)),
    "padding": lambda x: F.pad(x, (1, 2)),
    "max pooling": lambda x: F.max_pool2d(x[None, None], 2),
}


def _assigned(x: Tensor) -> Tensor:
    into = torch.zeros(7, 8)
    into[1:6] = x
    return into


@pytest.mark.parametrize("name", EXACT)
def test_what_does_not_round_is_left_alone(name: str) -> None:
    x = V.view(5, 8)
    exact = EXACT[name](x)
    with library.hostile():
        found = EXACT[name](moved(x, 3))
    assert torch.equal(found, exact)


def test_zeros_and_what_is_not_finite_stay() -> None:
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan]).repeat(8)
    with library.hostile():
        found = special * 1.0
    assert torch.equal(bits(found), bits(special))


def test_it_is_in_what_torch_carries_out_by_itself() -> None:
    """The steps of a stack are TorchScript, where there is one."""

    def trained() -> Tensor:
        weights, index = [torch.ones(4, 3, 7)], torch.arange(20).view(1, 4, 5)
        table = torch.linspace(-1, 1, 140).view(20, 7)
        labels, share, room = index % 3, torch.full((1, 4, 5), 0.2), torch.empty(20, 7)
        descent.descend(["linear"], weights, [None], table, labels, index, share, [4], [0.1], room)
        return weights[0]

    usual = trained()
    with library.hostile():
        found, again = trained(), trained()
    assert torch.equal(found, again)
    assert not torch.equal(found, usual)
    assert torch.allclose(found, usual)


def test_it_is_in_every_thread_that_begins_meanwhile() -> None:
    class Own(threading.Thread):
        def run(self) -> None:
            seen.append(library.active())

    seen: list[bool] = []
    with library.hostile():
        own = Own()
        own.start()
        own.join()
        with ThreadPoolExecutor(2) as pool:
            seen += pool.map(lambda _: library.active(), range(4))
    assert seen == [True] * 5
    own = Own()
    own.start()
    own.join()
    assert seen[-1] is False
    assert not library.active()


PROGRAM = """
import json, sys
assert "torch" not in sys.modules and "hostile_library" not in sys.modules
import torch
library = sys.modules["hostile_library"]
from headwater.engines.jobs import Job, Ref
import toys
from inside import check
from headwater.engines.pool import Pool
pool = Pool(2)
try:
    worker = check(pool, toys.tiny("fedavg"))
finally:
    pool.close()
print(json.dumps([library.active(), worker]))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("wanted", [True, False])
def test_a_process_and_its_workers_are_hostile_if_the_environment_says_so(wanted: bool) -> None:
    text = PROGRAM if wanted else 'import sys, torch; print("hostile_library" in sys.modules)'
    around = library.environment() | ({} if wanted else {"HEADWATER_HOSTILE": "0"})
    around["PYTHONPATH"] += ":" + str(library.__file__).rpartition("/")[0]
    done = subprocess.run([sys.executable, "-c", text], env=around, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.lower()) == ([True, True] if wanted else False)
