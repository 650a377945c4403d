from __future__ import annotations

import math
import weakref
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import toys
from headwater.algorithms.feddf import drop_worst
from headwater.core.params import Params
from headwater.data.base import Examples
from headwater.errors import ConfigError
from headwater.models.base import ModelSpec
from headwater.specs import DistillSpec
from headwater.tasks import flat_module
from headwater.tasks.average import average_like
from headwater.tasks.distill import distill, validation
from headwater.tasks.ensemble import ensemble, learn
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.task import RunContext
from headwater.tasks.teacher_outputs import Panel, answer, score, scores_of

ROWS = toys.blobs(10)
VAL = toys.blobs(6, seed=8)
SPEC = DistillSpec(epochs=2, batch=4, optimizer="sgd", lr=0.2)


def around(**options: object) -> RunContext:
    return toys.context([ROWS, toys.blobs(5, seed=1)], toys.net, **({"classes": 3} | options))


def models(count: int, seed: int = 0) -> list[Params]:
    torch.manual_seed(seed)
    return [toys.params(toys.net(), weight=float(i + 1)) for i in range(count)]


def said(rows: Examples) -> dict[str, Tensor]:
    return {name: toys.ctx(around()).flat_module(model).outputs(rows.x) for name, model in TEAM.items()}


TEAM = {f"c{i}": m for i, m in enumerate(models(3))}
START = models(1, seed=9)[0]


def test_equals_a_plain_loop() -> None:
    """The same batches, an ordinary module, torch's SGD and soft-target cross-entropy."""
    at = toys.ctx(around())
    target = ensemble(at, TEAM, ROWS.x)
    module, rng = START.load_into(toys.net()), toys.ctx(around()).rng
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
        found = distill(toys.ctx(around()), start=START, teachers=TEAM, spec=replace(SPEC, epochs=epochs))
        assert found.weight == 6


def test_start_and_teachers_are_left_alone() -> None:
    before = [m.vector.clone() for m in (START, *TEAM.values())]
    distill(toys.ctx(around()), start=START, teachers=TEAM, spec=SPEC)
    assert all(torch.equal(m.vector, v) for m, v in zip((START, *TEAM.values()), before, strict=True))


@pytest.mark.parametrize("epochs", [0, 1, 7])
@pytest.mark.parametrize("batch", [3, 4, 100])
def test_teachers_are_asked_once(epochs: int, batch: int) -> None:
    """Each teacher sees each row once however long training is, and the student sees it once an epoch."""
    place = around()
    rows = {True: 0, False: 0}  # by training mode

    def count(module: nn.Module, inputs: object, output: Tensor) -> None:
        rows[module.training] += len(output)

    place.flat_module(toys.ARCH, 0).module.register_forward_hook(count)
    distill(toys.ctx(place), start=START, teachers=TEAM, spec=replace(SPEC, epochs=epochs, batch=batch))
    assert rows == {True: epochs * 10, False: 3 * 10 if epochs else 0}


class TestAnswers:
    """What teachers say may have been asked for beforehand."""

    OPTIONS: ClassVar[list[dict[str, Any]]] = [
        {},
        {"val": VAL},
        {"hold": 0.3},
        {"hold": 0.3, "weights": "learned"},
        {"val": VAL, "weights": "learned", "mix": "logits"},
        {"val": VAL, "weights": "learned", "epochs": 0},
        {"hold": 0.3, "weights": "learned", "epochs": 0},
        {"hold": 0.3, "epochs": 0},
    ]

    @pytest.mark.parametrize("options", OPTIONS)
    @pytest.mark.parametrize("parts", [2, *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 8))])
    def test_make_no_difference(self, options: dict[str, Any], parts: int) -> None:
        given = {key: value for key, value in options.items() if key in ("val", "hold")}
        spec = replace(SPEC, **{key: value for key, value in options.items() if key not in given})
        one, two = toys.ctx(around()), toys.ctx(around())
        told = {str(i): answer(toys.ctx(around()), TEAM, part=(i, parts), **given) for i in range(parts)}
        assert [name for group in told.values() for name in group] == list(TEAM)
        first = distill(one, start=START, teachers=TEAM, spec=spec, **given)
        second = distill(two, start=START, teachers=TEAM, spec=spec, answers=told, **given)
        assert torch.equal(first.vector, second.vector)
        assert one.notes == two.notes

    def test_are_believed(self) -> None:
        """Whoever has answered is not asked again, and whoever has not is."""
        lie = answer(toys.ctx(around()), {"c0": TEAM["c1"]})
        found = distill(toys.ctx(around()), start=START, teachers=TEAM, spec=SPEC, answers={"": lie})
        other = TEAM | {"c0": replace(TEAM["c1"], weight=TEAM["c0"].weight)}
        expected = distill(toys.ctx(around()), start=START, teachers=other, spec=SPEC)
        assert torch.equal(found.vector, expected.vector)

    def test_in_a_file(self, monkeypatch: pytest.MonkeyPatch) -> None:
        held = distill(toys.ctx(around()), start=START, teachers=TEAM, val=VAL, spec=SPEC)
        monkeypatch.setattr(flat_module, "LARGE", 100)
        found = distill(toys.ctx(around()), start=START, teachers=TEAM, val=VAL, spec=SPEC)
        assert torch.equal(held.vector, found.vector)

    def test_are_let_go(self) -> None:
        """However many teachers there are, nothing is left of one when the next is asked."""
        seen: list[weakref.ref[Tensor]] = []
        alive = []
        panel = Panel.of(toys.ctx(around()), TEAM, None, VAL, 0.0)
        for _, _, heard in panel.each(inputs=True, val=True):
            alive.append(sum(table() is not None for table in seen))
            seen += map(weakref.ref, heard.values())
            del heard
        assert alive == [0, 0, 0]
        assert len(seen) == 6

    def test_scores(self) -> None:
        """The filter's scores are accuracies on the server's hold-out, whoever works them out."""
        place = around(validation=VAL)
        at = toys.ctx(place, "server")
        told = {"": score(at, TEAM)}
        assert told[""] == {name: scores_of(at.flat_module(model), VAL)["accuracy"] for name, model in TEAM.items()}
        kept = drop_worst(at, models=TEAM)
        assert list(drop_worst(at, models=TEAM, scores=told)) == list(kept)
        assert list(drop_worst(at, models=TEAM, scores={"": {"c0": 0.0, "c1": 0.9, "c2": 0.0}})) == ["c1"]


def test_images_are_laid_out_once() -> None:
    """One step on images of three channels is the step of a plain loop, also with a last batch of one."""
    torch.manual_seed(0)
    rows = Examples(torch.randn(5, 3, 8, 8), torch.zeros(5, dtype=torch.int64))
    spec = ModelSpec("resnet8", (3, 8, 8), 3, {"norm": "group"})
    place = toys.context([rows], spec.build, classes=3)
    start, teacher = place.initial(toys.ARCH, 1), replace(place.initial(toys.ARCH, 2), weight=1.0)
    found = distill(toys.ctx(place), start=start, teachers={"a": teacher}, spec=SPEC)
    target, flat, rng = (
        ensemble(toys.ctx(place), {"a": teacher}, rows.x),
        FlatModule(spec, toys.ARCH),
        toys.ctx(place).rng,
    )
    flat.load(start)
    for _ in range(2):
        for part in torch.from_numpy(rng.permutation(5)).split(4):
            flat.grad.zero_()
            flat.train(len(part))
            target.loss(part, flat(rows.x[part]), 1.0).backward()
            flat.flat.data -= 0.2 * flat.grad
    assert toys.gap(found.trainable, flat.flat.data) <= 1e-6


def test_batch_norm_of_the_student_adapts_and_of_teachers_does_not() -> None:
    rows = toys.blobs(8, dtype=torch.float32)
    place = toys.context([rows], toys.normed, classes=3)
    start, teacher = place.initial(toys.ARCH, 1), replace(place.initial(toys.ARCH, 2), weight=1.0)
    before = teacher.vector.clone()
    found = distill(toys.ctx(place), start=start, teachers={"a": teacher}, spec=SPEC)
    assert toys.gap(found.named()["features.1.running_mean"], start.named()["features.1.running_mean"]) > 1e-4
    assert found.named()["features.1.num_batches_tracked"].item() == 4
    assert torch.equal(teacher.vector, before)


class TestTemperature:
    FULL = DistillSpec(steps=1, batch=99, optimizer="sgd", lr=0.1)

    def step(self, **changes: object) -> Tensor:
        spec = replace(self.FULL, **changes)
        return distill(toys.ctx(around()), start=START, teachers=TEAM, spec=spec).vector - START.vector

    def test_t2_scales_the_step(self) -> None:
        assert toys.gap(9 * self.step(temperature=3.0), self.step(temperature=3.0, t2=True)) <= 1e-12
        assert torch.equal(self.step(), self.step(t2=True))

    def test_softens_teacher_and_student(self) -> None:
        """One step is −lr times the gradient of KL(teacher_T ‖ student_T)."""
        target = ensemble(toys.ctx(around()), TEAM, ROWS.x, temperature=3.0).probs
        module = START.load_into(toys.net())
        loss = nn.functional.cross_entropy(module(ROWS.x) / 3.0, target)
        gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])
        assert toys.gap(self.step(temperature=3.0), -0.1 * gradient) <= 1e-12


class TestWhere:
    def test_at_the_server_on_the_reference_set(self) -> None:
        reference = toys.blobs(7, seed=4).x
        at_server = distill(toys.ctx(around(reference=reference), "server"), start=START, teachers=TEAM, spec=SPEC)
        as_client = toys.context([toys.blobs(7, seed=4)], toys.net, classes=3)
        moved = replace(SPEC, steps=1, epochs=None, batch=99)
        one = distill(toys.ctx(around(reference=reference), "server"), start=START, teachers=TEAM, spec=moved)
        two = distill(toys.ctx(as_client, "c0"), start=START, teachers=TEAM, spec=moved)
        assert toys.gap(one, two) <= 1e-12
        assert toys.gap(at_server, START) > 1e-3

    def test_at_a_host_there_is_nothing_to_distil_on(self) -> None:
        with pytest.raises(LookupError, match="seat one of its clients as leader"):
            distill(toys.ctx(around(), "s0"), start=START, teachers=TEAM, spec=SPEC)


class TestValidation:
    JUDGED = replace(SPEC, patience=3)

    def test_at_the_server_its_own_hold_out_serves(self) -> None:
        place = around(reference=ROWS.x, validation=VAL)
        at = toys.ctx(place, "server")
        distill(at, start=START, teachers=TEAM, spec=self.JUDGED)
        assert {"teacher_accuracy", "student_before", "student_after", "distill_steps"} <= set(at.notes)
        assert at.notes["student_before"] == scores_of(toys.ctx(place).flat_module(START), VAL)["accuracy"]

    def test_stopping_needs_one(self) -> None:
        for spec in (self.JUDGED, replace(SPEC, restore="best"), replace(SPEC, restore="best_or_init")):
            with pytest.raises(LookupError, match="validation set"):
                distill(toys.ctx(around()), start=START, teachers=TEAM, spec=spec)

    def test_so_does_a_comparison_of_teachers_and_start(self) -> None:
        with pytest.raises(LookupError, match=r"better-teacher.*validation set"):
            distill(toys.ctx(around()), start=START, teachers=TEAM, spec=replace(SPEC, when="better-teacher"))

    @pytest.mark.parametrize("options", [{}, {"restore": "best_or_init"}, {"steps": 3, "epochs": None}])
    def test_only_better_teachers_teach(self, options: dict[str, Any]) -> None:
        """With labels on which start or teachers are right, whatever the networks say."""
        place = around()
        spec = replace(SPEC, **options)
        of_team = ensemble(toys.ctx(place), TEAM, VAL.x).probs.argmax(1)
        of_start = toys.ctx(place).flat_module(START).outputs(VAL.x).argmax(1)
        assert not torch.equal(of_team, of_start)
        for labels, teaches in ((of_team, True), (of_start, False), ((of_team + 1) % 3, None)):
            val = Examples(VAL.x, labels)
            free, gated = toys.ctx(place), toys.ctx(place)
            usual = distill(free, start=START, teachers=TEAM, val=val, spec=spec)
            found = distill(gated, start=START, teachers=TEAM, val=val, spec=replace(spec, when="better-teacher"))
            better = gated.notes["teacher_accuracy"] > gated.notes["student_before"]
            assert teaches is None or teaches == better
            assert found.weight == usual.weight
            assert torch.equal(found.vector, usual.vector if better else START.vector)
            if not better:
                assert (gated.notes["distill_steps"], gated.notes["accepted"]) == (0, 0)
                assert gated.notes["student_after"] == gated.notes["student_before"]
            else:
                assert gated.notes == {"accepted": 1} | free.notes

    def test_as_good_as_the_start_is_not_better(self) -> None:
        """A teacher that is the start would only move it by what batch norm or weight decay do."""
        spec = replace(SPEC, when="better-teacher", weight_decay=0.1)
        found = distill(toys.ctx(around()), start=START, teachers={"c0": START}, val=VAL, spec=spec)
        assert torch.equal(found.vector, START.vector)

    def test_an_empty_one_is_none(self) -> None:
        """A hold-out without rows can judge nothing: no note may be a NaN, and stopping is refused as without one."""
        at = toys.ctx(around())
        distill(at, start=START, teachers=TEAM, val=VAL.take([]), spec=SPEC)
        assert all(math.isfinite(value) for value in at.notes.values())
        with pytest.raises(LookupError, match="validation set"):
            distill(toys.ctx(around()), start=START, teachers=TEAM, val=VAL.take([]), spec=self.JUDGED)

    def test_a_share_of_the_leaders_rows(self) -> None:
        """With 0.2 of 10 rows held, 8 are distilled on: two batches of four an epoch."""
        at = toys.ctx(around())
        distill(at, start=START, teachers=TEAM, spec=replace(SPEC, patience=99), hold=0.2)
        assert at.notes["distill_steps"] == 4
        whole = toys.ctx(around())
        distill(whole, start=START, teachers=TEAM, spec=SPEC)
        assert whole.notes["distill_steps"] == 6

    @pytest.mark.parametrize("rows", [1, 2, 3])
    def test_a_share_of_very_few_rows(self, rows: int) -> None:
        """At least one to judge by and one to learn from; with a single row it is both."""
        place = toys.context([toys.blobs(rows)], toys.net, classes=3)
        at = toys.ctx(place)
        found = distill(at, start=START, teachers=TEAM, spec=replace(SPEC, patience=9), hold=0.2)
        assert at.notes["distill_steps"] == 2
        assert torch.isfinite(found.vector).all()

    def test_as_a_value_it_is_the_servers(self) -> None:
        place = around(validation=VAL)
        assert torch.equal(validation(toys.ctx(place, "server")).x, VAL.x)
        with pytest.raises(LookupError, match="at the server"):
            validation(toys.ctx(place, "c0"))

    def test_metric(self) -> None:
        found = scores_of(toys.ctx(around()).flat_module(START), VAL)
        output = START.load_into(toys.net())(VAL.x)
        assert found["accuracy"] == float((output.argmax(1) == VAL.y).double().mean())
        assert found["loss"] == pytest.approx(float(nn.functional.cross_entropy(output, VAL.y).detach()))


def test_labels_of_members_that_were_lost() -> None:
    """A member whose model came but whose label counts were lost cannot be weighed by labels: the others teach."""
    counts = {name: torch.tensor([3.0, 1.0, 2.0]) for name in ("c0", "c2")}
    spec = replace(SPEC, weights="labels")
    found = distill(toys.ctx(around()), start=START, teachers=TEAM, spec=spec, counts=counts)
    others = {name: TEAM[name] for name in counts}
    expected = distill(toys.ctx(around()), start=START, teachers=others, spec=spec, counts=counts)
    assert torch.equal(found.vector, expected.vector)


def test_partial_last_batch_is_kept() -> None:
    at = toys.ctx(around())
    distill(at, start=START, teachers=TEAM, spec=replace(SPEC, epochs=5, batch=9))
    assert at.notes["distill_steps"] == 10


def slopes(e: float, weight: float = 1.0) -> Params:
    """P(class 0 | x) = 2^(e·x) / (1 + 2^(e·x))."""
    return toys.params(toys.Slopes((e / 2 * math.log(2), -e / 2 * math.log(2))), weight)


class TestSwa:
    """The mean of weights along the way."""

    LONG = DistillSpec(steps=7, batch=4, optimizer="sgd", lr=0.2)

    def taught(self, **changes: Any) -> tuple[Tensor, dict[str, float]]:
        at = toys.ctx(around())
        return distill(at, start=START, teachers=TEAM, spec=replace(self.LONG, **changes)).vector, at.notes

    def test_by_hand(self) -> None:
        """x = 1, teacher ⅔, lr = 6 ln 2. From ½ the step is ln 2, to ⅘; then back by 6·2/15 of ln 2, to ⅕ ln 2."""
        place = toys.context([toys.points((1, 0))], toys.Slopes)
        spec = DistillSpec(steps=2, batch=1, optimizer="sgd", lr=6 * math.log(2), swa_from=1, swa_every=1)
        found = distill(toys.ctx(place), start=slopes(0), teachers={"c0": slopes(1)}, spec=spec)
        assert found.vector.tolist() == pytest.approx([0.6 * math.log(2), -0.6 * math.log(2)], abs=1e-12)

    def test_is_the_mean_of_snapshots(self) -> None:
        """From step 2 on, every second one: 2, 4 and 6 of 7."""
        passed = [self.taught(steps=steps)[0] for steps in (2, 4, 6)]
        found, notes = self.taught(swa_from=2, swa_every=2)
        assert toys.gap(found, sum(passed) / 3) <= 1e-12
        assert notes["swa_snapshots"] == 3
        assert notes["distill_steps"] == 7

    def test_the_start_is_no_snapshot(self) -> None:
        assert toys.gap(self.taught(swa_from=0, swa_every=5)[0], self.taught(steps=5)[0]) <= 1e-12

    def test_without_a_snapshot_the_student_stays(self) -> None:
        found, notes = self.taught(swa_from=8)
        assert torch.equal(found, self.taught()[0])
        assert "swa_snapshots" not in notes

    def test_statistics_are_the_last(self) -> None:
        rows = toys.blobs(8, dtype=torch.float32)
        place = toys.context([rows], toys.normed, classes=3)
        start, teacher = place.initial(toys.ARCH, 1), replace(place.initial(toys.ARCH, 2), weight=1.0)
        plain, averaged = (
            distill(toys.ctx(place), start=start, teachers={"a": teacher}, spec=replace(SPEC, epochs=3, **options))
            for options in ({}, {"swa_from": 1, "swa_every": 1})
        )
        size = start.layout.size
        assert torch.equal(plain.vector[size:], averaged.vector[size:])
        assert torch.equal(plain.counters, averaged.counters)
        assert toys.gap(plain.trainable, averaged.trainable) > 1e-5

    def test_stopping_early_ends_the_mean(self) -> None:
        """Validation judges the student; what is returned is the mean up to where it stopped."""
        place = around(reference=ROWS.x, validation=VAL)
        spec = replace(self.LONG, steps=50, patience=4, eval_every=2, swa_from=1, swa_every=1, lr=3.0)
        at = toys.ctx(place, "server")
        found = distill(at, start=START, teachers=TEAM, spec=spec)
        stopped = int(at.notes["distill_steps"])
        assert 1 < stopped < 50
        assert at.notes["swa_snapshots"] == stopped
        until = replace(spec, steps=stopped, patience=None)
        assert torch.equal(
            distill(toys.ctx(place, "server"), start=START, teachers=TEAM, spec=until).vector, found.vector
        )

    @pytest.mark.parametrize("restore", ["best", "best_or_init"])
    def test_nothing_can_be_restored(self, restore: str) -> None:
        with pytest.raises(ConfigError, match=f"use restore = 'last' with it, not '{restore}'"):
            replace(self.LONG, swa_from=2, restore=restore)


class TestLabelled:
    """Labels of the reference set beside the teacher."""

    def place(self, x: Tensor, y: list[int], maker: Any = toys.net, classes: int = 3) -> RunContext:
        made = toys.context([ROWS if classes == 3 else toys.points((1, 0))], maker, classes=classes, reference=x)
        return replace(made, split=replace(made.split, reference_labels=torch.tensor(y)))

    def test_by_hand(self) -> None:
        """At ½, for x = 1: the teacher's ⅔ gives −⅙, a label 1 gives ½; −⅙ + 0.4·½ = 1/30, and lr = 3."""
        place = self.place(torch.ones(1, 1, dtype=torch.float64), [1], toys.Slopes, 2)
        spec = DistillSpec(steps=1, batch=1, optimizer="sgd", lr=3.0, labelled=0.4)
        found = distill(toys.ctx(place, "server"), start=slopes(0), teachers={"c0": slopes(1)}, spec=spec)
        assert found.vector.tolist() == pytest.approx([-0.1, 0.1], abs=1e-12)

    @pytest.mark.parametrize("temperature", [1.0, 2.0])
    def test_gradient_by_differences(self, temperature: float) -> None:
        """One step is −lr times the slope of T²·KL(teacher_T ‖ student_T) + 0.7 · cross-entropy, labels being sure."""
        y = [0, 2, 1, 1, 0]
        place = self.place(ROWS.x[:5], y)
        spec = DistillSpec(steps=1, batch=5, optimizer="sgd", lr=0.1, labelled=0.7, temperature=temperature, t2=True)
        found = distill(toys.ctx(place, "server"), start=START, teachers=TEAM, spec=spec).vector - START.vector
        target = ensemble(toys.ctx(place, "server"), TEAM, ROWS.x[:5], temperature=temperature).probs

        def loss(vector: Tensor) -> float:
            with torch.no_grad():
                out = replace(START, vector=vector).load_into(toys.net())(ROWS.x[:5])
            student = torch.log_softmax(out / temperature, 1)
            told = (target * (target.log() - student)).sum(1).mean()
            return float(temperature**2 * told - 0.7 * torch.log_softmax(out, 1)[range(5), y].mean())

        for i in range(0, len(START.vector), 3):
            shift = torch.zeros_like(START.vector)
            shift[i] = 1e-5
            slope = (loss(START.vector + shift) - loss(START.vector - shift)) / 2e-5
            assert float(found[i]) == pytest.approx(-0.1 * slope, abs=1e-9)

    def test_zero_does_not_look(self) -> None:
        one, two = (self.place(ROWS.x[:5], y) for y in ([0] * 5, [1, 2, 1, 2, 0]))
        first, second = (distill(toys.ctx(p, "server"), start=START, teachers=TEAM, spec=SPEC) for p in (one, two))
        assert torch.equal(first.vector, second.vector)

    def test_without_labels(self) -> None:
        spec = replace(SPEC, labelled=0.5)
        with pytest.raises(ConfigError, match=r"labelled = 0.5 needs a reference set with labels, .* at server"):
            distill(toys.ctx(around(reference=ROWS.x), "server"), start=START, teachers=TEAM, spec=spec)

    def test_a_clients_own_are_not_used(self) -> None:
        with pytest.raises(ConfigError, match="there are none at c0"):
            distill(toys.ctx(around(), "c0"), start=START, teachers=TEAM, spec=replace(SPEC, labelled=0.5))


class TestLearned:
    SPEC = replace(SPEC, weights="learned")

    @pytest.mark.parametrize("mix", ["probs", "logits"])
    def test_equals_shares_as_sample_counts(self, mix: str) -> None:
        spec = replace(self.SPEC, mix=mix)
        at = toys.ctx(around())
        found = distill(at, start=START, teachers=TEAM, val=VAL, spec=spec)
        shares = learn(said(VAL), VAL.y, mix=mix)
        weighed = {name: replace(m, weight=shares[name]) for name, m in TEAM.items()}
        other = distill(toys.ctx(around()), start=START, teachers=weighed, spec=replace(spec, weights="samples"))
        assert toys.gap(found, other) <= 1e-12
        assert at.notes["largest_share"] == pytest.approx(max(shares.values()))
        assert at.notes["share_entropy"] == pytest.approx(-sum(s * math.log(s) for s in shares.values() if s))
        assert found.weight == 6  # samples still, for the mean that follows

    def test_on_a_share_of_the_leaders_rows(self) -> None:
        at = toys.ctx(around())
        distill(at, start=START, teachers=TEAM, spec=self.SPEC, hold=0.2)
        held = ROWS.take(toys.ctx(around()).rng.permutation(10)[:2])
        expected = learn(said(held), held.y)
        assert at.notes["largest_share"] == pytest.approx(max(expected.values()))

    def test_need_a_validation_set(self) -> None:
        for val in (None, VAL.take([])):
            with pytest.raises(ConfigError, match=r"weights = 'learned' needs a validation set .* data\.validation"):
                distill(toys.ctx(around()), start=START, teachers=TEAM, val=val, spec=self.SPEC)


class TestSpec:
    @pytest.mark.parametrize("mix", ["logits", "losses"])
    def test_sharpens_probabilities_only(self, mix: str) -> None:
        with pytest.raises(ConfigError, match=f"use mix = 'probs' with it, not '{mix}'"):
            DistillSpec(epochs=1, sharpen=0.5, mix=mix)
        assert DistillSpec(epochs=1, sharpen=1.0, mix=mix).mix == mix

    def test_sharpens_the_teacher(self) -> None:
        """As a teacher whose probabilities are squared: slopes(1) to the power 2 is slopes(2)."""
        place = toys.context([toys.points((1, 0), (2, 1))], toys.Slopes)
        spec = DistillSpec(steps=3, batch=2, optimizer="sgd", lr=0.5)
        one = distill(toys.ctx(place), start=slopes(0), teachers={"a": slopes(1)}, spec=replace(spec, sharpen=0.5))
        two = distill(toys.ctx(place), start=slopes(0), teachers={"a": slopes(2)}, spec=spec)
        assert toys.gap(one, two) <= 1e-12


def test_average_like() -> None:
    """Only models of the same architecture; where there is none, what was there before."""
    a, b = slopes(1, weight=3), slopes(-1, weight=1)
    other = Params.of(toys.Slopes((5.0, 5.0)), "other", weight=7.0)
    at = toys.ctx(around())
    found = average_like(at, {"c0": a, "c1": other, "c2": b}, like=slopes(9))
    assert found.vector.tolist() == pytest.approx(slopes(0.5).vector.tolist())
    assert found.weight == 4
    alike = average_like(at, {"c0": a, "c1": other, "c2": b}, like=slopes(9), by="uniform")
    assert alike.vector.tolist() == pytest.approx([0, 0])
    assert average_like(at, {"c1": other}, like=a) is a


def test_a_student_at_the_server_may_have_more_threads() -> None:
    """Only there, only while it is trained, and as before afterwards."""
    seen: list[int] = []

    class Watching(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                seen.append(torch.get_num_threads())
            return super().forward(x)

    rows = toys.blobs(8, dtype=torch.float32)
    made = toys.context([rows], lambda: Watching(3, 3), classes=3, reference=rows.x)
    around, usual = replace(made, server_threads=3), torch.get_num_threads()
    start = around.initial(toys.ARCH, 0)
    for home in ("server", "c0"):
        distill(toys.ctx(around, home), start, {"a": replace(start, weight=1.0)}, DistillSpec(epochs=1, batch=8))
    assert seen == [3, usual]
    assert torch.get_num_threads() == usual


def test_notes_how_good_each_teacher_is_and_whether_the_result_was_kept() -> None:
    """With a learning rate that spoils the student, the start is kept; its teachers are noted one by one."""
    place = around()
    alone = {name: scores_of(toys.ctx(place).flat_module(m), VAL)["accuracy"] for name, m in TEAM.items()}
    for lr, accepted in ((1e4, 0.0), (1e-9, None)):
        ctx = toys.ctx(place)
        spec = replace(SPEC, lr=lr, restore="best_or_init")
        found = distill(ctx, start=START, teachers=TEAM, spec=spec, val=VAL)
        assert {name: ctx.notes[f"teacher:{name}"] for name in TEAM} == alone
        assert (ctx.notes["teacher_worst"], ctx.notes["teacher_best"]) == (min(alone.values()), max(alone.values()))
        same = torch.equal(found.vector, START.vector)
        assert ctx.notes["accepted"] == (not same)
        assert accepted is None or ctx.notes["accepted"] == accepted
    ctx = toys.ctx(place)
    distill(ctx, start=START, teachers=TEAM, spec=SPEC, val=VAL)
    assert "accepted" not in ctx.notes, "without a guard there is nothing to accept"
