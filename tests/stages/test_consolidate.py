from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import toys
from headwater.params import Params
from headwater.specs import DistillSpec
from headwater.stages.consolidate import distill, judge, validation
from headwater.stages.ensemble import ensemble
from headwater.stages.site import Context

ROWS = toys.blobs(10)
VAL = toys.blobs(6, seed=8)
SPEC = DistillSpec(epochs=2, batch=4, optimizer="sgd", lr=0.2)


def around(**options: object) -> Context:
    return toys.context([ROWS, toys.blobs(5, seed=1)], toys.net, **({"classes": 3} | options))


def models(count: int, seed: int = 0) -> list[Params]:
    torch.manual_seed(seed)
    return [toys.params(toys.net(), weight=float(i + 1)) for i in range(count)]


TEAM = {f"c{i}": m for i, m in enumerate(models(3))}
START = models(1, seed=9)[0]


def test_equals_a_plain_loop() -> None:
    """The same batches, an ordinary module, torch's SGD and soft-target cross-entropy."""
    at = toys.site(around())
    target = ensemble(at, TEAM, ROWS.x)
    module, rng = START.load_into(toys.net()), toys.site(around()).rng
    optimiser = torch.optim.SGD(module.parameters(), lr=0.2)
    for _ in range(2):
        for part in torch.from_numpy(rng.permutation(10)).split(4):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(ROWS.x[part]), target.probs[part]).backward()
            optimiser.step()
    found = distill(at, start=START, teachers=TEAM, spec=SPEC)
    assert toys.gap(found, toys.params(module)) <= 1e-12


def test_weighs_what_its_teachers_weigh() -> None:
    for epochs in (0, 2):
        found = distill(toys.site(around()), start=START, teachers=TEAM, spec=replace(SPEC, epochs=epochs))
        assert found.weight == 6


def test_start_and_teachers_are_left_alone() -> None:
    before = [m.vector.clone() for m in (START, *TEAM.values())]
    distill(toys.site(around()), start=START, teachers=TEAM, spec=SPEC)
    assert all(torch.equal(m.vector, v) for m, v in zip((START, *TEAM.values()), before, strict=True))


@pytest.mark.parametrize("epochs", [0, 1, 7])
@pytest.mark.parametrize("batch", [3, 4, 100])
def test_teachers_are_asked_once(epochs: int, batch: int) -> None:
    """members × ceil(n / batch) forward passes of teachers however long training is, and one a step of the student."""
    place = around()
    passes = {True: 0, False: 0}  # by training mode

    def count(module: nn.Module, inputs: object, output: Tensor) -> None:
        passes[module.training] += 1

    place.bench(toys.ARCH, 0).module.register_forward_hook(count)
    distill(toys.site(place), start=START, teachers=TEAM, spec=replace(SPEC, epochs=epochs, batch=batch))
    assert passes[False] == (3 * math.ceil(10 / batch) if epochs else 0)
    assert passes[True] == epochs * math.ceil(10 / batch)


def test_batch_norm_of_the_student_adapts_and_of_teachers_does_not() -> None:
    rows = toys.blobs(8, dtype=torch.float32)
    place = toys.context([rows], toys.normed, classes=3)
    start, teacher = place.initial(toys.ARCH, 1), replace(place.initial(toys.ARCH, 2), weight=1.0)
    before = teacher.vector.clone()
    found = distill(toys.site(place), start=start, teachers={"a": teacher}, spec=SPEC)
    assert toys.gap(found.named()["1.running_mean"], start.named()["1.running_mean"]) > 1e-4
    assert found.named()["1.num_batches_tracked"].item() == 4
    assert torch.equal(teacher.vector, before)


class TestTemperature:
    FULL = DistillSpec(steps=1, batch=99, optimizer="sgd", lr=0.1)

    def step(self, **changes: object) -> Tensor:
        spec = replace(self.FULL, **changes)
        return distill(toys.site(around()), start=START, teachers=TEAM, spec=spec).vector - START.vector

    def test_t2_scales_the_step(self) -> None:
        assert toys.gap(9 * self.step(temperature=3.0), self.step(temperature=3.0, t2=True)) <= 1e-12
        assert torch.equal(self.step(), self.step(t2=True))

    def test_softens_teacher_and_student(self) -> None:
        """One step is −lr times the gradient of KL(teacher_T ‖ student_T)."""
        target = ensemble(toys.site(around()), TEAM, ROWS.x, temperature=3.0).probs
        module = START.load_into(toys.net())
        loss = nn.functional.cross_entropy(module(ROWS.x) / 3.0, target)
        gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])
        assert toys.gap(self.step(temperature=3.0), -0.1 * gradient) <= 1e-12


class TestWhere:
    def test_at_the_server_on_the_reference_set(self) -> None:
        reference = toys.blobs(7, seed=4).x
        at_server = distill(toys.site(around(reference=reference), "server"), start=START, teachers=TEAM, spec=SPEC)
        as_client = toys.context([toys.blobs(7, seed=4)], toys.net, classes=3)
        moved = replace(SPEC, steps=1, epochs=None, batch=99)
        one = distill(toys.site(around(reference=reference), "server"), start=START, teachers=TEAM, spec=moved)
        two = distill(toys.site(as_client, "c0"), start=START, teachers=TEAM, spec=moved)
        assert toys.gap(one, two) <= 1e-12
        assert toys.gap(at_server, START) > 1e-3

    def test_at_a_host_there_is_nothing_to_distil_on(self) -> None:
        with pytest.raises(LookupError, match="seat one of its clients as leader"):
            distill(toys.site(around(), "s0"), start=START, teachers=TEAM, spec=SPEC)


class TestValidation:
    JUDGED = replace(SPEC, patience=3)

    def test_at_the_server_its_own_hold_out_serves(self) -> None:
        place = around(reference=ROWS.x, validation=VAL)
        at = toys.site(place, "server")
        distill(at, start=START, teachers=TEAM, spec=self.JUDGED)
        assert {"teacher_accuracy", "student_before", "student_after", "distill_steps"} <= set(at.notes)
        assert at.notes["student_before"] == judge(toys.site(place).bench(START), VAL)["accuracy"]

    def test_stopping_needs_one(self) -> None:
        for spec in (self.JUDGED, replace(SPEC, restore="best"), replace(SPEC, restore="best_or_init")):
            with pytest.raises(LookupError, match="validation set"):
                distill(toys.site(around()), start=START, teachers=TEAM, spec=spec)

    def test_an_empty_one_is_none(self) -> None:
        """A hold-out without rows can judge nothing: no note may be a NaN, and stopping is refused as without one."""
        at = toys.site(around())
        distill(at, start=START, teachers=TEAM, val=VAL.take([]), spec=SPEC)
        assert all(math.isfinite(value) for value in at.notes.values())
        with pytest.raises(LookupError, match="validation set"):
            distill(toys.site(around()), start=START, teachers=TEAM, val=VAL.take([]), spec=self.JUDGED)

    def test_a_share_of_the_leaders_rows(self) -> None:
        """With 0.2 of 10 rows held, 8 are distilled on: two batches of four an epoch."""
        at = toys.site(around())
        distill(at, start=START, teachers=TEAM, spec=replace(SPEC, patience=99), hold=0.2)
        assert at.notes["distill_steps"] == 4
        whole = toys.site(around())
        distill(whole, start=START, teachers=TEAM, spec=SPEC)
        assert whole.notes["distill_steps"] == 6

    @pytest.mark.parametrize("rows", [1, 2, 3])
    def test_a_share_of_very_few_rows(self, rows: int) -> None:
        """At least one to judge by and one to learn from; with a single row it is both."""
        place = toys.context([toys.blobs(rows)], toys.net, classes=3)
        at = toys.site(place)
        found = distill(at, start=START, teachers=TEAM, spec=replace(SPEC, patience=9), hold=0.2)
        assert at.notes["distill_steps"] == 2
        assert torch.isfinite(found.vector).all()

    def test_as_a_value_it_is_the_servers(self) -> None:
        place = around(validation=VAL)
        assert torch.equal(validation(toys.site(place, "server")).x, VAL.x)
        with pytest.raises(LookupError, match="at the server"):
            validation(toys.site(place, "c0"))

    def test_metric(self) -> None:
        found = judge(toys.site(around()).bench(START), VAL)
        output = START.load_into(toys.net())(VAL.x)
        assert found["accuracy"] == float((output.argmax(1) == VAL.y).double().mean())
        assert found["loss"] == pytest.approx(float(nn.functional.cross_entropy(output, VAL.y).detach()))


def test_labels_of_members_that_were_lost() -> None:
    """A member whose model came but whose label counts were lost cannot be weighed by labels: the others teach."""
    counts = {name: torch.tensor([3.0, 1.0, 2.0]) for name in ("c0", "c2")}
    spec = replace(SPEC, weights="labels")
    found = distill(toys.site(around()), start=START, teachers=TEAM, spec=spec, counts=counts)
    others = {name: TEAM[name] for name in counts}
    expected = distill(toys.site(around()), start=START, teachers=others, spec=spec, counts=counts)
    assert torch.equal(found.vector, expected.vector)


def test_partial_last_batch_is_kept() -> None:
    at = toys.site(around())
    distill(at, start=START, teachers=TEAM, spec=replace(SPEC, epochs=5, batch=9))
    assert at.notes["distill_steps"] == 10
