"""Runs with noise: what they spend, where they end, and that noise changes nothing else."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import chosen
from headwater.core.sampling import participants
from headwater.errors import ConfigError
from headwater.planning import plan
from headwater.theory import accounting
from headwater.training.loop import train
from headwater.training.spending import Spending
from loopback import loopback, small
from toys import gap, tiny, tiny_run

NOISE: dict[str, Any] = {"clip": 1.0, "noise": 2.0}
ROWS: dict[str, Any] = {"row_clip": 1.0, "row_noise": 1.5}


def sha(run: Any) -> str:
    return str(run.result["model_sha256"])


class Ended(Exception):  # noqa: N818
    pass


def _carried_on(made: Any, out: Path) -> Any:
    """A run that was ended after its second round, and carried on."""

    def watch(event: Any) -> None:
        if event.kind == "round" and event.round == 2:
            raise Ended

    with pytest.raises(Ended):
        train(made, out=out, watch=watch)
    return train(made, out=out)


@pytest.mark.parametrize("method", ["fedavg", "hfedavg"])
def test_a_wide_bound_without_noise_changes_no_bit(method: str) -> None:
    plain = tiny_run(method, algorithm={"by": "uniform"}, rounds=3)
    bounded = tiny_run(method, algorithm={"by": "uniform"}, rounds=3, privacy={"clip": 1e9})
    if method == "fedavg":
        assert sha(bounded) == sha(plain)
    else:  # local training of hfedavg weighs by rows; the mean at a sector is uniform, and of equal parts
        assert gap(bounded.params[""], plain.params[""]) < 1e-6
    assert "privacy" not in bounded.result
    assert "privacy" not in bounded.history[0]


@pytest.mark.parametrize("at", chosen.first(["client", "sector", "server"], ["sector"]))
def test_every_way_to_execute_gives_the_same_noise(at: str, tmp_path: Path) -> None:
    """Clients in one batch, alone, and a run that is carried on."""
    made = tiny("hfedavg", rounds=4, privacy={**NOISE, "at": at})
    whole = train(made, out=tmp_path / "whole")
    alone = tiny("hfedavg", rounds=4, privacy={**NOISE, "at": at}, engine={"stack": "off", "name": "inline"})
    assert gap(train(alone).params[""], whole.params[""]) < 1e-4
    assert sha(train(made)) == sha(whole)
    again = _carried_on(made, tmp_path / "again")
    assert sha(again) == sha(whole)
    assert [row["privacy"] for row in again.history] == [row["privacy"] for row in whole.history]


def test_what_is_spent_is_told_by_round_in_the_result_and_beforehand(tmp_path: Path) -> None:
    made = tiny("fedavg", rounds=3, privacy={**NOISE, "delta": 1e-4})
    planned = plan(made)
    run = train(made, out=tmp_path)
    by_round = [accounting.releases_epsilon(2.0, n, 1e-4) for n in (1, 2, 3)]
    rows = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [row["privacy"] for row in rows] == [{"clients": {"epsilon": e, "delta": 1e-4}} for e in by_round]
    told = run.result["privacy"]
    assert (told["epsilon"], told["delta"], told["clients"]["releases"]) == (by_round[-1], 1e-4, 3)
    assert told["clients"]["epsilon_replaced"] == accounting.releases_epsilon(1.0, 3, 1e-4)
    assert planned.privacy == told
    assert told["sentence"] in (tmp_path / "model.md").read_text()
    assert f"Clients: ε = {by_round[-1]:.4g} at δ = 0.0001 after 3 rounds" in told["sentence"]
    assert all("train_loss" not in row and not row["client_accuracy"] for row in rows)


def test_a_client_spends_only_in_rounds_that_it_takes_part_in() -> None:
    made = tiny("fedavg", rounds=6, partition={"participation": 0.4}, privacy=NOISE)
    spending = Spending(made)
    often = [c for n in range(1, 7) for c in participants(made.tree, 0.4, made.config.seed, n)]
    most = max(often.count(client) for client in made.tree.holders)
    assert most < 6
    assert spending.report(6)["clients"]["releases"] == most
    assert spending.report(6)["epsilon"] == accounting.releases_epsilon(2.0, most, 1e-5)
    assert Spending(made, drawn=False).report(6)["clients"]["releases"] == 6


def test_a_run_ends_before_the_round_that_would_spend_too_much(tmp_path: Path) -> None:
    limit = accounting.releases_epsilon(2.0, 3, 1e-5)
    privacy = {**NOISE, "epsilon_max": limit * 1.01}
    made = tiny("fedavg", rounds=9, eval_every=2, privacy=privacy)
    run = train(made, out=tmp_path)
    assert (run.result["rounds"], len(run.history)) == (3, 3)
    assert run.result["privacy"]["epsilon"] == limit
    assert run.history[-1]["accuracy"] is not None
    assert run.result["notes"][0].startswith("ended after round 3 of 9: one more would bring ε above")
    assert (tmp_path / "model.safetensors").exists()
    assert sha(train(made, out=tmp_path)) == sha(run)  # finished: nothing more is spent
    assert any("ended after round 3 of 9" in words for words in plan(made).cautions)
    free = train(tiny("fedavg", rounds=3, privacy=NOISE))
    assert sha(free) == sha(run)


def test_noise_on_the_share_within_a_bound_follows_from_the_secret_of_the_server() -> None:
    made = tiny("fedavg", privacy={"clip": 1.0, "noise": 1.0, "at": "server", "quantile": 0.5})
    draw = {secret: Spending(made, secret=secret)._noise(1, [1.0, 0.0]) for secret in ("", "one", "other")}
    assert len(set(draw.values())) == 3
    assert Spending(made, secret="one")._noise(1, [1.0, 0.0]) == draw["one"]
    assert Spending(made, secret="one")._noise(1, [1.0, 1.0]) != draw["one"]  # repeated with other answers


def test_the_bound_follows_the_updates(tmp_path: Path) -> None:
    privacy = {"clip": 1e-3, "noise": 0.05, "at": "server", "quantile": 0.5}
    made = tiny("fedavg", rounds=5, privacy=privacy)
    run = train(made, out=tmp_path / "whole")
    told = [row["privacy"] for row in run.history]
    bounds = [each["clip"] for each in told]
    assert bounds[0] == 1e-3
    assert bounds == sorted(bounds)  # no update is within so small a bound
    assert bounds[1] == pytest.approx(1e-3 * math.exp(0.2 * 0.5), rel=0.05)
    assert [each["next_clip"] for each in told[:-1]] == bounds[1:]
    fixed = tiny_run("fedavg", rounds=5, privacy={**privacy, "quantile": 0.0})
    assert run.result["privacy"]["epsilon"] == fixed.result["privacy"]["epsilon"]
    assert sha(_carried_on(made, tmp_path / "again")) == sha(run)


@pytest.mark.parametrize(
    ("method", "privacy", "said"),
    [
        ("fedavg", {"epsilon_max": 1.0}, "there is none; set privacy.clip and privacy.noise"),
        ("fedavg", {**NOISE, "epsilon_max": 0.01}, "ends this run before its first round"),
        (
            "scaffold",
            {**NOISE, "at": "server", "epsilon_max": 9.0},
            "leave without noise: control variates",
        ),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(method: str, privacy: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        train(tiny(method, privacy=privacy))


def test_no_figure_where_something_else_leaves() -> None:
    told = tiny_run("fedgen", privacy=NOISE).result["privacy"]
    assert told["epsilon"] is None
    assert told["sentence"] == (
        "No ε holds for clients, because these values leave without noise: label counts, from clients to the server."
    )
    both = tiny_run("fedhkd", algorithm={"nu": 0.0}, privacy=NOISE).result["privacy"]
    assert both["representations"]["epsilon"] > 0
    assert both["sentence"].startswith("No ε holds for clients")
    assert "Representations only: ε" in both["sentence"]


def test_noise_on_class_means_is_told_by_round_too() -> None:
    run = tiny_run("fedhkd", algorithm={"nu": 0.0}, rounds=3)
    told = [row["privacy"]["representations"] for row in run.history]
    assert [each["epsilon"] for each in told] == sorted(each["epsilon"] for each in told)
    assert told[-1] == {key: run.result["privacy"][key] for key in ("epsilon", "delta")}


def test_rows_are_accounted_for_by_client() -> None:
    made = tiny("fedavg", rounds=2, privacy=ROWS, sizes=((24, 16), (0, 1)))
    run = train(made)
    delta, told = 1e-5, run.result["privacy"]["rows"]
    # One epoch in batches of 8: three steps of a third of the rows, or two of a half of them; two rounds of each.
    kinds = {"c0": (1.5, 8 / 24, 6, delta), "c1": (1.5, 8 / 16, 4, delta)}
    assert told["by_client_rdp"] == {c: accounting.sampled_steps_bound(*kind) for c, kind in kinds.items()}
    worst = max(kinds.values(), key=lambda kind: accounting.sampled_steps_bound(*kind))
    assert told["epsilon"] == accounting.sampled_steps_epsilon(*worst)
    assert sha(train(replace(made))) == sha(run)
    assert made.stacking.way == "loop"


@pytest.mark.parametrize(
    ("privacy", "more"),
    [
        (NOISE, {}),
        pytest.param(NOISE | {"at": "server"}, {}, marks=pytest.mark.thorough),
        pytest.param(ROWS, {"local__batch": 16}, marks=pytest.mark.thorough),
    ],
)
def test_parties_draw_the_noise_of_the_simulation_from_the_seed(
    privacy: dict[str, Any], more: dict[str, Any], tmp_path: Path
) -> None:
    """Without secrets, as with `deploy.secret_noise = false`, a federation of parties has the simulation's bits."""
    keys = {f"privacy__{key}": value for key, value in privacy.items()}
    base = {"data__fraction": 0.15, "partition__alpha": 1.0, "local__epochs": 1, "rounds": 2, "model__name": "mlp"}
    made = small("fedavg", **base, **more, **keys)
    simulated = train(made)
    with loopback(made, tmp_path) as federation:
        run = federation.train()
        assert federation.said == []
    assert sha(run) == sha(simulated)
    assert run.result["privacy"]["epsilon"] == simulated.result["privacy"]["epsilon"]
    assert torch.isfinite(run.params[""].vector).all()
