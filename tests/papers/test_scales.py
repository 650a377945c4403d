"""Scales: rounds, epochs and samples get fewer, and what a table varies stays different."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.config import Config
from headwater.errors import ConfigError
from headwater.papers import scales
from headwater.papers.scales import Scale, ShrinkRule, find, get, shrink
from headwater.papers.table import ScaleOverride
from headwater.sweep import DataSummary

PICTURES = DataSummary(50_000, 10_000, (3, 32, 32), 10)


def tree(source: str = "fedhead/table2", *sets: str) -> dict[str, Any]:
    return Config.load(source, list(sets)).tree()


def smoke(
    *trees: dict[str, Any], size: DataSummary = PICTURES, every_round: bool = False, scale: Scale | None = None
) -> Any:
    return shrink(trees, scale or find("smoke"), lambda tree: size, every_round=every_round)


class TestRule:
    def test_a_factor_within_bounds(self) -> None:
        rule = ShrinkRule(0.05, least=5, most=8)
        assert rule.shrunk([50]) == {50: 5}
        assert rule.shrunk([120]) == {120: 6}
        assert rule.shrunk([1000]) == {1000: 8}

    def test_different_numbers_stay_different_and_in_order(self) -> None:
        assert ShrinkRule(0.05, least=5, most=8).shrunk([25, 100, 400]) == {25: 5, 100: 6, 400: 8}
        assert ShrinkRule(0.025, least=1, most=4).shrunk([1, 20, 40, 80, 160]) == {1: 1, 20: 2, 40: 3, 80: 4, 160: 5}

    def test_nothing_grows_and_nothing_stays_nothing(self) -> None:
        assert ShrinkRule(0.5, least=5).shrunk([0, 2, 3, 100]) == {0: 0, 2: 2, 3: 3, 100: 50}

    def test_smaller_still_down_to_the_least(self) -> None:
        assert ShrinkRule(0.5, least=4, most=40).shrunk([100], 0.5) == {100: 20}
        assert ShrinkRule(0.5, least=4, most=40).shrunk([100], 0.0) == {100: 4}


class TestSmoke:
    def test_it_is_a_small_thing(self) -> None:
        (found,) = smoke(tree())
        assert found["rounds"] == 5
        assert found["eval_every"] == 5  # only the last model is tested
        assert found["local"]["epochs"] == found["sector"]["epochs"] == 1
        assert found["data"]["fraction"] == 0.02  # 1 000 of 50 000
        assert found["data"]["test_fraction"] == 0.05  # 500 of 10 000
        assert found["data"]["validation"] == 50  # of 1 000, which would be all there is
        assert found["data"]["reference_size"] == 100  # of 5 000
        assert found["model"]["name"] == "cnn"
        assert found["model"]["norm"] == "batch"
        assert Config(**found).local["lr"] == 1e-3  # and what is not about size is as printed

    def test_rounds_that_are_shown_are_tested(self) -> None:
        assert smoke(tree(), every_round=True)[0]["eval_every"] == 1

    def test_a_table_that_varies_epochs_still_does(self) -> None:
        found = smoke(*(tree("feddf/table2", f"local.epochs={epochs}") for epochs in (1, 20, 40)))
        assert [each["local"]["epochs"] for each in found] == [1, 2, 3]

    def test_a_table_that_varies_shares_of_the_data_still_does(self) -> None:
        found = smoke(*(tree("fedhead/table2", f"data.fraction={share}") for share in (0.1, 0.12, 0.5)))
        assert [each["data"]["fraction"] * 50_000 for each in found] == pytest.approx([1000, 1200, 1500])

    def test_clients_and_sectors_are_left_alone(self) -> None:
        found = smoke(*(tree("fedhead/table2", f"partition.clients={n}") for n in (20, 40, 60)))
        assert [each["partition"]["clients"] for each in found] == [20, 40, 60]

    def test_networks_that_differ_still_do(self) -> None:
        found = smoke(*(tree("fedeed/table4", f"model.name={net}") for net in ("resnet20", "resnet56", "wrn16_2")))
        assert len({repr(each["model"]) for each in found}) == 3
        assert {each["model"]["name"] for each in found} == {"cnn"}

    def test_a_norm_that_was_chosen_is_kept(self) -> None:
        found = smoke(*(tree("feddf/table2", f"model.norm={norm}") for norm in ("batch", "group")))
        assert [each["model"]["norm"] for each in found] == ["batch", "group"]

    def test_what_counts_in_steps_follows_them(self) -> None:
        (found,) = smoke(tree("feddf/table2"))
        server = found["server"]
        assert (server["steps"], server["patience"], server["eval_every"]) == (10, 1, 2)  # of 10 000, 1 000 and 100

    @pytest.mark.parametrize("number", [2, 3, 5, 6, 7])
    @pytest.mark.parametrize("more", [1.0, 0.5])
    def test_early_stopping_can_still_happen(self, number: int, more: float) -> None:
        printed = tree(f"fedhead/table{number}", "algorithm.name=fedhead+")
        (found,) = shrink([printed], find("small"), lambda tree: PICTURES, every_round=False, more=more)
        for stage in (found["sector"], found["server"]):
            assert (stage["epochs"], stage["patience"]) == ((5, 1) if more == 1 else (2, 1))  # of 20 and 5
        assert smoke(printed)[0]["sector"]["patience"] == 1

    def test_lengths_left_to_the_data_are_set_where_the_method_has_them(self) -> None:
        plain, led = smoke(tree("demo", "algorithm.name=fedavg"), tree("demo"))
        assert plain["local"] == {"epochs": 1}
        assert plain["sector"] == {}
        assert led["sector"] == {"epochs": 1}

    def test_unlike_networks_become_unlike_small_ones(self) -> None:
        (found,) = smoke(tree("feddf/table2", "model.name=resnet20", "model.also=['resnet32','shufflenetv2']"))
        names = [found["model"]["name"], *found["model"]["also"]]
        assert names == ["cnn", "mlp", "linear"]
        Config(**found)

    def test_little_data_is_used_whole(self) -> None:
        (found,) = smoke(tree("demo"), size=DataSummary(600, 100, (2,), 3))
        assert (found["data"]["fraction"], found["data"]["test_fraction"]) == (1.0, 1.0)


def test_a_table_may_change_a_scale() -> None:
    given = ScaleOverride(
        samples=3000, seeds=2, shrink={"local.epochs": "x0.1"}, set={"server": {"lr": 0.5}, "rounds": 7}
    )
    scale = find("smoke").over(given)
    first, second = smoke(tree(), tree("fedhead/table2", "algorithm.name=feddf"), scale=scale)
    assert (scale.seeds, first["data"]["fraction"], first["local"]["epochs"]) == (2, 0.06, 2)
    assert first["rounds"] == second["rounds"] == 7
    assert second["server"]["lr"] == 0.5  # which the first has no use for
    assert first["server"] == {}


def test_a_wrong_factor_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"scale.smoke.shrink.local.epochs must be a factor .* got 'half'"):
        find("smoke").over(ScaleOverride(shrink={"local.epochs": "half"}))


def test_the_printed_setting_is_left_alone() -> None:
    before = tree()
    assert smoke(before, scale=find("paper")) == [before]


def test_an_unknown_scale_gets_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"there is no scale 'smal'; did you mean 'small'\? \(there are: smoke, small"
    ):
        find("smal")


def test_get_knows_top_keys_and_sections() -> None:
    assert get({"rounds": 3, "local": {"lr": 1}}, "rounds") == 3
    assert get({"rounds": 3, "local": {"lr": 1}}, "local.lr") == 1
    assert get({"rounds": 3}, "local.lr") is None


def test_every_network_that_stands_in_can_be_configured() -> None:
    for name in scales.names():
        for net, options in find(name).networks.items():
            Config(model=dict(options))
            assert net != "auto"
