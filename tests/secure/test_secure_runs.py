"""`privacy.secure` in simulated runs: what comes out, who sees what, what it costs, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from headwater.core import submission
from headwater.core.params import Params, average_of
from headwater.core.tree import ROOT
from headwater.engines.inline import Inline
from headwater.engines.jobs import LOST
from headwater.engines.refs import Ref
from headwater.errors import ConfigError
from headwater.planning.rehearsal import rehearse
from headwater.secure.fixed_point import from_words, to_words
from headwater.secure.setting import SecureSums
from headwater.tasks.sums import ArraySum, KnowledgeSum, ModelSum, Sum
from headwater.training.loop import train
from headwater.training.opening import check_needs
from headwater.training.result import Run
from loopback import SIX, small

CLIENTS = 6
ONE = SIX | {"data__fraction": 0.15, "partition__alpha": 1.0, "local__epochs": 1, "rounds": 1}
NOISY = {"model__name": "mlp", "privacy__clip": 1.0, "privacy__noise": 0.5}


def made(method: str, mode: str = "none", **more: Any) -> Any:
    return small(method, **ONE | {"privacy__secure": mode} | more)


def model(run: Run) -> torch.Tensor:
    return next(iter(run.params.values())).vector


def near(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two means of six models are equal but for the rounding of float32: one unit for each model at most."""
    return bool((one - other).abs().max() <= CLIENTS * 2.0**-23 * max(1.0, float(other.abs().max())))


def added(kind: Sum, values: list[Any], exponent: int, classes: int = 3) -> Any:
    form = next(form for value in values if (form := kind.form(value)))
    words = [to_words(kind.terms(value, form, classes)[0].numpy(), exponent) for value in values]
    totals = from_words(np.sum(words, axis=0, dtype=np.uint64), exponent)
    assert all(len(word) == kind.length(form, classes) for word in words)
    return kind.whole(torch.from_numpy(totals), len(values), form, classes)


# -- sums of each kind


def models(dtype: torch.dtype) -> dict[str, Params]:
    layout = Params.of(torch.nn.Linear(40, 3)).layout
    rng = np.random.default_rng(1)
    drawn = {name: torch.from_numpy(rng.normal(size=123)).to(dtype) for name in "abc"}
    none = torch.zeros(0, dtype=torch.int64)
    return {
        name: Params(drawn[name], none, layout, weight) for name, weight in zip("abc", (3.0, 10.0, 1.0), strict=True)
    }


@pytest.mark.parametrize("by", ["samples", "uniform"])
def test_a_mean_differs_by_the_step_at_most(by: Any) -> None:
    members, exponent = models(torch.float64), 20
    weights = [1.0 if by == "uniform" else each.weight for each in members.values()]
    mean = added(ModelSum(by), list(members.values()), exponent)
    exact = sum(w * each.vector for w, each in zip(weights, members.values(), strict=True)) / sum(weights)
    bound = len(members) * 2.0 ** -(exponent + 1) / sum(weights)
    assert 0 < float((mean.vector - exact).abs().max()) <= bound
    assert mean.weight == 14.0
    assert mean.layout == members["a"].layout


def test_a_mean_of_models_in_float32_is_the_rounded_exact_mean() -> None:
    members = models(torch.float32)
    mean = added(ModelSum(), list(members.values()), SecureSums().exponent(14 + 3))
    exact = average_of(
        {name: Params(each.vector.double(), each.counters, each.layout, each.weight) for name, each in members.items()}
    )
    assert torch.equal(mean.vector, exact.vector.float())


def test_a_total_is_the_weighted_sum() -> None:
    members = models(torch.float64)
    total = added(ModelSum(mean=False), list(members.values()), 30)
    assert torch.allclose(total.vector, sum(each.weight * each.vector for each in members.values()), atol=1e-8)
    assert total.weight == 1.0


def test_arrays_and_predictions() -> None:
    counts = [torch.tensor([1.0, 0.0, 5.0], dtype=torch.float64), torch.tensor([2.0, 7.0, 0.0], dtype=torch.float64)]
    assert added(ArraySum(), counts, 20).tolist() == [3.0, 7.0, 5.0]
    mean, number = added(ArraySum(mean=True), [torch.ones(2, 2), (torch.zeros(2, 2), 3)], 20)
    assert (mean.tolist(), number) == ([[0.25, 0.25], [0.25, 0.25]], 4)


def test_knowledge_of_classes_that_only_some_members_have() -> None:
    one = {0: (torch.tensor([1.0, 2.0]), torch.tensor([0.5]), 1)}
    other = {
        0: (torch.tensor([3.0, 2.0]), torch.tensor([0.1]), 3),
        2: (torch.tensor([8.0, 8.0]), torch.tensor([1.0]), 2),
    }
    pooled = added(KnowledgeSum(), [one, {}, other], 30)
    assert list(pooled) == [0, 2]
    assert pooled[0][0].tolist() == [2.5, 2.0]
    assert pooled[0][1].tolist() == pytest.approx([0.2])
    assert (pooled[0][2], pooled[2][2]) == (4, 2)
    assert pooled[2][0].tolist() == [8.0, 8.0]


# -- whole runs

NEIGHBOURS = [
    ("fedavg", "server", {}),
    ("hfedavg", "both", {}),
    ("scaffold", "both", {"algorithm__through_sectors": True}),
    ("mtgc", "both", {"algorithm__sector_rounds": 1}),
    ("fedeed", "server", {"algorithm__cohorts": 2, "algorithm__consolidate": "none"}),
    ("fedhkd", "both", {}),
    ("feddyn", "server", {}),
    ("fedavgm", "both", {"algorithm__through_sectors": True}),
    ("hscaffold", "sectors", {"algorithm__sector_rounds": 1}),
]


@pytest.mark.parametrize(
    ("method", "mode", "more"),
    [
        pytest.param(*case, id=case[0], marks=[pytest.mark.thorough] * (at not in (2, 4)))
        for at, case in enumerate(NEIGHBOURS)
    ],
)
def test_a_round_is_the_plain_round_to_the_rounding_of_a_mean(method: str, mode: str, more: dict[str, Any]) -> None:
    plain, hidden = (train(made(method, each, **more)) for each in ("none", mode))
    assert near(model(hidden), model(plain))
    left_out = train(made(method, mode, **more, privacy__secure_masks=False))
    assert left_out.result["model_sha256"] == hidden.result["model_sha256"]
    assert left_out.ledger.bytes_ == hidden.ledger.bytes_


@pytest.mark.parametrize(
    ("method", "mode", "at"),
    [("fedavg", "server", "server"), ("hfedavg", "both", "sector"), ("hfedavg", "both", "server")],
)
def test_noise_on_a_hidden_mean_is_that_on_the_same_mean_in_the_open(method: str, mode: str, at: str) -> None:
    plain, hidden = (train(made(method, each, **NOISY, privacy__at=at)) for each in ("none", mode))
    assert near(model(hidden), model(plain))
    assert hidden.result["privacy"] == plain.result["privacy"]
    assert hidden.result["privacy"]["clients"]["epsilon"] > 0


def test_relayed_values_are_sealed_and_give_the_same_bits() -> None:
    plain, sealed = (train(made("fedavg", each)) for each in ("none", "sectors"))
    assert sealed.result["model_sha256"] == plain.result["model_sha256"]
    kinds = {(a, b): kind for p, a, b, kind in sealed.ledger.seen if p == "train" and a == "client"}
    assert kinds == {("client", "server"): "array"}


class Watching(Inline):
    """Notes every value that a task of the server or of a client takes."""

    def __init__(self) -> None:
        super().__init__()
        self.at_server: list[Any] = []
        self.at_clients: list[Params] = []

    def _fetch(self, ref: Ref) -> Any:
        value = super()._fetch(ref)
        if value is not LOST and ref.home == ROOT:
            self.at_server.append(value)
        elif isinstance(value, Params):
            self.at_clients.append(value)
        return value


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, Params):
        return [value.vector]
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return [tensor for item in items for tensor in tensors_in(item)]


def test_the_server_of_fedeed_sees_no_model_of_a_client() -> None:
    """The averages of cohorts are all that it sees (FedEED, A.6)."""
    cohorts = {"algorithm__cohorts": 2, "algorithm__consolidate": "none"}
    engines = {mode: Watching() for mode in ("none", "server")}
    ran = {mode: train(made("fedeed", mode, **cohorts), engine=engine) for mode, engine in engines.items()}
    assert ("train", "client", "server", "model") not in ran["server"].ledger.seen
    trained = {each.vector.numpy().tobytes() for each in engines["none"].at_server if isinstance(each, Params)}
    own = {each.vector.numpy().tobytes() for each in engines["server"].at_clients}
    clients = trained & own
    assert len(clients) == CLIENTS  # the server of a plain run sees each of them
    seen = [tensor for value in engines["server"].at_server for tensor in tensors_in(value)]
    assert not clients & {tensor.numpy().tobytes() for tensor in seen}
    long = [tensor for tensor in seen if tensor.dtype == torch.int64 and len(tensor) > 1000]
    assert len(long) >= CLIENTS
    for words in long:  # masked values, and their sums before the masks are taken off
        for client in clients:
            values = np.frombuffer(client, np.float32)
            noise = words.numpy()[: len(values)].astype(float)
            assert abs(np.corrcoef(noise, values)[0, 1]) < 6 / np.sqrt(len(values))


# -- members that are lost


def losing(clients: set[str], title: str) -> Callable[..., bool]:
    """In place of simulated dropout: these clients are lost at a task, and stay so."""

    def is_lost(fed: Any, home: str, task: str, nth: int) -> bool:
        if home in clients and task == title:
            fed.session.lost.add(home)
        return home in fed.session.lost

    return is_lost


STEPS = ["advertise_keys", "share_seeds", "open_shares", "mask_value", "reveal_shares"]


@pytest.mark.parametrize("step", STEPS)
def test_a_client_lost_in_a_step_is_in_the_sum_if_its_value_arrived(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = {"c0", "c3"}
    monkeypatch.setattr(submission, "_is_lost", losing(set() if step == "reveal_shares" else lost, "local_train"))
    plain = train(made("fedavg"))
    monkeypatch.setattr(submission, "_is_lost", losing(lost, step))
    hidden = train(made("fedavg", "server"))
    assert near(model(hidden), model(plain))


@pytest.mark.parametrize("step", STEPS)
def test_with_too_few_members_left_the_model_stays_and_a_sentence_says_so(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "_is_lost", losing({"c0", "c1", "c2", "c3"}, step))
    said: list[str] = []
    run = train(made("fedavg", "server"), watch=lambda event: said.append(event.text))
    assert run.history[0]["secure_too_few"] == {ROOT: 2}
    assert any("a secure sum at server was lost, because only 2 of its members were left" in text for text in said)
    start = made("fedavg").context().initial(run.result["model"], 0)
    assert torch.equal(model(run), start.vector)


def test_a_value_beyond_the_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a value of .+ at c\d is beyond privacy.secure_range = 0.01; lower"):
        train(made("fedavg", "server", privacy__secure_range=0.01))


# -- bytes


def test_bytes_of_a_sum_by_hand() -> None:
    run = train(made("fedavg", "server"))
    result = next(iter(run.params.values()))
    numbers, counters = len(result.vector), len(result.counters)
    up = 64 + 48 * (CLIENTS - 1) + 8 * (numbers + counters + 2 + 1) + 16 * CLIENTS
    down = 4 * numbers + 8 * counters + 64 * CLIENTS + 48 * (CLIENTS - 1)
    for tier in ("sector_client", "server_sector"):
        assert run.history[0]["bytes"][tier] == {"up": CLIENTS * up, "down": CLIENTS * down}


@pytest.mark.parametrize(("method", "mode"), [("hfedavg", "both"), ("fedavg", "sectors"), ("scaffold", "server")])
def test_a_plan_counts_what_a_run_sends(method: str, mode: str) -> None:
    experiment = made(method, mode)
    planned = rehearse(experiment)
    assert planned is not None
    assert planned.traffic is not None
    ledger = train(experiment).ledger
    assert planned.traffic.exact
    for tier, counts in planned.traffic.total.items():
        assert [counts["up_bytes"], counts["down_bytes"]] == [ledger.bytes(tier, way) for way in ("up", "down")]


# -- what is refused

NEEDS = [
    ("feddf", "server", {}, "from the server, but drop_worst needs them there"),
    ("fedhead", "sectors", {}, "from the leaders of sectors, but distill needs them there"),
    ("fedbe", "server", {}, "but sample_models needs them there"),
    ("fedgen", "both", {}, "but teach_generator needs them there"),
    ("fedma", "server", {}, "but match_layer needs them there"),
    ("scaffold", "server", {"algorithm__reconstruct": True}, "but rebuilt needs them there"),
    ("fedhkd", "server", {"algorithm__pooling": "last"}, "how = 'last' it takes the value of a single one"),
    ("fedeed", "server", {"algorithm__cohorts": 1, "algorithm__ensemble": "clients"}, "but .+ needs them there"),
    ("hfedprox", "sectors", {"algorithm__server_mean": "clients"}, "but plain_mean needs them there"),
    ("fedproto", "server", {}, "this method has no global model"),
    ("local", "both", {}, "this method has no global model"),
    ("centralized", "server", {}, "but pooled needs them there"),
    ("fedeed", "server", {"algorithm__cohorts": 4}, "a sum at the server in round 1 has 1 member,"),
    ("hfedavg", "sectors", {"partition__sectors": 6}, "a sum at s0 in round 1 has 1 member,"),
    (
        "hfedavg",
        "both",
        NOISY | {"privacy__at": "server", "algorithm__by": "uniform"},
        "counts most, which privacy.sec",
    ),
    ("mtgc", "sectors", {"algorithm__leader": "random", "partition__sectors": 3}, "the leader of s0 .+ at least 3"),
]


@pytest.mark.parametrize(("method", "mode", "more", "why"), NEEDS, ids=[f"{n[0]}-{n[1]}" for n in NEEDS])
def test_what_needs_single_values_is_refused_before_the_run(
    method: str, mode: str, more: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        check_needs(made(method, mode, **more))


@pytest.mark.parametrize(("key", "mode"), [("sector", "both"), ("server", "server")])
def test_a_robust_rule_that_would_see_a_sum_only_is_refused(key: str, mode: str) -> None:
    with pytest.raises(ConfigError, match=f"robust.{key} = 'median' compares single values, which privacy.secure"):
        made("fedavg", mode, **{f"robust__{key}": "median"})
    made("fedavg", "sectors" if key == "server" else "server", **{f"robust__{key}": "median"})


def test_an_adapted_bound_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"privacy.quantile = 0.5 has every client report to the server"):
        made("fedavg", "server", **NOISY, privacy__at="server", privacy__quantile=0.5)


def test_a_model_that_keeps_the_buffers_of_one_client_is_refused() -> None:
    of_one = Params.of(torch.nn.BatchNorm1d(3), "norm", "first")
    with pytest.raises(ConfigError, match="keeps the buffers of the first client"):
        ModelSum().form(of_one)
