from __future__ import annotations

import resource
import tempfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import toys
from headwater.core.params import Params
from headwater.errors import OutputError
from headwater.specs import LocalSpec
from headwater.tasks import flat_module
from headwater.tasks.flat_module import FlatModule, room
from headwater.tasks.frozen_part import drawn_frozen
from headwater.tasks.local import local_train
from headwater.tasks.terms import Proximal

ROWS = toys.blobs(6, dtype=torch.float32)


def flat(maker: toys.Maker = toys.normed) -> FlatModule:
    return toys.context([ROWS], maker, classes=3).flat_module(toys.ARCH, 0)


def test_parameters_buffers_and_gradients_are_views() -> None:
    """Writing the vector is writing the module, and the other way round."""
    made = flat()
    made.vector.fill_(0.5)
    made.counters.fill_(7)
    state = made.module.state_dict()
    assert all((tensor == (0.5 if tensor.is_floating_point() else 7)).all() for tensor in state.values())
    made.train(6)
    made.loss(made(ROWS.x), ROWS.y).backward()
    assert float(made.grad.abs().sum()) == pytest.approx(
        sum(float(p.grad.abs().sum()) for p in made.module.parameters() if p.grad is not None)
    )
    assert int(made.counters) == 8


def test_what_is_given_out_is_a_copy() -> None:
    made = flat()
    first = made.params(3.0)
    made.vector.zero_()
    assert first.weight == 3.0
    assert float(first.vector.abs().sum()) > 0


def test_load_leaves_the_model_alone() -> None:
    made = flat()
    model = made.params(1.0)
    before = model.vector.clone()
    made.load(model)
    made.vector.zero_()
    assert torch.equal(model.vector, before)


def test_refuses_another_architecture() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        flat().load(toys.params(toys.linear()))


def test_every_part_knows_whether_it_is_trained() -> None:
    """Whatever came before: evaluation, a batch of one, or nothing but parts that their maker left resting."""

    def resting() -> nn.Module:
        made = toys.normed()
        for part in made.children():
            part.eval()
        return made

    def modes(made: FlatModule) -> set[tuple[bool, bool]]:
        return {(isinstance(part, nn.BatchNorm1d), part.training) for part in made.module.modules()}

    made = flat(resting)
    for batch, normed in ((6, True), (1, False), (1, False), (6, True), (0, True), (1, False)):
        if not batch:
            made.outputs(ROWS.x)
            assert modes(made) == {(False, False), (True, False)}
            continue
        made.train(batch)
        assert modes(made) == {(False, True), (True, normed)}
    made.outputs(ROWS.x)
    made.train(1)
    assert modes(made) == {(False, True), (True, False)}


def test_building_draws_nothing_from_the_global_generator() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    flat()
    assert torch.equal(torch.rand(2), expected)


def test_a_batch_of_one_with_batch_norm() -> None:
    """It has no spread of its own, so the running statistics serve, and are left as they were."""
    around = toys.context([ROWS.take([0])], toys.normed, classes=3)
    start = around.initial(toys.ARCH, 0)
    found = local_train(toys.ctx(around), start, LocalSpec(epochs=2, batch=4, lr=0.1))
    for name in ("features.1.running_mean", "features.1.running_var", "features.1.num_batches_tracked"):
        assert torch.equal(found.named()[name], start.named()[name])
    assert toys.gap(found.trainable, start.trainable) > 1e-4
    assert torch.isfinite(found.vector).all()


def test_a_last_batch_of_one_does_not_switch_the_others() -> None:
    """Five rows in batches of two: two batches move the statistics, the last one of one row does not."""
    around = toys.context([ROWS.take(range(5))], toys.normed, classes=3)
    start = around.initial(toys.ARCH, 0)
    found = local_train(toys.ctx(around), start, LocalSpec(epochs=1, batch=2, lr=0.1))
    assert found.named()["features.1.num_batches_tracked"].item() == 2
    assert toys.gap(found.named()["features.1.running_mean"], start.named()["features.1.running_mean"]) > 1e-4


def test_outputs_are_in_evaluation_mode_and_do_not_depend_on_the_batch() -> None:
    made = flat()
    before = made.vector.clone()
    one, all_at_once = made.outputs(ROWS.x, 1), made.outputs(ROWS.x, 100)
    assert toys.gap(one, all_at_once) <= 1e-6
    assert torch.equal(made.vector, before)
    assert not one.requires_grad


class OwnLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        return found

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs.sum() * 0 + 42.0


def test_a_loss_of_ones_own() -> None:
    made = flat(OwnLoss)
    assert float(made.loss(made(ROWS.x), ROWS.y).detach()) == 42.0
    plain = flat()
    expected = nn.functional.cross_entropy(plain(ROWS.x), ROWS.y)
    assert float(plain.loss(plain(ROWS.x), ROWS.y).detach()) == pytest.approx(float(expected.detach()), abs=1e-6)


class Tied(nn.Module):
    """Two layers that share one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(torch.tanh(self.first(x)))
        return found


def test_tied_parameters_stay_tied() -> None:
    around = toys.context([ROWS], Tied, classes=3)
    start = around.initial(toys.ARCH, 0)
    assert start.layout.size == 9 + 3 + 3
    found = local_train(toys.ctx(around), start, LocalSpec(epochs=2, batch=4, lr=0.1))
    module = found.load_into(Tied())
    assert isinstance(module, Tied)
    assert module.first.weight is module.second.weight
    assert torch.equal(module.first.weight, found.named()["first.weight"])


class Frozen(nn.Module):
    """A first layer that is not to be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 3)
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(torch.tanh(self.first(x)))
        return found


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_frozen_parameters_stay_as_they_are(optimizer: str) -> None:
    """They are no part of what travels, and neither weight decay nor a correction nor a pull reaches them."""
    around = toys.context([ROWS], Frozen, classes=3)
    start = around.initial(toys.ARCH, 0)
    assert start.layout.size == 4 * 3 + 3
    spec = LocalSpec(epochs=2, batch=4, lr=0.1, weight_decay=0.1, clip=1.0, optimizer=optimizer)
    correction = torch.ones(start.layout.size)
    found = local_train(toys.ctx(around), start, spec, corrections=(correction,), terms=(Proximal(0.1),))
    frozen = around.frozen.of(around.models[toys.ARCH], toys.ARCH, around.seed).tensors
    before = drawn_frozen(around.models[toys.ARCH], toys.ARCH, around.seed)
    assert set(before) == {"first.weight", "first.bias"} == {name for name, _ in found.layout.frozen}
    assert found.nbytes == 4 * found.layout.size
    assert toys.gap(found.trainable, start.trainable) > 1e-3
    module = found.load_into(Frozen(), frozen)
    assert all(torch.equal(module.state_dict()[name], before[name]) for name in before)
    assert torch.equal(module(ROWS.x), toys.ctx(around).flat_module(found)(ROWS.x))


def test_layout_names_every_tensor_of_the_state() -> None:
    model = Params.of(toys.normed(), toys.ARCH)
    assert set(model.named()) == set(toys.normed().state_dict())
    assert model.nbytes == 4 * (model.layout.size + 8) + 8


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux tells what is mapped")
class TestLargeTables:
    def test_are_the_same_in_a_file(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """As large as it may be it is held; a byte less room, and it is in a file, of which no name is left."""
        made = flat()
        held = made.outputs(ROWS.x, 4)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.setattr(flat_module, "LARGE", held.nbytes)
        assert not in_a_file(made.outputs(ROWS.x, 4))
        monkeypatch.setattr(flat_module, "LARGE", held.nbytes - 1)
        found = made.outputs(ROWS.x, 4)
        assert in_a_file(found)
        assert torch.equal(found, held)
        assert list(tmp_path.iterdir()) == []

    def test_without_room(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.setattr(flat_module, "LARGE", 10)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            with pytest.raises(OutputError, match=r"no room for 4,000 bytes of models' outputs .* set TMPDIR"):
                room((100, 10), torch.float32)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert list(tmp_path.iterdir()) == []


def in_a_file(table: Tensor) -> bool:
    """Whether the memory of a table is a mapped file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= table.data_ptr() < end:
            return "headwater-table-" in line
    return False


def test_no_inputs() -> None:
    assert flat().outputs(ROWS.x[:0]).shape == (0, 3)
