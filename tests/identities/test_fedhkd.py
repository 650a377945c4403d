"""K1, K2, K11: what FedHKD becomes in special cases; what it says of privacy and of knowledge that nobody shared."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import toys
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.fedhkd import FedHkd, FedHkdStar
from headwater.core.params import Params
from headwater.core.tree import SERVER
from headwater.errors import ConfigError
from headwater.models.base import Net
from headwater.specs import LocalSpec
from headwater.sweep.cell_worker import facts_of
from headwater.theory.privacy import spent
from headwater.training.remarks import cautions, releases

LOCAL = LocalSpec(epochs=2, batch=4, lr=0.3)
ROWS = [toys.blobs(n, seed=i) for i, n in enumerate((12, 5, 9, 1, 7))]
MAP = (0, 1, 0, 1, 1)
STRONG = {"lam": 1.0, "nu": 0.2}


def two_parts() -> nn.Module:
    return Net(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 3)).double()


def play(method: object, rounds: int = 1) -> Params:
    return toys.play(method, ROWS, MAP, two_parts, rounds, classes=3)


def knowledge_of(lab: toys.Lab) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    found: dict[int, tuple[torch.Tensor, torch.Tensor]] = lab.fed.read(lab.state.knowledge)
    return found


def test_k1_without_guidance_it_is_fedavg() -> None:
    """K1: λ = γ = 0, whatever the noise."""
    assert toys.gap(play(FedHkd(LOCAL, lam=0.0, gamma=0.0), 3), play(FedAvg(LOCAL), 3)) <= 1e-10
    assert toys.gap(play(FedHkd(LOCAL, gamma=1.0, **STRONG), 3), play(FedAvg(LOCAL), 3)) > 1e-3


def test_k1_without_pulling_representations_it_is_the_star() -> None:
    """K1: γ = 0 is FedHKD*, and neither is FedAvg."""
    star = play(FedHkdStar(LOCAL, **STRONG), 3)
    assert torch.equal(star.vector, play(FedHkd(LOCAL, gamma=0.0, **STRONG), 3).vector)
    assert toys.gap(star, play(FedAvg(LOCAL), 3)) > 1e-4
    assert toys.gap(star, play(FedHkd(LOCAL, gamma=0.5, **STRONG), 3)) > 1e-4


@pytest.mark.parametrize("norms", ["paper", "code", "fedhead"])
def test_k2_first_round_is_fedavgs(norms: Any) -> None:
    """K2: there is no knowledge yet, so λ and γ play no part; in the second round they do."""
    method = FedHkd(LOCAL, gamma=2.0, norms=norms, **STRONG)
    assert toys.gap(play(method), play(FedAvg(LOCAL))) <= 1e-10
    assert toys.gap(play(method, 2), play(FedAvg(LOCAL), 2)) > 1e-3


def test_knowledge_that_nobody_shares_leaves_fedavg() -> None:
    """A threshold that no class reaches: the terms never act."""
    method = FedHkd(LOCAL, lam=1.0, gamma=1.0, nu=1.0)
    mixed = [toys.blobs(n, seed=i) for i, n in enumerate((12, 5, 9))]
    with toys.lab(method, mixed, (0, 0, 1), two_parts, classes=3) as lab:
        found = lab.round(1).round(2).vector
        assert knowledge_of(lab) == {}
    assert toys.gap(found, toys.play(FedAvg(LOCAL), mixed, (0, 0, 1), two_parts, 2, classes=3)) <= 1e-10


def test_by_way_of_sectors() -> None:
    """The same to 1e-10, model and knowledge, with a little noise and under both ways of pooling."""
    for pooling in ("mean", "last"):
        method = FedHkd(LOCAL, gamma=0.5, sigma=1.0, pooling=pooling, **STRONG)
        models, known = [], []
        for through in (False, True):
            with toys.lab(replace(method, through_sectors=through), ROWS, MAP, two_parts, classes=3) as lab:
                for number in (1, 2, 3):
                    lab.round(number)
                models.append(lab.vector)
                known.append(knowledge_of(lab))
        assert toys.gap(*models) <= 1e-10
        assert known[0].keys() == known[1].keys()
        assert all(toys.gap(a, b) <= 1e-10 for j in known[0] for a, b in zip(known[0][j], known[1][j], strict=True))


def test_as_in_fedhead_predictions_are_shared_as_they_are() -> None:
    """Softened or sharpened on the student's side alone: what is shared is the mean of plain probabilities."""
    shared = {}
    for name, method in {
        "fedhead": FedHkd(LOCAL, sigma=0.0, nu=0.0, temperature=0.5, norms="fedhead"),
        "plain": FedHkd(LOCAL, sigma=0.0, nu=0.0, temperature=1.0, norms="code"),
        "sharp": FedHkd(LOCAL, sigma=0.0, nu=0.0, temperature=0.5, norms="code"),
    }.items():
        with toys.lab(method, ROWS, MAP, two_parts, classes=3) as lab:
            shared[name] = torch.stack([soft for _, soft in knowledge_of(lab.round(1)).values()])
    assert torch.equal(shared["fedhead"], shared["plain"])
    assert toys.gap(shared["fedhead"], shared["sharp"]) > 1e-3


def test_uniform_weights() -> None:
    plain, alike = (play(FedHkd(LOCAL, by=by)) for by in ("samples", "uniform"))
    assert toys.gap(alike, play(FedAvg(LOCAL, by="uniform"))) <= 1e-10
    assert toys.gap(plain, alike) > 1e-4


def test_k11_one_client_without_guidance_has_the_global_model() -> None:
    """K11: the local model is the one before averaging; the mean of one is itself."""
    with toys.lab(FedHkd(LOCAL, lam=0.0, gamma=0.0), ROWS[:1], (0,), two_parts, classes=3) as lab:
        lab.round(1)
        assert torch.equal(lab.personal()["c0"].vector, lab.vector)


def test_k11_local_models_are_those_before_averaging() -> None:
    """K11: their mean by samples is the global model, and they differ from it. Who sits out keeps its last one."""
    with toys.lab(FedHkd(LOCAL), ROWS, MAP, two_parts, classes=3) as lab:
        lab.round(1)
        first = lab.personal()
        mean = sum(len(ROWS[i]) * first[f"c{i}"].vector for i in range(5)) / sum(map(len, ROWS))
        assert toys.gap(mean, lab.vector) <= 1e-12
        assert all(toys.gap(model, lab.vector) > 1e-4 for model in first.values())
        second = lab.round(2, ("c0", "c1")).personal()
    assert torch.equal(second["c4"].vector, first["c4"].vector)
    assert not torch.equal(second["c0"].vector, first["c0"].vector)


def test_k11_local_accuracy_is_that_of_these_models() -> None:
    """In a whole run, on the clients' own test rows."""
    experiment = toys.tiny("fedhkd", rounds=1, partition={"local_test": 0.5})
    found = toys.tiny_run("fedhkd", rounds=1, partition={"local_test": 0.5})
    with toys.lab_of(experiment) as lab:
        models = lab.round(1).personal()
        right = []
        for client, model in models.items():
            rows = experiment.split.train.take(experiment.test_rows[client])
            module = model.load_into(experiment.model.build()).eval()
            right.append(float((module(rows.x).argmax(1) == rows.y).double().mean()))
    assert found.result["local_accuracy"] == pytest.approx(sum(right) / len(right), abs=1e-9)


# -- what it says


def test_privacy_is_the_accountants() -> None:
    found = FedHkd(dp_sensitivity="l2").privacy(50, dimension=64, delta=1e-3)
    expected = spent(7.0, 50, 1e-3, 64, "l2")
    assert (found["epsilon"], found["delta"], found["releases"]) == (expected.epsilon, 1e-3, 50)
    assert found["covers"] == "representations only"
    assert found["sentence"] == expected.sentence()
    assert FedHkd().privacy(50, 64)["epsilon"] > FedHkd(dp_sensitivity="l2").privacy(50, 64)["epsilon"]


def test_noise_that_is_not_scaled_buys_nothing() -> None:
    """Neither none nor one draw of fixed size for all classes: no figure, and the sentence says so."""
    for method in (FedHkd(sigma=0.0), FedHkd(sigma=2.0, noise="fixed")):
        found = method.privacy(5, 8)
        assert found["epsilon"] is None
        assert "no finite ε" in found["sentence"].lower()
        assert ("one draw for all classes" in found["sentence"]) == (method.noise == "fixed")


def test_privacy_counts_rounds_in_which_a_client_shared_a_class() -> None:
    half = {"partition": {"participation": 0.5}, "rounds": 5}
    run = toys.tiny_run("fedhkd", algorithm={"nu": 0.4}, **half)
    often: dict[str, int] = {}
    for row in run.history:
        for client in (client for client, classes in row["released"].items() if classes):
            often[client] = often.get(client, 0) + 1
    found = run.result["privacy"]
    assert found["releases_by_client"] == often
    assert found["releases"] == max(often.values()) < 5
    assert found["epsilon"] == spent(7.0, found["releases"], 0.01, found["dimension"]).epsilon
    assert f"{len(often)} of " in found["sentence"]


@pytest.mark.parametrize("noise", ["scaled", "fixed"])
def test_what_nobody_shared_costs_nothing(noise: str) -> None:
    found = toys.tiny_run("fedhkd", algorithm={"nu": 1.0, "noise": noise}).result["privacy"]
    assert (found["epsilon"], found["delta"], found["releases"], found["releases_by_client"]) == (0.0, 0.0, 0, {})
    assert "nothing was released" in found["sentence"]
    assert "no finite ε" in found["sentence"]  # of the model


def test_releases_of_rows_that_do_not_say_count_for_everyone() -> None:
    rows: list[dict[str, Any]] = [{}, {"released": {"c0": 2, "c1": 0}}, {}, {"released": {"c0": 1}}]
    assert releases(rows) == ({"c0": 2}, 3)  # the first is of an earlier version; in the third all were lost
    assert releases(rows[:1]) == ({}, 1)
    assert releases([]) == ({}, 0)


def test_privacy_page_prints_what_it_says() -> None:
    """Each command of the page, run, gives the lines below it."""
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")
    blocks = re.findall(r'^\$ python -c "(.*?)"\n(.*?)(?=^\$ |^```)', page, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    for code, expected in blocks:
        with redirect_stdout(io.StringIO()) as printed:
            exec(code, {})
        assert printed.getvalue() == expected


def test_remark_where_nothing_was_ever_shared() -> None:
    def history(*classes: int | None) -> list[dict[str, Any]]:
        return [{} if n is None else {"distill": {"server": {"knowledge_classes": float(n)}}} for n in classes]

    method = FedHkd(nu=0.5)
    assert method.remarks(history(0, 3)) == ()
    assert method.remarks(history(None)) == ()
    (said,) = method.remarks(history(0, None, 0))
    assert "algorithm.nu = 0.5" in said
    assert method.remarks(toys.tiny_run("fedhkd", algorithm={"nu": 1.0}).history)
    assert not method.remarks(toys.tiny_run("fedhkd").history)


def test_is_fedavg_where_no_class_reaches_the_threshold() -> None:
    counts = [[3, 1, 0], [2, 2, 0]]  # the largest share is 3 of 4
    assert FedHkd(nu=0.75).same_as(counts) is None
    same = FedHkd(nu=0.76).same_as(counts)
    assert same is not None
    assert same.method == "fedavg"
    assert "algorithm.nu = 0.76" in same.because
    assert FedHkdStar(nu=0.0).same_as([[1], [1]]) is not None  # with noise, a class of one sample is not shared
    assert FedHkdStar(nu=0.0, sigma=0.0).same_as([[1], [1]]) is None


def test_a_run_says_that_it_is_fedavg_and_is() -> None:
    experiment = toys.tiny("fedhkd", algorithm={"nu": 1.0})
    (said,) = [sentence for sentence in cautions(experiment) if "same as fedavg" in sentence]
    assert facts_of(experiment)["same_as"][0] == "fedavg"
    run = toys.tiny_run("fedhkd", algorithm={"nu": 1.0})
    assert run.result["remarks"] == [said]  # once
    assert run.result["model_sha256"] == toys.tiny_run("fedavg").result["model_sha256"]
    assert "same_as" not in facts_of(toys.tiny("fedhkd"))


def test_clipping_may_begin_later() -> None:
    """With `clip_from = 2` the first round is not clipped, the second is."""
    tight = replace(LOCAL, clip=1e-3)
    free, clipped, later = FedHkd(LOCAL), FedHkd(tight), FedHkd(tight, clip_from=2)
    assert toys.gap(play(later, 1), play(free, 1)) == 0.0
    assert toys.gap(play(clipped, 1), play(free, 1)) > 1e-3
    with toys.lab(later, ROWS, MAP, two_parts, classes=3) as lab:
        first, second = (lab.round(number).vector.clone() for number in (1, 2))
    assert 0 < toys.gap(second, first) < 0.02 < toys.gap(play(free, 2), first)


def test_refuses_noise_without_a_bound() -> None:
    with pytest.raises(ConfigError, match="clip_features = false"):
        toys.tiny("fedhkd", algorithm={"clip_features": False})
    assert not toys.tiny("fedhkd", algorithm={"clip_features": False, "sigma": 0.0}).method.release.clip
    assert toys.tiny("fedhkd").method.release.clip
    assert not toys.tiny("fedhkd", algorithm={"noise": "fixed"}).method.release.clip


def test_refuses_a_model_in_one_part() -> None:
    with pytest.raises(ConfigError, match="two parts"):
        toys.tiny("fedhkd", model=lambda: nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(dim=1)))


def test_counts_do_not_come_down() -> None:
    """Clients are sent two means a class; the server keeps no counts either."""
    with toys.lab(FedHkd(LOCAL, nu=0.0), ROWS, MAP, two_parts, classes=3) as lab:
        found = knowledge_of(lab.round(1))
        assert lab.state.knowledge.place is SERVER
    assert [len(means) for means in found.values()] == [2, 2, 2]
