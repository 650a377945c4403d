"""F6 and F10, and FedDF's further forms, on networks: unequal architectures, one-bit clients, more teachers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import chosen
import toys
from headwater.algorithms.feddf import FedDf
from headwater.algorithms.fedhead import FedHead, FedHeadPlus
from headwater.config import Config, catalog
from headwater.core.federation import SERVER
from headwater.core.params import average_of
from headwater.engines.jobs import Ref
from headwater.errors import ConfigError
from headwater.specs import DistillSpec, LocalSpec
from headwater.tasks.distill import distill
from headwater.tasks.local import local_train
from headwater.tasks.task import TaskContext
from headwater.training.experiment import Experiment, prepare
from headwater.training.loop import Event, train

LOCAL = LocalSpec(epochs=2, batch=4, lr=0.1)
SERVER_SPEC = DistillSpec(epochs=2, batch=8, optimizer="adam", lr=0.01, mix="logits", weights="uniform")
CLIENTS_F = [toys.blobs(n, seed=i, dtype=torch.float32) for i, n in enumerate((12, 5, 9))]
REFERENCE = toys.blobs(20, seed=50, dtype=torch.float32).x
KINDS = {"name": "mlp", "hidden": [4], "also": ["linear"]}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As engines have it: what is computed here without one is compared with theirs, bit for bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_f6_one_prototype_is_the_homogeneous_round() -> None:
    """F6: with one architecture a round is train, average, distil, stage by stage and bit for bit, batch norm too."""
    place = toys.context(CLIENTS_F, toys.normed, classes=3, reference=REFERENCE)
    start = place.initial(toys.ARCH, 0)
    with toys.lab(
        FedDf(LOCAL, SERVER_SPEC, drop_worst=False), CLIENTS_F, (0, 1, 0), toys.normed, classes=3, reference=REFERENCE
    ) as lab:
        order = lab.tree.holders
        found = lab.round().model
        assert lab.state.also == {}
    local = {c: local_train(TaskContext(place, c, (1, "local_train", 0, c)), start, LOCAL) for c in order}
    at = TaskContext(place, "server", (1, "distill", 0, "server"))
    expected = distill(at, average_of(local), local, SERVER_SPEC)
    assert torch.equal(found.vector, expected.vector)
    assert torch.equal(found.counters, expected.counters)


def unlike(method: str = "feddf", **options: Any) -> Experiment:
    """A small experiment: clients c0, c2 and c4 have a perceptron, c1 and c3 softmax regression."""
    base: dict[str, Any] = {
        "rounds": 2,
        "data": {"name": "arrays"},
        "partition": {"clients": 5, "sectors": 2, "scheme": "iid"},
        "engine": {"name": "inline"},
        "model": KINDS,
        "local": {"epochs": 1, "batch": 8},
        "server": {"epochs": 2, "batch": 8},
    }
    for name, section in options.items():
        base[name] = {**base.get(name, {}), **section} if isinstance(section, dict) else section
    base["algorithm"] = {"name": method, **base.get("algorithm", {})}
    stages = catalog.stages(method)
    base = {k: v for k, v in base.items() if k not in catalog.STAGES or k in stages}
    return prepare(Config(**base), data=toys.tiny_data())


class TestUnequal:
    def test_both_are_reported(self) -> None:
        found = train(unlike())
        assert all(0 <= row["linear_accuracy"] <= 1 for row in found.history)
        assert found.result["linear_accuracy"] == found.history[-1]["linear_accuracy"]
        assert found.result["model"] == "mlp"

    def test_bytes_are_of_each_ones_own_model(self) -> None:
        made = unlike()
        sizes = {name: 4 * spec.count() for name, spec in made.models.items()}
        assert len(set(sizes.values())) == 2
        expected = sum(sizes[made.tree.arch(c)] for c in made.tree.holders)
        for row in train(made).history:
            for tier in ("server_sector", "sector_client"):
                assert row["bytes"][tier] == {"up": expected, "down": expected}

    def test_everybody_learns_from_everybody(self) -> None:
        """Other data at a client of one kind changes the model of the other kind."""
        made = [unlike(server={"restore": "last"}) for _ in range(2)]
        made[1].split.train.x[torch.as_tensor(made[1].rows["c1"])] *= -1
        first, second = (train(m).params[""].vector for m in made)
        assert not torch.equal(first, second)

    def test_same_seed_same_result_and_resumes(self, tmp_path: Path) -> None:
        def stop(event: Event) -> None:
            if event.kind == "round":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(unlike(), out=tmp_path, watch=stop)
        resumed, whole = train(unlike(), out=tmp_path), train(unlike())
        assert resumed.result["model_sha256"] == whole.result["model_sha256"]
        assert resumed.result["linear_accuracy"] == whole.result["linear_accuracy"]

    @pytest.mark.parametrize("algorithm", [{}, {"skip_inactive": True}, {"drop_worst": False, "swag": 3}])
    def test_under_losses_and_with_few(self, algorithm: dict[str, Any]) -> None:
        """Rounds without one of the kinds, by participation and by loss, leave sound numbers."""
        for options in ({"partition": {"participation": 0.2}}, {"faults": {"dropout": 0.5}}):
            found = train(unlike(rounds=5, algorithm=algorithm, **options))
            assert len(found.history) == 5
            assert torch.isfinite(found.params[""].vector).all()

    def test_a_kind_nobody_has_this_round_is_left_alone_if_asked(self) -> None:
        with toys.lab_of(unlike(algorithm={"skip_inactive": True})) as lab:
            before = lab.fed.read(lab.state.also["linear"]).vector.clone()
            lab.round(1, ("c0", "c2"))
            assert torch.equal(lab.fed.read(lab.state.also["linear"]).vector, before)
            lab.round(2, ("c1", "c2"))
            assert not torch.equal(lab.fed.read(lab.state.also["linear"]).vector, before)

    def test_other_methods_say_so(self) -> None:
        for method in ("fedavg", "fedhead"):
            with pytest.raises(ConfigError, match=r"model\.also gives clients unequal architectures"):
                unlike(method)


class TestLowBit:
    @pytest.mark.parametrize("way", ["feedback", "straight-through"])
    def test_f10_the_servers_model_has_full_precision(self, way: str) -> None:
        """F10: clients send two values a layer; their mean and the student have many, and go out as they are."""
        spec = replace(LOCAL, low_bit=way)
        method = FedDf(spec, SERVER_SPEC, drop_worst=False)
        with toys.lab(method, CLIENTS_F, (0, 1, 0), toys.normed, classes=3, reference=REFERENCE) as lab:
            seen = []
            up = lab.fed.session.engine.move

            def watch(ref: Any, home: str, name: str, tiers: tuple[str, ...] = ()) -> None:
                up(ref, home, name, tiers)
                seen.append((home, name))

            lab.engine.move = watch  # type: ignore[method-assign]
            fed = lab.fed = lab.fed.begin(1, lab.tree.holders)
            state = method.round(fed, lab.state)
            sent = [lab.engine.read(Ref(name, "server")) for home, name in seen if home == SERVER.value]
            fused = fed.read(state.model).named()
        assert len(sent) == 3
        for model in sent:
            assert len(model.unpacked().named()["features.0.weight"].unique()) == 2
        assert len(fused["features.0.weight"].unique()) > 6

    def test_changes_what_is_learnt(self) -> None:
        hashes = {
            toys.tiny_run("feddf", local={"low_bit": way}).result["model_sha256"]
            for way in ("none", "feedback", "straight-through")
        }
        assert len(hashes) == 3

    def test_goes_with_any_method(self) -> None:
        """It is a matter of local training: FedAvg's clients may have it too (the comparison in FedDF's table 4)."""
        found = toys.tiny_run("fedavg", local={"low_bit": "feedback"})
        assert found.result["model_sha256"] != toys.tiny_run("fedavg").result["model_sha256"]


class TestTeachers:
    def test_swag_asks_more(self) -> None:
        """Three clients and four draws: seven forward passes over the reference set, in one batch each."""
        method = FedDf(LOCAL, replace(SERVER_SPEC, batch=99), drop_worst=False, swag=4)
        with toys.lab(method, CLIENTS_F, (0, 1, 0), toys.normed, classes=3, reference=REFERENCE) as lab:
            asked = []
            module = lab.context.flat_module(toys.ARCH, 0).module
            module.register_forward_hook(lambda m, i, o: asked.append(m.training))
            lab.round()
        assert asked.count(False) == 7

    def test_swag_has_no_label_counts(self) -> None:
        with pytest.raises(ConfigError, match=r"swag = 2 adds teachers .* use another server\.weights than 'labels'"):
            FedDf(LOCAL, replace(SERVER_SPEC, mix="probs", weights="labels"), swag=2)

    @pytest.mark.parametrize("weights", ["samples", "uniform", "labels", "confidence", "learned"])
    @pytest.mark.parametrize("method", chosen.first(["feddf", "fedhead", "fedhead+"], ["fedhead+"]))
    def test_weights_wherever_there_is_a_teacher(self, method: str, weights: str) -> None:
        options = {"weights": weights, "mix": "probs"}
        found = toys.tiny_run(method, sector=options, server=options)
        assert all(0 <= row["teacher_accuracy"] <= 1 for row in found.history)
        places = found.history[-1]["distill"].values()
        assert all(("largest_share" in notes) == (weights == "learned") for notes in places)

    def test_label_counts_may_be_lost(self) -> None:
        options = {"weights": "labels", "mix": "probs"}
        for method in ("feddf", "fedhead+"):
            for seed in range(3):
                found = toys.tiny_run(method, seed=seed, rounds=4, faults={"dropout": 0.4}, server=options)
                assert torch.isfinite(found.params[""].vector).all()

    def test_leaders_distil_without_labels(self) -> None:
        spec = replace(SERVER_SPEC, labelled=0.5)
        for method in (FedHead, FedHeadPlus):
            with pytest.raises(ConfigError, match=r"sector\.labelled = 0\.5: leaders distil without labels"):
                method(LOCAL, spec)

    def test_labels_of_the_reference_set(self) -> None:
        """Held-out rows have labels, which help or hinder if asked for; noise has none, and that is said."""
        plain, told = (
            toys.tiny_run("feddf", server={"labelled": w, "restore": "last"}).result["model_sha256"] for w in (0.0, 1.0)
        )
        assert plain != told
        with pytest.raises(ConfigError, match=r"server\.labelled needs a reference set with labels"):
            toys.tiny_run("feddf", data={"reference": "noise"}, server={"labelled": 1.0})
