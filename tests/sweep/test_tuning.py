"""The steps of tuning, and its default grids."""

from __future__ import annotations

import pytest

from headwater.algorithms import ALGORITHMS
from headwater.config import Config
from headwater.errors import ConfigError
from headwater.sweep.tuning import Axis, Rung, at_edge, budget_of, fewest, grid_for, ladder, points_of, rungs, thinned
from headwater.training.experiment import prepare


def test_a_third_goes_on_until_two_are_left_which_get_all_rounds() -> None:
    assert rungs(9, 9) == [Rung(9, 1), Rung(3, 3), Rung(2, 9)]
    assert rungs(5, 6) == [Rung(5, 2), Rung(2, 6)]
    assert rungs(2, 6) == [Rung(2, 6)]
    assert rungs(1, 4) == [Rung(1, 4)]
    assert budget_of(100) == 20
    assert budget_of(5) == 3


def test_a_ladder_is_five_values_around_the_default() -> None:
    assert ladder("local.lr", 0.09) == ("0.01", "0.03", "0.09", "0.27", "0.81")
    assert ladder("local.epochs", 4) == ("1", "2", "4", "8", "16")
    assert ladder("local.epochs", 1) == ("1", "2", "4")
    for value in ("sgd", True, None, 0.0):
        with pytest.raises(ConfigError, match=r"there is no default grid for some\.key"):
            ladder("some.key", value)


def test_a_chosen_number_at_the_edge_of_a_grid_is_told_from_one_inside() -> None:
    def chosen(best: str, *tried: str) -> int:
        return at_edge({"best": {"k": best}, "rows": [{"settings": {"k": value}} for value in tried]}, "k")

    assert chosen("10", "9", "10", "8") == 1  # by number, not by text
    assert chosen("8", "9", "10", "8") == -1
    assert chosen("9", "9", "10", "8") == 0
    assert chosen("2", "1", "2") == 0, "two values are a question, not a grid"
    assert chosen("adam", "adam", "sgd", "other") == 0


def test_a_method_is_tuned_in_the_keys_that_it_has() -> None:
    config = prepare(Config.load("fedprox", [], partition__clients=2)).config
    axes = grid_for(config, [("local.lr", ()), ("algorithm.mu", ()), ("algorithm.dyn_alpha", ("1",))])
    assert axes == [
        ("local.lr", ("0.00011", "0.00033", "0.001", "0.003", "0.009")),
        ("algorithm.mu", ("0.001", "0.01", "0.1", "1.0")),  # as in the paper of FedProx
    ]
    assert len(points_of(axes)) == 20


def test_papers_have_grids_of_their_own() -> None:
    """FedDF's: server momentum, where a ladder would leave the range, and rates of SGD, which Adam cannot bear."""
    momentum = prepare(Config.load("fedavgm", [], partition__clients=2)).config
    assert grid_for(momentum, [("algorithm.beta", ())]) == [("algorithm.beta", ("0.1", "0.2", "0.3", "0.4"))]
    given = [Config.load("feddf", [], partition__clients=2, local__optimizer=name) for name in ("adam", "sgd")]
    adam, sgd = (prepare(each).config for each in given)
    assert grid_for(sgd, [("local.lr", ())]) == [("local.lr", ("0.01", "0.05", "0.1", "0.5", "1.0", "1.5"))]
    assert grid_for(adam, [("local.lr", ())]) == [("local.lr", ladder("local.lr", 0.001))]


GRIDS = {(method, key): grid for method in ALGORITHMS for key, grid in ALGORITHMS[method].info.grids.items()}


@pytest.mark.parametrize(("method", "key"), GRIDS)
def test_every_value_of_a_papers_grid_is_accepted(method: str, key: str) -> None:
    config = Config.load(method, [], partition__clients=2)
    section, _, name = key.rpartition(".")
    for value in GRIDS[method, key]:
        assert config.merged({section: {name: float(value)}}).tree()[section][name] == float(value)


def test_methods_with_more_keys_try_as_many_settings_as_the_others() -> None:
    """FedAvg has five rates; of FedProx's twenty pairs five are drawn, its default among them."""
    axes: list[Axis] = [("local.lr", ()), ("algorithm.mu", ())]
    avg, prox, ens = (
        prepare(Config.load(name, [], partition__clients=2)).config for name in ("fedavg", "fedprox", "fedhkd")
    )
    most = fewest([avg, prox], axes)
    assert most == len(points_of(grid_for(avg, axes))) == 5
    assert fewest([avg], [("algorithm.mu", ())]) == 0
    assert fewest([avg, ens], [("algorithm.nu", ("0.1", "0.2"))]) == 2, "who has none of the keys does not count"
    every = points_of(grid_for(prox, axes))
    drawn = thinned(every, most, prox)
    usual = {"local.lr": "0.001", "algorithm.mu": str(prox.algorithm["mu"])}
    assert len(drawn) == 5
    assert (usual in drawn) == (usual in every)
    assert [point for point in every if point in drawn] == drawn, "in the order of the grid"
    assert thinned(every, most, prox) == drawn
    assert thinned(every, most, prox.model_copy(update={"seed": 1})) != drawn
    assert thinned(points_of(grid_for(avg, axes)), most, avg) == points_of(grid_for(avg, axes))
