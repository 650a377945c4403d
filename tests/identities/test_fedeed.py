"""E1 to E12: FedEED in special cases, and what holds in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import toys
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.feddf import FedDf
from headwater.algorithms.fedeed import FedEed
from headwater.config import Config
from headwater.core.params import Params
from headwater.core.rng import stream
from headwater.core.sampling import deal
from headwater.data.base import Examples
from headwater.errors import ConfigError
from headwater.specs import DistillSpec, LocalSpec
from headwater.tasks.ensemble import ensemble
from headwater.training.experiment import prepare
from headwater.training.loop import train

LOCAL = LocalSpec(steps=5, batch=8, lr=0.3)
SOME = DistillSpec(epochs=3, batch=8, optimizer="sgd", lr=0.2, mix="logits", weights="uniform", temperature=2, t2=True)
CLIENTS = [toys.blobs(n, seed=i) for i, n in enumerate((12, 5, 9, 7, 3))]
SECTORS = (0, 1, 0, 1, 1)
REFERENCE = toys.blobs(20, seed=50).x
AROUND: dict[str, Any] = {"classes": 3, "reference": REFERENCE}


def eed(spec: DistillSpec = SOME, cohorts: int = 2, **options: Any) -> FedEed:
    return FedEed(LOCAL, spec, cohorts, **options)


def play(method: object, rounds: int = 1, clients: Sequence[Examples] = CLIENTS, **around: Any) -> Params:
    return toys.play(method, clients, SECTORS[: len(clients)], toys.net, rounds, **AROUND, **around)


def models(lab: toys.Lab) -> dict[int, Params]:
    return {k: lab.fed.read(model) for k, model in lab.state.models.items()}


def test_e1_one_cohort_and_no_distillation() -> None:
    """E1: FedAvg, straight and through sectors, bit for bit."""
    for through in (False, True):
        found = play(eed(cohorts=1, consolidate="none", through_sectors=through), 3)
        assert toys.gap(found, play(FedAvg(LOCAL, through_sectors=through), 3)) == 0
    assert toys.gap(found, play(eed(cohorts=2, consolidate="none"), 3)) > 1e-3


def test_e2_one_cohort_taught_by_clients() -> None:
    """E2: FedDF without drop-worst and early stopping."""
    spec = replace(SOME, temperature=1.0, t2=False)
    found = play(eed(spec, cohorts=1, ensemble="clients"), 2)
    assert toys.gap(found, play(FedDf(LOCAL, spec, drop_worst=False), 2)) == 0


def test_e3_one_cohort_of_one_round() -> None:
    """E3: the teacher is the student's start, so nothing is learnt; of two rounds it is another one."""
    assert toys.gap(play(eed(cohorts=1)), play(FedAvg(LOCAL))) <= 1e-12
    with toys.lab(eed(cohorts=1), CLIENTS, SECTORS, toys.net, **AROUND) as lab:
        start = models(lab.round())[0]
        target = ensemble(toys.ctx(lab.context, "server"), lab.fed.read(lab.state.teachers), REFERENCE, mix="logits")
        logits = lab.context.flat_module(toys.ARCH, 0).load(start).outputs(REFERENCE).requires_grad_()
        (gradient,) = torch.autograd.grad(target.loss(torch.arange(20), logits, 1.0), logits)
        assert float(gradient.abs().max()) <= 1e-12
    assert toys.gap(play(eed(cohorts=1, kept=2), 2), play(FedAvg(LOCAL), 2)) > 1e-4


@pytest.mark.parametrize(("clients", "cohorts"), [(8, 3), (8, 4), (7, 4), (5, 1), (2, 4), (1, 3)])
def test_e4_everybody_is_in_one_cohort(clients: int, cohorts: int) -> None:
    """E4: sizes differ by one at most, the larger ones first; the next round deals anew."""
    names = [f"c{i}" for i in range(clients)]
    dealt = [deal(names, cohorts, stream(0, "cohorts", number)) for number in range(20)]
    for one in dealt:
        assert sorted(c for team in one.values() for c in team) == names
        sizes = [len(one.get(k, ())) for k in range(cohorts)]
        assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True)
        assert all(list(team) == sorted(team) for team in one.values())
    assert len({str(one) for one in dealt}) > 1 or 1 in (cohorts, clients)
    assert {k for one in dealt for k, team in one.items() if "c0" in team} >= set(range(min(cohorts, clients)))


def test_remainders() -> None:
    """Eight clients and three models: (3, 3, 2), or (4, 2, 2) where the designated model gets what is left."""
    names, rng = [f"c{i}" for i in range(8)], stream(0, "cohorts")
    assert [len(team) for team in deal(names, 3, rng).values()] == [3, 3, 2]
    assert [len(team) for team in deal(names, 3, rng, "main").values()] == [4, 2, 2]


def test_e5_only_the_designated_model_is_distilled() -> None:
    """E5: all others are their averages, bit for bit, over several rounds."""
    with toys.lab(eed(cohorts=3), CLIENTS, SECTORS, toys.net, **AROUND) as lab:
        for number in (1, 2):
            found = models(lab.round(number))
            averages = {k: lab.fed.read(model) for k, model in lab.state.ring[0].items()}
            assert [toys.gap(found[k], averages[k]) == 0 for k in range(3)] == [False, True, True]


def test_e6_the_ring() -> None:
    """E6: min(t, R) rounds of K averages before distillation, the newest first; E10: as many teachers are asked."""
    with toys.lab(eed(cohorts=2, kept=3), CLIENTS, SECTORS, toys.net, **AROUND) as lab:
        seen: list[dict[int, Params]] = []
        for number in range(1, 6):
            lab.round(number)
            rounds = [{k: lab.fed.read(m) for k, m in models.items()} for models in lab.state.ring]
            seen.insert(0, rounds[0])
            assert len(rounds) == min(number, 3)
            for kept, then in zip(rounds, seen, strict=False):
                assert all(toys.gap(kept[k], then[k]) == 0 for k in (0, 1))
            assert len(lab.fed.read(lab.state.teachers)) == 2 * min(number, 3)
            assert toys.gap(rounds[0][0], models(lab)[0]) > 1e-5
        assert len(lab.state.team.members) == 6


@pytest.mark.parametrize("trainer", ["basic", "warm-up", "designated"])
def test_e7_without_steps(trainer: str) -> None:
    """E7: no step, no change."""
    around = {"warmup": 0, "cohorts": 2}
    found = play(eed(replace(SOME, epochs=0), consolidate=trainer, **around), 2)
    assert toys.gap(found, play(eed(consolidate="none", **around), 2)) == 0


def test_e8_warm_up() -> None:
    """E8: the first n rounds are those without distillation, the next is not."""

    def after(rounds: int, trainer: str) -> Params:
        return play(eed(consolidate=trainer, warmup=2), rounds)

    assert toys.gap(after(2, "warm-up"), after(2, "none")) == 0
    assert toys.gap(after(3, "warm-up"), after(3, "none")) > 1e-4
    assert toys.gap(play(eed(consolidate="warm-up", warmup=0)), after(1, "basic")) == 0


def test_e9_rounds_that_overlap() -> None:
    """E9: the same bits and bytes, whether a round waits for the one before or not."""
    options = {"arrays": toys.tiny_data(), "rounds": 3, "algorithm": {"cohorts": 2, "kept": 2}}
    runs = [
        toys.tiny_run("fedeed", engine={"name": "inline", "overlap": overlap}, **options) for overlap in (True, False)
    ]
    assert runs[0].result["model_sha256"] == runs[1].result["model_sha256"]
    assert [row["ensemble_accuracy"] for row in runs[0].history] == [
        row["ensemble_accuracy"] for row in runs[1].history
    ]
    assert runs[0].ledger.summary() == runs[1].ledger.summary()


@pytest.mark.parametrize("through", [False, True])
def test_e9_other_models_do_not_wait_for_the_designated_one(through: bool) -> None:
    """E9: the second round's training of any other model needs neither distillation nor another cohort's average."""
    method = eed(cohorts=2, through_sectors=through)
    with toys.lab(method, CLIENTS, SECTORS, toys.net, **AROUND) as lab:
        first = lab.fed.begin(1, lab.tree.holders)
        after_one = method.round(first, lab.state)
        second = lab.fed.begin(2, lab.tree.holders)
        after_two = method.round(second, after_one)
        lab.done.clear()
        second.read(after_one.models[1])
        trained = {done.node for done in lab.done if done.title == "local_train"}
        assert trained == set(deal(lab.tree.holders, 2, first.rng("cohorts"))[1])
        second.read(after_two.models[1])
        assert "distill" not in {done.title for done in lab.done}
        second.read(after_two.models[0])
        assert [done.round for done in lab.done if done.title == "distill"] == [1, 2]


def test_e11_equal_models() -> None:
    """E11: their ensemble is each of them."""
    model = toys.params(toys.net())
    here = toys.ctx(toys.context(CLIENTS, toys.net, **AROUND), "server")
    found = ensemble(here, {f"0.{k}": model for k in range(4)}, REFERENCE, mix="logits", weights="uniform")
    assert toys.gap(found.probs, torch.softmax(here.flat_module(model).outputs(REFERENCE), 1)) <= 1e-12


def test_e12_basic_with_one_cohort() -> None:
    """E12: is designated; with two cohorts every model is distilled."""
    one = {"cohorts": 1, "kept": 2}
    assert toys.gap(play(eed(consolidate="basic", **one), 2), play(eed(**one), 2)) == 0
    with toys.lab(eed(consolidate="basic"), CLIENTS, SECTORS, toys.net, **AROUND) as lab:
        found, averages = models(lab.round()), {k: lab.fed.read(m) for k, m in lab.state.ring[0].items()}
        assert all(toys.gap(found[k], averages[k]) > 1e-5 for k in (0, 1))


def test_through_sectors() -> None:
    """Averages of averages by samples are the averages; no client's model leaves its sector."""
    straight, relayed = (play(eed(through_sectors=through), 2) for through in (False, True))
    assert toys.gap(straight, relayed) <= 1e-10


def test_a_cohort_without_clients_keeps_its_model() -> None:
    """Two clients and four models."""
    with toys.lab(eed(cohorts=4), CLIENTS[:2], SECTORS[:2], toys.net, **AROUND) as lab:
        before = models(lab)
        after = models(lab.round())
        assert [toys.gap(before[k], after[k]) == 0 for k in range(4)] == [False, False, True, True]
        assert list(lab.state.team.members) == ["0.0", "0.1"]  # what nobody has trained yet does not teach


def test_models_start_apart() -> None:
    """K independent draws, of which the first is the run's own."""
    with toys.lab(eed(cohorts=3), CLIENTS, SECTORS, toys.net, **AROUND) as lab:
        found = models(lab)
        own = lab.context.initial(toys.ARCH, 0)
        assert toys.gap(found[0], own) == 0
        assert all(toys.gap(found[a], found[b]) > 0.1 for a, b in ((0, 1), (0, 2), (1, 2)))


def test_teachers_weighed_by_their_cohorts_labels() -> None:
    """A cohort's label counts are the sum of its clients'; the designated model learns something else than alike."""
    spec = replace(SOME, mix="probs", weights="labels")
    with toys.lab(eed(spec), CLIENTS, SECTORS, toys.net, **AROUND) as lab:
        lab.round()
        cohorts = deal(lab.tree.holders, 2, lab.fed.rng("cohorts"))
        for k, team in cohorts.items():
            rows = toys.join([CLIENTS[int(c[1:])] for c in team])
            assert lab.fed.read(lab.state.counts[0][k]).tolist() == torch.bincount(rows.y, minlength=3).tolist()
        by_labels = lab.vector
    assert toys.gap(by_labels, play(eed(replace(spec, weights="uniform")))) > 1e-5
    relayed = play(eed(spec, through_sectors=True))
    assert toys.gap(by_labels, relayed) <= 1e-10


@pytest.mark.parametrize("weights", ["samples", "labels"])
def test_everybody_lost_before_anything_was_learnt(weights: str) -> None:
    """There is nobody to teach, so the models stay as they are; a run gets over it."""
    options = {"server": {"weights": weights, "mix": "probs"}, "faults": {"dropout": 0.9}}
    for seed in (1, 2):
        for method in ("fedeed", "frame"):
            slots = {"ensemble": "aggregated_temporal", "cohorts": 3}
            run = toys.tiny_run(method, seed=seed, rounds=3, algorithm=slots, **options)
            assert torch.isfinite(run.params[""].vector).all()


@pytest.mark.parametrize("ensemble", ["clients_multi", "aggregated", "aggregated_temporal"])
def test_who_teaches(ensemble: str) -> None:
    with toys.lab(eed(ensemble=ensemble), CLIENTS, SECTORS, toys.net, **AROUND) as lab:
        names = set(lab.fed.read(lab.round(1).round(2).state.teachers))
        assert names == ({f"c{i}" for i in range(5)} if ensemble == "clients_multi" else {"0.0", "0.1"})


def test_sampled_models_teach_too() -> None:
    method = eed(cohorts=1, ensemble="bayesian", samples=3)
    with toys.lab(method, CLIENTS, SECTORS, toys.net, **AROUND) as lab:
        names = list(lab.fed.read(lab.round().state.teachers))
        assert names == ["average 0", "sample 0.0", "sample 0.1", "sample 0.2", *lab.tree.holders]


def test_unlike_architectures() -> None:
    """K models each; one designated student each, taught by all averages; further ones are reported by name."""
    config = toys.tiny("fedeed", algorithm={"cohorts": 2}).config.merged({"model": {"also": ["linear"]}})
    with toys.lab_of(prepare(config, data=toys.tiny_data())) as lab:
        lab.round(1)
        found = models(lab)
        assert [found[k].layout.arch for k in range(4)] == ["mlp", "mlp", "linear", "linear"]
        averages = {k: lab.fed.read(m) for k, m in lab.state.ring[0].items()}
        assert [toys.gap(found[k], averages[k]) > 0 for k in range(4)] == [True, False, True, False]
        assert set(lab.fed.read(lab.state.teachers)) == {"0.0", "0.1", "0.2", "0.3"}
        assert lab.state.also == {"linear": lab.state.models[2]}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ensemble": "clients"}, "goes with one cohort, got 4"),
        ({"ensemble": "aggregated", "cohorts": 1}, "needs several cohorts"),
        ({"ensemble": "aggregated", "kept": 2}, "kept = 2 needs"),
        ({"ensemble": "clients_multi", "through_sectors": True}, "need averages as teachers"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        toys.tiny("fedeed", algorithm=options)


def test_published_settings() -> None:
    """The tables as printed, and FedDF as it stands beside FedEED in them."""
    config = Config.load("fedeed/table4")
    assert (config.rounds, config.partition.clients, config.partition.participation) == (100, 20, 0.4)
    assert [config.local[key] for key in ("epochs", "batch", "optimizer", "lr")] == [40, 64, "sgd", 0.8]
    wanted = {"steps": 5000, "batch": 256, "optimizer": "sgd", "lr": 0.1, "temperature": 4.0, "mix": "logits"}
    for name in ("fedeed/table4", "feddf_as_in_fedeed"):
        server = Config.load(name).server
        assert {key: server[key] for key in wanted} == wanted
        assert (server["weights"], server["patience"], server["restore"]) == ("uniform", None, "last")
    assert (config.algorithm["cohorts"], config.algorithm["kept"]) == (4, 1)
    assert Config.load("feddf_as_in_fedeed").algorithm["drop_worst"] is False
    longer = Config.load("fedeed/table6")
    assert (longer.rounds, longer.local["epochs"], longer.server["steps"]) == (25, 160, 20000)
    framed = Config.load("fedeed/table5").algorithm
    assert [framed[key] for key in ("name", "local", "cohorts", "ensemble", "consolidate")] == [
        "frame",
        "scaffold",
        4,
        "aggregated_temporal",
        "designated",
    ]


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_teachers_are_tested_as_they_teach(weights: str) -> None:
    """Table 1 has clients that count by samples: here 40, 6 and 8, which is another mean of logits than alike."""
    algorithm = {"cohorts": 1, "ensemble": "clients", "consolidate": "none"}
    short = {"rounds": 1, "local": {"epochs": 3}, "server": {"weights": weights}, "algorithm": algorithm}
    made = toys.tiny("fedeed", sizes=([40, 6, 8], [0, 0, 1]), **short)
    with toys.lab_of(made) as lab:
        members = lab.round().fed.read(lab.state.teachers)
        ctx = toys.ctx(lab.context, "server")
    counts = {"c0": 40.0, "c1": 6.0, "c2": 8.0} if weights == "samples" else dict.fromkeys(members, 1.0)
    test = made.split.test
    logits = sum(counts[name] * ctx.flat_module(member).outputs(test.x) for name, member in members.items())
    expected = float((logits.argmax(1) == test.y).double().mean())
    assert train(made).history[0]["ensemble_accuracy"] == pytest.approx(expected, abs=1e-12)
