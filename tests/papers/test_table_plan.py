"""From tables to runs: one a configuration, stand-ins that are said, and scales that fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import chosen
from headwater import papers
from headwater.errors import ConfigError, DataError
from headwater.papers import scales
from headwater.papers.results import collect
from headwater.papers.table import load, parse
from headwater.papers.table_plan import CORES, TablePlan, plan_table
from headwater.sweep import CellOutcome, DataSummary

QUICK = ("feddf/table3", "fedeed/table2", "fedhead/table4", "fedhkd/table2", "mtgc/settings")  # one of each paper
COLOUR, GREY = (3, 32, 32), (1, 28, 28)
SIZES = {
    "cifar10": DataSummary(50_000, 10_000, COLOUR, 10),
    "cifar100": DataSummary(50_000, 10_000, COLOUR, 100),
    "tiny_imagenet32": DataSummary(8_000, 2_000, COLOUR, 200),
    "fashion_mnist": DataSummary(60_000, 10_000, GREY, 10),
    "digits": DataSummary(1_438, 359, (1, 8, 8), 10),
    "iscx_vpn2016": DataSummary(15_006, 3_752, (23,), 14),
    "nsl_kdd": DataSummary(25_192, 22_544, (122,), 23),
    "ag_news": DataSummary(37_436, 7_600, (128,), 4, tokens=True),
    "sst2": DataSummary(6_920, 1_821, (128,), 2, tokens=True),
    "toy2d": DataSummary(600, 600, (2,), 3),
}


class FakeDatasets:
    """Says what there is to say of data sets, without reading any; counts how often it is asked."""

    def __init__(self, *absent: str) -> None:
        self.absent, self.asked = absent, 0

    def __call__(self, wanted: Sequence[tuple[Mapping[str, Any], bool]]) -> list[DataSummary]:
        found = []
        for section, reference in wanted:
            self.asked += 1
            name = section["reference"] if reference else section["name"]
            there = name in SIZES and name not in self.absent
            found.append(SIZES[name] if there else DataSummary(absent=f"{name} is not in the data directory"))
        return found


def made(text: str, scale: str = "paper", datasets: FakeDatasets | None = None, **options: Any) -> TablePlan:
    head = "" if "preset" in text else 'preset = "demo"\n'
    table = parse(f"# T\n{head}{text}", "mine.toml", scales.names())
    return plan_table(table, scales.find(scale), Path("out"), datasets or FakeDatasets(), **options)


TWO = """
[[row]]
name = "FedAvg"
set = { algorithm = { name = "fedavg" } }
[[row]]
name = "FedHEAD"
set = { algorithm = { name = "fedhead" } }
"""

ONE, MORE = (f'set = {{ algorithm = {{ name = "fedavg" }}{more} }}' for more in ("", ", server = { lr = 0.1 }"))


class TestRuns:
    def test_places_with_the_same_configuration_share_a_run(self) -> None:
        columns = "".join(
            f'[[column]]\nname = "{name}"\n{more}'
            for name, more in [
                ("global", ""),
                ("local", 'metric = "best_accuracy"\n'),
                ("alpha 1", "set = { partition = { alpha = 1.0 } }\n"),
                ("the usual alpha", "set = { partition = { alpha = 0.1 } }\n"),
            ]
        )
        found = made(f"seeds = [0, 1]\n{TWO}{columns}")
        assert len(found.cells) == 2 * 2 * 2  # two methods, two alphas, two seeds
        assert len({found.at["FedAvg", column, 0] for column in ("global", "local", "the usual alpha")}) == 1
        assert found.at["FedAvg", "alpha 1", 0] != found.at["FedAvg", "global", 0]
        assert found.at["FedAvg", "global", 0] != found.at["FedAvg", "global", 1]

    def test_a_setting_goes_to_the_methods_that_have_it(self) -> None:
        column = '[[column]]\nname = "x"\nset = { sector = { lr = 0.5 }, algorithm = { leader = "fixed" } }\n'
        plain, led = (cell.config for cell in made(TWO + column).cells)
        assert (plain.sector, led.sector["lr"], led.algorithm["leader"]) == ({}, 0.5, "fixed")

    def test_the_method_may_be_the_columns_business(self) -> None:
        rows = '[[row]]\nname = "slow"\nset = { local = { lr = 0.01 } }\n'
        columns = '[[column]]\nname = "F"\nset = { algorithm = { name = "feddf", drop_worst = false } }\n'
        (cell,) = made(rows + columns).cells
        assert (cell.config.method, cell.config.algorithm["drop_worst"], cell.config.local["lr"]) == (
            "feddf",
            False,
            0.01,
        )

    def test_a_row_may_start_elsewhere(self) -> None:
        rows = '[[row]]\nname = "FedDF"\npreset = "feddf_as_in_fedhead"\n[[row]]\nname = "FedHEAD"\n'
        found = made(f'preset = "fedhead/table2"\n{rows}[[column]]\nname = "x"\n', datasets=FakeDatasets())
        assert [cell.config.method for cell in found.cells] == ["feddf", "fedhead"]

    def test_a_column_may_have_some_rows_only(self) -> None:
        found = made(f'{TWO}[[column]]\nname = "x"\nrows = ["FedHEAD"]\n')
        assert list(found.at) == [("FedHEAD", "x", 0)]

    def test_names_become_directories_of_their_own(self) -> None:
        rows = "".join(
            f'[[row]]\nname = "{name}"\nset = {{ local = {{ lr = {lr} }} }}\n'
            for name, lr in [("a/b", 0.1), ("a b", 0.2), ("A*B", 0.3), ("…", 0.4), ("FedHEAD+", 0.5)]
        )
        found = made(f'{rows}[[column]]\nname = "../up"\n')
        places = [cell.path.relative_to("out") for cell in found.cells]
        assert [str(place.parts[1]) for place in places] == ["a-b", "a-b-2", "A-B-3", "x", "FedHEAD+"]
        assert {place.parts[2] for place in places} == {"up"}

    def test_a_wrong_setting_is_refused_with_its_place(self) -> None:
        with pytest.raises(ConfigError, match=r"mine.toml, FedAvg, x: there is no setting called 'data.nome'"):
            made(f'{TWO}[[column]]\nname = "x"\nset = {{ data = {{ nome = "digits" }} }}\n')

    def test_a_setting_that_no_method_has_is_refused(self) -> None:
        with pytest.raises(
            ConfigError, match=r"mine.toml, column x: algorithm.laeder means nothing to fedavg, fedhead"
        ):
            made(f'{TWO}[[column]]\nname = "x"\nset = {{ algorithm = {{ laeder = "fixed" }} }}\n')
        with pytest.raises(ConfigError, match=r"row FedAvg: server.lr means nothing to fedavg"):
            made(f'{TWO.replace(ONE, MORE)}[[column]]\nname = "x"\n')


class TestAsked:
    COLUMN = '[[column]]\nname = "x"\n'

    def test_the_users_settings_are_over_all_others(self) -> None:
        found = made(TWO + self.COLUMN, "smoke", sets=["sector.epochs=9", "partition.clients=7"], direct={"rounds": 3})
        assert {cell.config.rounds for cell in found.cells} == {3}
        assert {cell.config.partition.clients for cell in found.cells} == {7}
        assert found.cells[1].config.sector["epochs"] == 9

    def test_seeds_that_are_asked_for(self) -> None:
        found = made(f"seeds = [0, 1, 2]\n{TWO}{self.COLUMN}", "smoke", seeds=[5, 6])
        assert sorted({cell.config.seed for cell in found.cells}) == [5, 6]
        assert made(f"seeds = [3, 4]\n{TWO}{self.COLUMN}", "smoke").seeds == (3,)
        assert made(f"seeds = [3, 4]\n{TWO}{self.COLUMN}", "paper").seeds == (3, 4)

    @pytest.mark.parametrize("pair", ["algorithm.name=local", "seed=3", "server.lr=0.1", "local.lrr=0.1"])
    def test_what_makes_no_sense_is_refused(self, pair: str) -> None:
        with pytest.raises(ConfigError):
            made(TWO + self.COLUMN, sets=[pair])


class TestStandins:
    def test_data_that_is_there_is_used(self) -> None:
        found = plan_table(
            load("fedhead/table2", scales.names()), scales.find("smoke"), Path("out"), FakeDatasets("svhn")
        )
        assert not any("cifar10 stands in" in told for told in found.remarks)
        names = {cell.config.data.name for cell in found.cells}
        assert names == {"fashion_mnist", "cifar10", "cifar100"}
        assert "fashion_mnist stands in for svhn, which is not in the data directory." in found.remarks

    def test_a_reference_set_that_became_the_clients_own_is_replaced(self) -> None:
        datasets = FakeDatasets("svhn", "cifar100")
        found = plan_table(load("fedhead/table2", scales.names()), scales.find("smoke"), Path("out"), datasets)
        pairs = {(cell.config.data.name, cell.config.data.reference) for cell in found.cells}
        assert ("cifar10", "tiny_imagenet32") in pairs
        assert ("tiny_imagenet32", "cifar10") in pairs
        assert sum("stands in for" in told and "as the reference set" in told for told in found.remarks) == 2

    def test_without_photographs_a_part_of_the_data_is_set_aside(self) -> None:
        datasets = FakeDatasets("tiny_imagenet32", "cifar100")
        column = '[[column]]\nname = "x"\nset = { data = { name = "cifar10", reference = "cifar100" } }\n'
        found = made(f"{TWO}{column}", datasets=datasets)
        assert {cell.config.data.reference for cell in found.cells} == {"holdout"}

    def test_what_has_no_stand_in_is_refused(self) -> None:
        with pytest.raises(DataError, match="cifar10 is not in the data directory"):
            made(
                f'{TWO}[[column]]\nname = "x"\nset = {{ data = {{ name = "cifar10" }} }}\n',
                datasets=FakeDatasets("cifar10"),
            )
        both = FakeDatasets("cifar100", "tiny_imagenet32")
        with pytest.raises(DataError, match="'tiny_imagenet32', which could stand in for it, is not there either"):
            made(f'{TWO}[[column]]\nname = "x"\nset = {{ data = {{ name = "cifar100" }} }}\n', datasets=both)

    def test_nothing_stands_in_for_damaged_data(self) -> None:
        def damaged(wanted: Sequence[tuple[Mapping[str, Any], bool]]) -> list[DataSummary]:
            return [DataSummary(wrong=f"{section['name']} is damaged") for section, _ in wanted]

        with pytest.raises(DataError, match="svhn is damaged"):
            plan_table(load("fedhead/table2", scales.names()), scales.find("smoke"), Path("out"), damaged)

    def test_each_set_is_asked_for_once(self) -> None:
        datasets = FakeDatasets("svhn")
        plan_table(load("fedhead/table2", scales.names()), scales.find("smoke"), Path("out"), datasets)
        assert datasets.asked <= 2 * len({"svhn", "fashion_mnist", "cifar10", "cifar100", "tiny_imagenet32"})


class TestRounds:
    def test_a_round_of_the_printed_setting_becomes_one_of_the_short_run(self) -> None:
        columns = "".join(f'[[column]]\nname = "{n}"\nmetric = "accuracy_at:{n}"\n' for n in (5, 10, 20, 50, 100))
        rows = '[[row]]\nname = "A"\nset = { rounds = 100 }\n'
        found = made(rows + columns, "smoke")
        assert {cell.config.rounds for cell in found.cells} == {5}
        assert [found.measures[str(n)].number for n in (5, 10, 20, 50, 100)] == [1, 2, 3, 4, 5]
        assert found.cells[0].config.eval_every == 1
        assert "100: after round 5 of 5." in found.remarks
        assert [measure.number for measure in made(rows + columns).measures.values()] == [5, 10, 20, 50, 100]

    def test_what_the_paper_prints_of_another_round_is_not_compared_with(self) -> None:
        columns = '[[column]]\nname = "early"\nmetric = "accuracy_at:50"\n[[column]]\nname = "last"\n'
        text = (
            f'[[row]]\nname = "A"\nset = {{ rounds = 100 }}\n{columns}[printed]\nA = [30, 40]\n[spread]\nA = [1, 2]\n'
        )
        found = made(text, "smoke")
        failed = {cell.path: CellOutcome("no") for cell in found.cells}
        entries = collect(found, failed, Path("out")).entries
        assert [(each.printed, each.spread) for each in entries.values()] == [(None, None), (40.0, 2.0)]
        assert "A column that shows another measure than the paper's is without the paper's values." in found.remarks
        whole = collect(made(text), {cell.path: CellOutcome("no") for cell in made(text).cells}, Path("out")).entries
        assert whole["A", "early"].printed == 30.0


class TestRemarks:
    def test_what_a_scale_sets_of_its_own_is_told_where_it_changed_a_cell(self) -> None:
        column = '[[column]]\nname = "x"\nset = { partition = { clients = 20 } }\n'
        own = "[scale.smoke]\nset = { partition = { clients = 8, sectors = 2 }, sector = { lr = 0.5 } }\n"
        found = made(TWO + column + own, "smoke")
        told = [each for each in found.remarks if any(key in each for key in ("clients", "sectors", "sector.lr"))]
        assert {cell.config.partition.sectors for cell in made(TWO + column).cells} == {2}  # so this changes nothing
        assert told == ["At this scale partition.clients is 8 in place of 20.", "At this scale sector.lr is 0.5."]
        assert made(TWO + column + own).remarks == ()

    def test_the_length_of_texts_is_told(self) -> None:
        found = plan_table(load("fedhead/table3", scales.names()), scales.find("small"), Path("out"), FakeDatasets())
        assert any(remark.startswith("At this scale data.length is 64 in place of") for remark in found.remarks)


class TestFit:
    def test_smoke_takes_more_epochs_where_there_is_time(self) -> None:
        rows = '[[row]]\nname = "A"\nset = { rounds = 100, local = { epochs = 40 }, model = { name = "resnet8" } }\n'
        one = 'set = { data = { name = "cifar10" }, partition = { clients = %d } }\n'
        few, many = (
            made(rows + "".join(f'[[column]]\nname = "{n}"\n{one % n}' for n in range(20, 20 + count)), "smoke")
            for count in (1, 70)
        )
        config = few.cells[0].config
        assert (config.rounds, config.local["epochs"], config.data.fraction) == (5, 8, 0.02)
        assert many.cells[0].config.local["epochs"] == 1

    @pytest.mark.parametrize("name", chosen.first(["mtgc/settings", "fedhead/table2", "fedeed/table4"], QUICK))
    def test_small_takes_an_hour_or_less_and_not_next_to_nothing(self, name: str) -> None:
        found = plan_table(
            load(name, scales.names()), scales.find("small"), Path("out"), FakeDatasets("svhn", "cifar100")
        )
        minutes = found.seconds / CORES / 60
        assert 15 < minutes <= 61

    @pytest.mark.thorough
    def test_it_is_a_function_of_the_table_alone(self) -> None:
        table = load("fedhead/table2", scales.names())
        one, two = (
            plan_table(table, scales.find("small"), Path("out"), FakeDatasets("svhn"), seeds=seeds)
            for seeds in ([0], [0, 1, 2])
        )
        assert [cell.config for cell in one.cells] == [cell.config for cell in two.cells][: len(one.cells)]


@pytest.mark.parametrize("name", chosen.first(papers.names(), QUICK))
def test_every_table_has_runs_at_smoke_scale(name: str) -> None:
    table = load(name, scales.names())
    found = plan_table(table, scales.find("smoke"), Path("out"), FakeDatasets())
    places = {(row.name, column.name) for row in table.rows for column in table.columns if table.has(row, column)}
    assert {(row, column) for row, column, _ in found.at} == places
    for cell in found.cells:
        size = SIZES[cell.config.data.name]
        assert cell.config.data.fraction * size.train >= min(1000, size.train) * 0.99
        assert cell.config.rounds >= min(5, found.cells[0].config.rounds)
    assert found.seconds / CORES < 300


EXPERIMENTS = Path(__file__).parents[2] / "experiments"
TABLES = sorted(path for path in EXPERIMENTS.glob("*/*.toml") if "[[row]]" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", chosen.first(TABLES, TABLES[::4]), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_table_of_an_experiment_can_be_run_as_it_stands(path: Path) -> None:
    table = load(str(path), scales.names())
    found = plan_table(table, scales.find("paper"), Path("out"), FakeDatasets(), seeds=[0])
    assert {cell.config.data.name for cell in found.cells} <= SIZES.keys()
    assert len(found.cells) >= len(table.rows)  # no two rows are the same run by mistake
