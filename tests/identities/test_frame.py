"""The frame with a method's slots filled in gives that method's numbers, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import chosen
import toys
from headwater.algorithms.fed_ensemble import FedEnsemble
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.fedbe import FedBe
from headwater.algorithms.feddf import FedDf
from headwater.algorithms.feddyn import FedDyn
from headwater.algorithms.fedeed import FedEed
from headwater.algorithms.fedhead import FedHead, FedHeadPlus
from headwater.algorithms.fedhkd import FedHkd, FedHkdStar
from headwater.algorithms.fedprox import FedProx
from headwater.algorithms.frame import Frame
from headwater.algorithms.hfedavg import HFedAvg
from headwater.algorithms.hfeddyn import HFedDyn
from headwater.algorithms.hfedprox import HFedProx
from headwater.algorithms.hscaffold import HScaffold
from headwater.algorithms.moon import Moon
from headwater.algorithms.mtgc import Mtgc
from headwater.algorithms.scaffold import Scaffold
from headwater.core.federation import SERVER
from headwater.core.params import Params
from headwater.core.sampling import deal
from headwater.errors import ConfigError
from headwater.models.base import Net
from headwater.specs import DistillSpec, LocalSpec
from headwater.training.experiment import prepare

LOCAL = LocalSpec(epochs=2, batch=4, lr=0.2)
TAUGHT = DistillSpec(epochs=2, batch=8, optimizer="sgd", lr=0.2, mix="logits", weights="uniform")
BY_LABELS = replace(TAUGHT, mix="probs", weights="labels")
BY_SAMPLES = replace(TAUGHT, mix="probs", weights="samples")
JUDGED = replace(BY_LABELS, restore="best_or_init")
KNOWN = {"lam": 0.3, "temperature": 0.7, "nu": 0.1, "sigma": 0.5, "zeta": 2.0}
HKD = {f"hkd_{key}": value for key, value in KNOWN.items()} | {"hkd_gamma": 0.4}
CLIENTS = [toys.blobs(n, seed=i) for i, n in enumerate((12, 5, 9, 7, 3))]
SECTORS = (0, 1, 0, 1, 1)
AROUND: dict[str, Any] = {"classes": 3, "reference": toys.blobs(20, seed=50).x, "validation": toys.blobs(15, seed=51)}


def net() -> nn.Module:
    """In two parts, without batch norm."""
    return Net(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 3)).double()


def frame(local: str, ensemble: str, consolidate: str, **options: Any) -> Frame:
    given = {"training": LOCAL, "sector": TAUGHT, "server": TAUGHT} | options
    return Frame(local=local, ensemble=ensemble, consolidate=consolidate, **given)


def play(method: Any, rounds: int = 3, half: bool = False, maker: Any = net) -> tuple[dict[Any, Params], Any]:
    """All models of the state after some rounds, and the ledger."""
    with toys.lab(method, CLIENTS, SECTORS, maker, **AROUND) as lab:
        for number in range(1, rounds + 1):
            lab.round(number, lab.tree.holders[number % 2 :: 2] if half else None)
        several = getattr(lab.state, "models", None) or getattr(lab.state, "members", None) or {0: lab.state.model}
        return {k: lab.fed.read(model) for k, model in several.items()}, lab.ledger.summary()


METHODS: dict[str, tuple[Any, Any]] = {
    "fedavg": (FedAvg(LOCAL), frame("fedavg", "none", "none")),
    "fedavg, alike": (FedAvg(LOCAL, by="uniform"), frame("fedavg", "none", "none", by="uniform")),
    "feddf": (FedDf(LOCAL, TAUGHT, drop_worst=False), frame("fedavg", "clients", "designated")),
    "feddf by labels": (
        FedDf(LOCAL, BY_LABELS, drop_worst=False),
        frame("fedavg", "clients", "basic", server=BY_LABELS),
    ),
    "feddf, alike": (
        FedDf(LOCAL, TAUGHT, by="uniform", drop_worst=False),
        frame("fedavg", "clients", "designated", by="uniform"),
    ),
    "feddf, clients pulled": (
        FedDf(LOCAL, TAUGHT, drop_worst=False, mu=0.3),
        frame("fedprox", "clients", "designated", prox_mu=0.3),
    ),
    "feddf as in FedHEAD": (
        FedDf(LOCAL, BY_SAMPLES, drop_worst=False),
        frame("fedavg", "clients", "designated", server=BY_SAMPLES),
    ),
    "fedbe": (FedBe(LOCAL, TAUGHT, samples=3), frame("fedavg", "bayesian", "designated", samples=3)),
    "fedbe as coded": (
        FedBe(LOCAL, TAUGHT, "gaussian-as-coded"),
        frame("fedavg", "bayesian", "designated", sampler="gaussian-as-coded"),
    ),
    "fedbe, mixtures": (
        FedBe(LOCAL, TAUGHT, "dirichlet", 4),
        frame("fedavg", "bayesian", "designated", sampler="dirichlet", samples=4),
    ),
    "fedeed": (
        FedEed(LOCAL, TAUGHT, 2, 2),
        frame("fedavg", "aggregated_temporal", "designated", cohorts=2, kept=2),
    ),
    "fedeed, K = 3, R = 1": (
        FedEed(LOCAL, TAUGHT, 3),
        frame("fedavg", "aggregated_temporal", "designated", cohorts=3),
    ),
    "fedeed, K = 1, R = 3": (
        FedEed(LOCAL, TAUGHT, 1, 3),
        frame("fedavg", "aggregated_temporal", "designated", kept=3),
    ),
    "fedeed, all taught": (
        FedEed(LOCAL, TAUGHT, 2, ensemble="aggregated", consolidate="basic"),
        frame("fedavg", "aggregated", "basic", cohorts=2),
    ),
    "fedeed, nobody taught": (
        FedEed(LOCAL, TAUGHT, 2, 2, consolidate="none"),
        frame("fedavg", "aggregated_temporal", "none", cohorts=2, kept=2),
    ),
    "fedeed through sectors": (
        FedEed(LOCAL, TAUGHT, 2, 2, through_sectors=True),
        frame("fedavg", "aggregated_temporal", "designated", cohorts=2, kept=2, through_sectors=True),
    ),
    "fedeed of clients is feddf": (
        FedDf(LOCAL, TAUGHT, drop_worst=False),
        FedEed(LOCAL, TAUGHT, 1, ensemble="clients"),
    ),
    "fedeed of samples is fedbe": (
        FedBe(LOCAL, TAUGHT, samples=3),
        FedEed(LOCAL, TAUGHT, 1, ensemble="bayesian", samples=3),
    ),
    "scaffold through sectors": (
        Scaffold(LOCAL, through_sectors=True),
        frame("scaffold", "none", "none", through_sectors=True),
    ),
    "fedeed by labels": (
        FedEed(LOCAL, BY_LABELS, 2, 2),
        frame("fedavg", "aggregated_temporal", "designated", cohorts=2, kept=2, server=BY_LABELS),
    ),
    "fedeed, basic": (
        FedEed(LOCAL, TAUGHT, 3, ensemble="clients_multi", consolidate="warm-up", warmup=1, remainder="main"),
        frame("fedavg", "clients_multi", "warm-up", warmup=1, cohorts=3, remainder="main"),
    ),
    "fed-ensemble": (
        FedEnsemble(LOCAL, 3),
        frame("fedavg", "aggregated", "none", cohorts=3, schedule="blocks"),
    ),
    "fedhead": (FedHead(LOCAL, TAUGHT), frame("fedavg", "sector", "leaders")),
    "fedhead, judged by leaders": (
        FedHead(LOCAL, JUDGED, "rotating", "leader"),
        frame("fedavg", "sector", "leaders", leader="rotating", val_source="leader", sector=JUDGED),
    ),
    "fedhead+": (FedHeadPlus(LOCAL, TAUGHT, TAUGHT), frame("fedavg", "sector", "leaders+server")),
    "fedprox": (FedProx(LOCAL, 0.3), frame("fedprox", "none", "none", prox_mu=0.3)),
    "scaffold": (Scaffold(LOCAL), frame("scaffold", "none", "none")),
    "scaffold by samples": (Scaffold(LOCAL, by="samples"), frame("scaffold", "none", "none", by="samples")),
    "feddyn": (FedDyn(LOCAL, 0.1), frame("feddyn", "none", "none", dyn_alpha=0.1)),
    "moon": (Moon(LOCAL, 2.0, 0.3), frame("moon", "none", "none", moon_mu=2.0, moon_tau=0.3)),
    "fedhead+ by labels": (
        FedHeadPlus(LOCAL, BY_LABELS, BY_LABELS),
        frame("fedavg", "sector", "leaders+server", sector=BY_LABELS, server=BY_LABELS),
    ),
    "hfedavg": (HFedAvg(LOCAL, 2), frame("hfedavg", "none", "none", sector_rounds=2)),
    "hfedavg, alike": (
        HFedAvg(LOCAL, 3, "uniform"),
        frame("hfedavg", "none", "none", sector_rounds=3, by="uniform"),
    ),
    "hfedprox": (HFedProx(LOCAL, 2, 0.3), frame("hfedprox", "none", "none", sector_rounds=2, prox_mu=0.3)),
    "hscaffold": (HScaffold(LOCAL, 2), frame("hscaffold", "none", "none", sector_rounds=2)),
    "hscaffold by samples": (
        HScaffold(LOCAL, 1, by="samples"),
        frame("hscaffold", "none", "none", by="samples"),
    ),
    "hfeddyn": (HFedDyn(LOCAL, 2, 0.1), frame("hfeddyn", "none", "none", sector_rounds=2, dyn_alpha=0.1)),
    "mtgc": (Mtgc(LOCAL, 2), frame("mtgc", "none", "none", sector_rounds=2)),
    "mtgc by samples": (
        Mtgc(LOCAL, 3, by="samples"),
        frame("mtgc", "none", "none", sector_rounds=3, by="samples"),
    ),
    "fedhkd": (FedHkd(LOCAL, **KNOWN, gamma=0.4), frame("fedavg", "none", "none", terms=("knowledge",), **HKD)),
    "fedhkd-star": (
        FedHkdStar(LOCAL, **KNOWN),
        frame("fedavg", "none", "none", terms=("knowledge",), **(HKD | {"hkd_gamma": 0.0})),
    ),
    "fedhkd through sectors": (
        FedHkd(LOCAL, **KNOWN, gamma=0.4, through_sectors=True),
        frame("fedavg", "none", "none", terms=("knowledge",), through_sectors=True, **HKD),
    ),
    "fedprox as a term": (FedProx(LOCAL, 0.3), frame("fedavg", "none", "none", terms=("proximal",), prox_mu=0.3)),
    "moon as a term": (
        Moon(LOCAL, 2.0, 0.3),
        frame("fedavg", "none", "none", terms=("contrast",), moon_mu=2.0, moon_tau=0.3),
    ),
}


# One of each trainer, of each ensemble and of each way to consolidate.
QUICK = (
    "fedavg",
    "feddf",
    "fedbe",
    "fedeed",
    "fedeed by labels",
    "fed-ensemble",
    "fedhead, judged by leaders",
    "fedhead+",
)
QUICK += ("scaffold through sectors", "feddyn", "moon", "hfedprox", "mtgc", "fedhkd", "fedprox as a term")


@pytest.mark.parametrize(
    "half", [pytest.param(False, marks=pytest.mark.thorough), True], ids=["everybody", "half of them"]
)
@pytest.mark.parametrize("name", chosen.first(METHODS, QUICK))
def test_framed_is_written_out(name: str, half: bool) -> None:
    written, framed = METHODS[name]
    (found, sent), (expected, wanted) = play(framed, half=half), play(written, half=half)
    assert found.keys() == expected.keys()
    assert {k: toys.gap(found[k], expected[k]) for k in found} == dict.fromkeys(found, 0.0)
    assert sent == wanted


@pytest.mark.parametrize("name", ["fedprox", "scaffold", "scaffold by samples", "feddyn", "moon"])
def test_a_trainer_for_several_models(name: str) -> None:
    """Each model is what the method makes of it when only the model's own cohort takes part in each round."""
    written, framed = METHODS[name]
    several = replace(framed, ensemble="aggregated", cohorts=2)
    with toys.lab(several, CLIENTS, SECTORS, net, **AROUND) as lab:
        dealt = []
        for number in range(1, 5):
            lab.round(number)
            dealt.append(deal(lab.tree.holders, 2, lab.fed.rng("cohorts"))[0])
        found = lab.vector
    with toys.lab(written, CLIENTS, SECTORS, net, **AROUND) as lab:
        for number, cohort in enumerate(dealt, 1):
            lab.round(number, cohort)
        assert toys.gap(found, lab.vector) == 0


def test_variates_of_each_model_or_of_all() -> None:
    """A client's variate belongs to the model that it trains, or to the client; with one model that is the same."""
    options = {"cohorts": 2}
    apart, shared = (
        play(frame("scaffold", "aggregated", "none", shared_variates=s, **options))[0] for s in (False, True)
    )
    assert toys.gap(apart[0], shared[0]) > 1e-5
    one = [play(frame("scaffold", "none", "none", shared_variates=s))[0][0] for s in (False, True)]
    assert toys.gap(*one) == 0


def test_shared_variates_have_one_mean() -> None:
    """With one variate a client for all models, every model is corrected by the mean of all of them."""
    method = frame("scaffold", "aggregated", "none", cohorts=2, shared_variates=True)
    with toys.lab(method, CLIENTS, SECTORS, net, **AROUND) as lab:
        for number in range(1, 5):
            lab.round(number, lab.tree.holders[number % 2 :: 2])
        fed = lab.fed.whole.with_purpose("export")
        own = lab.state.memory["own"][0]
        sent = fed.read(fed.among(own.nodes).up(own, to=SERVER))
        mean = torch.stack([model.trainable for model in sent.values()]).sum(0) / len(CLIENTS)
        for k in (0, 1):
            assert toys.gap(mean, fed.read(lab.state.memory["common"][k]).trainable) <= 1e-12
        assert float(mean.abs().max()) > 1e-3


def test_weights_by_samples_need_clients_that_tell_them() -> None:
    with pytest.raises(ConfigError, match=r"server\.weights = 'samples' with clients that count alike"):
        toys.tiny("frame", algorithm={"by": "uniform"}, server={"weights": "samples"})
    assert toys.tiny("frame", algorithm={"local": "scaffold"}).config.server["weights"] == "uniform"


def test_variates_sum_to_the_servers() -> None:
    """B3 for each of several models: c_k is the mean of its clients' variates over everybody, whoever took part."""
    with toys.lab(frame("scaffold", "aggregated", "none", cohorts=2), CLIENTS, SECTORS, net, **AROUND) as lab:
        for number in range(1, 5):
            lab.round(number, lab.tree.holders[number % 2 :: 2])
        fed = lab.fed.whole.with_purpose("export")
        for k in (0, 1):
            own = lab.state.memory["own"][k]
            sent = fed.read(fed.among(own.nodes).up(own, to=SERVER))
            mean = torch.stack([model.trainable for model in sent.values()]).sum(0) / len(CLIENTS)
            assert toys.gap(mean, fed.read(lab.state.memory["common"][k]).trainable) <= 1e-12
            assert float(mean.abs().max()) > 1e-3


@pytest.mark.parametrize(
    "local", chosen.first(["fedavg", "fedprox", "scaffold", "feddyn", "moon"], ["scaffold", "moon"])
)
@pytest.mark.parametrize(
    ("ensemble", "consolidate", "cohorts"),
    [
        ("clients_multi", "basic", 2),
        ("aggregated_temporal", "designated", 3),
        ("sector", "leaders+server", 1),
        ("bayesian", "designated", 1),
    ],
)
def test_any_trainer_goes_with_any_teacher(local: str, ensemble: str, consolidate: str, cohorts: int) -> None:
    """A whole run through the configuration, with clients that get lost."""
    options = {"local": local, "ensemble": ensemble, "consolidate": consolidate, "cohorts": cohorts, "samples": 2}
    run = toys.tiny_run("frame", algorithm=options, local={"optimizer": "sgd"}, faults={"dropout": 0.2})
    assert len(run.history) == 2
    assert torch.isfinite(run.params[""].vector).all()


def test_unlike_architectures() -> None:
    """As FedEED: K models each, and the same numbers."""
    spec = {"optimizer": "sgd", "lr": 0.1, "patience": None, "restore": "last", "mix": "logits", "weights": "uniform"}
    changes = {"model": {"also": ["linear"]}, "server": spec | {"temperature": 2.0, "t2": True}}
    found = []
    for method, options in (("fedeed", {}), ("frame", {"ensemble": "aggregated_temporal"})):
        config = toys.tiny(method, algorithm={"cohorts": 2, **options}).config.merged(changes)
        with toys.lab_of(prepare(config, data=toys.tiny_data())) as lab:
            lab.round(1).round(2)
            found.append({k: lab.fed.read(model) for k, model in lab.state.models.items()})
    assert [toys.gap(found[0][k], found[1][k]) for k in range(4)] == [0.0] * 4
    assert {model.layout.arch for model in found[1].values()} == {"mlp", "linear"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ensemble": "sector"}, "sectors teach their leaders and nobody else"),
        ({"consolidate": "leaders"}, "sectors teach their leaders and nobody else"),
        ({"ensemble": "sector", "consolidate": "leaders", "cohorts": 2}, "has one model, got cohorts = 2"),
        ({"ensemble": "none"}, "consolidate = 'designated' needs teachers"),
        ({"cohorts": 2}, "'clients' goes with one cohort, got 2"),
        ({"ensemble": "clients_multi"}, "needs several cohorts"),
        ({"ensemble": "aggregated"}, "has one member, the student itself"),
        ({"ensemble": "aggregated_temporal"}, "has one member, the student itself"),
        ({"kept": 2}, "kept = 2 has no effect"),
        ({"through_sectors": True}, "needs averages as teachers, not ensemble = 'clients'"),
        ({"local": "feddyn", "by": "samples"}, "counts clients alike"),
        ({"local": "mtgc", "ensemble": "clients"}, "inside their sectors, got ensemble = 'clients'"),
        ({"local": "mtgc", "ensemble": "aggregated", "cohorts": 2}, "keeps one model"),
        ({"sector_rounds": 2}, "needs a trainer of the tree"),
        ({"local": "fedprox", "terms": ["proximal"]}, "has a term twice"),
        ({"local": "scaffold", "corrections": "shift"}, "moves the student by FedDyn's"),
        ({"local": "feddyn", "corrections": "renew"}, "takes variates anew"),
        ({"ensemble": "none", "consolidate": "none", "step": 0.5}, "step = 0.5 has no effect"),
        ({"step": 0.0}, "algorithm.step"),
        ({"local": "fedavgm"}, "algorithm.local must be one of 'fedavg'"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        toys.tiny("frame", algorithm=options)


def test_an_optimiser_that_breaks_variates_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"does not hold with local\.optimizer = 'adam'"):
        toys.tiny("frame", algorithm={"local": "scaffold"}, local={"optimizer": "adam"})


def test_the_section_local_is_the_training() -> None:
    """`algorithm.local` is the slot, `[local]` fills the field `training`, and a written configuration gives both."""
    made = toys.tiny("frame", algorithm={"local": "fedprox"}, local={"epochs": 3, "lr": 0.05})
    assert (made.method.local, made.method.training.epochs, made.method.training.lr) == ("fedprox", 3, 0.05)
    again = type(made.config).from_toml(made.config.to_toml())
    assert (again.algorithm["local"], again.local["epochs"]) == ("fedprox", 3)
    assert "training" not in again.algorithm


@pytest.mark.parametrize("local", ["scaffold", "feddyn", "moon", "fedprox"])
def test_a_trainer_brings_what_suits_it(local: str) -> None:
    """Nothing was said of the optimiser, so nothing is refused: it is what the method of that name has by itself."""
    made = toys.tiny("frame", algorithm={"local": local, "ensemble": "none", "consolidate": "none"})
    assert made.config.local == toys.tiny(local).config.local
    assert made.config.model == toys.tiny(local).config.model
    slow = toys.tiny("frame", algorithm={"local": local, "ensemble": "none", "consolidate": "none"}, local={"lr": 0.01})
    assert slow.config.local["lr"] == 0.01
