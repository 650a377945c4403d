"""The tables and figures of FedDF and FedEED: settings and printed values against what was typed from the papers, by
hand and a second time; every cell can be run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import chosen
from headwater import papers, presets
from headwater.config import Config
from headwater.papers import scales
from headwater.papers.table import Claim, PaperTable, load
from headwater.papers.table_plan import TablePlan, plan_table
from headwater.sweep import DataSummary

PAPERS = ("feddf", "fedeed")
PRESETS = [name for name in presets.names() if name.startswith(PAPERS) and name != "feddf_as_in_fedhead"]
TABLES = [name for name in papers.names() if name.startswith(PAPERS)]
QUICK = ("feddf/table3", "feddf/table7", "feddf/fig1", "feddf/fig4", "fedeed/table2")  # others test these cells, too
FIGURES = [1, 2, 3, 4, 5, 6, 8, *range(12, 18)]
THERE = {  # as in a directory without CIFAR-100, ImageNet-32 and STL-10
    "cifar10": DataSummary(50_000, 10_000, (3, 32, 32), 10),
    "tiny_imagenet32": DataSummary(8_000, 2_000, (3, 32, 32), 200),
    "ag_news": DataSummary(37_436, 7_600, (128,), 4, tokens=True),
    "sst2": DataSummary(67_349, 1_821, (128,), 2, tokens=True),
    "toy2d": DataSummary(900, 1_500, (2,), 3),
}


def ask(wanted: Sequence[tuple[Mapping[str, Any], bool]]) -> list[DataSummary]:
    nothing = DataSummary(absent="it is not there")
    return [THERE.get(section["reference" if reference else "name"], nothing) for section, reference in wanted]


@cache
def table(name: str) -> PaperTable:
    return load(name, scales.names())


@cache
def planned(name: str, scale: str) -> TablePlan:
    return plan_table(table(name), scales.find(scale), Path("somewhere"), ask, seeds=[0])


def cell(name: str, row: str, column: str) -> Config:
    """A cell at the paper's own scale."""
    found = planned(name, "paper")
    return found.cells[found.at[row, column, 0]].config


# -- what there is


def test_every_table_and_figure_has_a_file_and_a_preset() -> None:
    wanted = {f"fedeed/table{n}" for n in range(1, 10)}
    wanted |= {f"feddf/table{n}" for n in range(1, 9)} | {f"feddf/fig{n}" for n in FIGURES}
    assert wanted == set(TABLES)
    assert wanted <= set(PRESETS)
    assert all(table(name).preset == name for name in TABLES)


@pytest.mark.parametrize("name", chosen.first(TABLES, QUICK))
def test_every_cell_is_a_configuration(name: str) -> None:
    """The plan checks each of them; what the papers' data is replaced by is there."""
    found = planned(name, "paper")
    assert {cell.config.data.name for cell in found.cells} <= set(THERE)
    places = [(r, c) for r in table(name).rows for c in table(name).columns if table(name).has(r, c)]
    assert {(row.name, column.name) for row, column in places} == {(row, column) for row, column, _ in found.at}


@pytest.mark.parametrize("name", ["feddf/table3", "feddf/fig1", "feddf/fig4", "fedeed/table2"])
def test_a_scale_keeps_what_the_table_is_about(name: str) -> None:
    printed, small = (planned(name, scale) for scale in ("paper", "smoke"))
    assert small.at.keys() == printed.at.keys()
    assert len(small.cells) == len(printed.cells)
    if name == "feddf/fig1":  # the one round of the figure, as long as it is
        assert small.cells[0].config == printed.cells[0].config.merged({"data": {"test_fraction": 0.3333}})
        return
    assert all(cell.config.rounds >= 5 for cell in small.cells)
    untaught = [cell.config.server.get("steps") == 0 for cell in printed.cells]
    assert [cell.config.server.get("steps") == 0 for cell in small.cells] == untaught


@pytest.mark.parametrize("name", chosen.first(TABLES, QUICK))
def test_runs_are_shared_between_measures_only(name: str) -> None:
    """Two places have one run if and only if their columns differ in what is measured, or FedAvg has no student."""
    found, by_name = planned(name, "paper"), {column.name: column for column in table(name).columns}
    runs: dict[int, list[tuple[str, str]]] = {}
    for (row, column, seed), number in found.at.items():
        runs.setdefault(number, []).append((row, column))
        assert found.cells[number].config.seed == seed
    for places in runs.values():
        measures = [(row, table(name).measure(by_name[column])) for row, column in places]
        alike = len(set(measures)) == len(measures)
        assert alike or (name == "feddf/table7" and {column[:6] for _, column in places} == {"FedAvg"})


@pytest.mark.parametrize("name", ["feddf/table2", "fedeed/table9"])
def test_an_hour_is_enough_for_the_small_scale(name: str) -> None:
    """By the machinery's own estimate of a seed: all of the table's together take 60 minutes on two cores at most."""
    override = table(name).scale.get("small")
    seeds = override.seeds if override and override.seeds else 3
    assert planned(name, "small").seconds * seeds <= 2 * 60 * 60
    assert planned(name, "small").cells[0].config.model.name == planned(name, "paper").cells[0].config.model.name


# -- what is printed


def test_all_that_is_printed_is_there() -> None:
    """Every place that a printed table has, and nothing else; figures have no numbers."""
    own = {("feddf/table2", "FedDF, as coded")}
    own |= {("fedeed/table1", f"K = 1, clients{by}, unequal sizes") for by in ("", " by samples")}
    for name in TABLES:
        found = table(name)
        if "/fig" in name:
            assert not found.printed
            continue
        for row in found.rows:
            for column in found.columns:
                there = found.has(row, column) and (name, row.name) not in own
                assert ((row.name, column.name) in found.printed) == there, f"{name}: {row.name}, {column.name}"


PRINTED = {
    ("fedeed/table1", "K = 1, Dirichlet samples", "ensemble, alpha 0.1"): (80.25, 1.43),
    ("fedeed/table1", "K = 4, averages", "global model, alpha 0.1"): (70.74, 5.11),
    ("fedeed/table1", "K = 4, averages of 4 rounds", "ensemble, alpha 1"): (90.69, 0.19),
    ("fedeed/table2", "all, after 40 rounds", "global model, alpha 1"): (88.47, 0.04),
    ("fedeed/table2", "the designated one", "ensemble, alpha 0.1"): (81.39, 2.54),
    ("fedeed/table3", "SCAFFOLD", "communication"): (1.5, None),
    ("fedeed/table3", "FedBE", "teachers asked"): (19, None),
    ("fedeed/table4", "ResNet-20, FedAvg", "CIFAR-10, alpha 1"): (88.53, None),
    ("fedeed/table4", "ResNet-56, FedEED, R = 2", "CIFAR-100, alpha 1"): (65.28, None),
    ("fedeed/table4", "WRN-16-2, FedEED, R = 4", "CIFAR-100, alpha 0.1"): (63.05, None),
    ("fedeed/table5", "FedEED with SCAFFOLD", "8 active clients, alpha 0.1"): (76.51, None),
    ("fedeed/table6", "400 rounds of 10 epochs, FedDF", "alpha 0.1"): (78.92, None),
    ("fedeed/table7", "K = 3", "alpha 1"): (88.89, None),
    ("fedeed/table8", "FedEED, K = 7", "14 active clients, alpha 0.1"): (81.90, None),
    ("fedeed/table8", "FedDF", "20 active clients, alpha 1"): (88.12, None),
    ("fedeed/table9", "FedDF", "alpha 0.1"): (68.72, None),
    ("feddf/table1", "FedAvg, 1 epoch", "C 0.2, alpha 0.1"): (546, 191),
    ("feddf/table1", "FedProx, 40 epochs", "C 0.8, alpha 0.1"): (284, 130),
    ("feddf/table1", "FedDF, 40 epochs", "C 0.8, alpha 1"): (14, 2),
    ("feddf/table2", "FedProx, group norm", "CIFAR-100, alpha 0.1"): (35.74, None),
    ("feddf/table2", "FedDF, batch norm", "CIFAR-10, alpha 1"): (80.69, None),
    ("feddf/table3", "FedAvg, nobody dropped", "round 100"): (7.52, None),
    ("feddf/table3", "FedMA, nobody dropped", "round 20"): (41.56, None),
    ("feddf/table4", "FedDF, batch norm", "80 epochs"): (70.27, None),
    ("feddf/table5", "80 epochs", "from the last fused, alpha 0.1"): (67.88, None),
    ("feddf/table6", "Adam", "FedAvg, alpha 1"): (78.13, None),
    ("feddf/table7", "SGD", "FedDF, alpha 0.1"): (57.33, None),
    ("feddf/table8", "SGD with the pull", "FedAvg, alpha 1"): (76.11, None),
}


@pytest.mark.parametrize("at", PRINTED, ids=" ".join)
def test_printed_values(at: tuple[str, str, str]) -> None:
    name, *place = at
    found = table(name)
    assert (found.printed[place[0], place[1]], found.spread.get((place[0], place[1]))) == PRINTED[at]


def compared(found: PaperTable, claim: Claim) -> list[tuple[float, float]]:
    """All printed pairs that a claim is about: the better, the other."""
    rows, columns = ([each.name for each in part] for part in (found.rows, found.columns))
    by_row = claim.better in rows
    where = (claim.columns or columns) if by_row else (claim.rows or rows)
    places = [((claim.better, at), (other, at)) for other in claim.than for at in where]
    places = places if by_row else [tuple(place[::-1] for place in pair) for pair in places]  # type: ignore[misc]
    return [(found.printed[a], found.printed[b]) for a, b in places if {a, b} <= set(found.printed)]


@pytest.mark.parametrize("name", [name for name in TABLES if "/table" in name])
def test_claims_follow_from_the_printed_numbers(name: str) -> None:
    found = table(name)
    fewer = found.measure(found.columns[0]).lower_is_better
    assert found.order
    for claim in found.order:
        pairs = compared(found, claim)
        assert pairs, claim
        assert all(a < b if fewer else a > b for a, b in pairs), claim


# -- settings


def test_feddf_as_printed() -> None:
    config = cell("feddf/table1", "FedDF, 40 epochs", "C 0.8, alpha 0.1")
    assert (config.partition.participation, config.partition.options["alpha"], config.local["epochs"]) == (0.8, 0.1, 40)
    assert (config.partition.clients, config.partition.scheme, config.algorithm["by"]) == (
        20,
        "client-prior",
        "samples",
    )
    assert [table("feddf/table1").measure(c).text for c in table("feddf/table1").columns] == 3 * [
        "rounds_to:80",
        "rounds_to:75",
    ]
    assert cell("feddf/table3", "FedDF", "round 5").local["lr"] == 0.05
    assert cell("feddf/table3", "FedMA, nobody dropped", "round 5").local["epochs"] == 5
    dropping = cell("feddf/table3", "FedProx", "round 5")
    assert (dropping.method, dropping.algorithm["drop_worst"], dropping.server["steps"]) == ("feddf", True, 0)
    assert cell("feddf/table4", "FedAvg, group norm", "80 epochs").local["low_bit"] == "feedback"
    assert cell("feddf/table5", "40 epochs", "from the last fused, alpha 1").algorithm["init_from"] == "previous"
    clients = cell("feddf/table6", "Adam", "FedAvg, alpha 1").local
    assert (clients["optimizer"], clients["lr"]) == ("adam", 1e-3)
    assert cell("feddf/table7", "SWAG", "FedDF, alpha 1").algorithm["swag"] == 10
    pulled = [cell("feddf/table8", row, "FedAvg, alpha 1") for row in ("SGD", "SGD with the pull")]
    assert [(each.method, each.algorithm["mu"]) for each in pulled] == [("fedprox", 0.0), ("fedprox", 0.01)]


def test_feddfs_figures_as_printed() -> None:
    text = Config.load("feddf/fig3")
    assert (text.partition.clients, text.partition.participation, text.rounds) == (10, 1.0, 10)
    assert (text.model.name, text.local["lr"], text.local["epochs"]) == ("distilbert", 1e-5, 10)
    for column, epochs in (("AG News", 10), ("SST-2", 1)):
        half = cell("feddf/fig3", "FedDF", column)
        assert (half.local["epochs"], half.data.fraction, half.data.reference) == (epochs, 0.5, "unused")
        assert half.data.reference_size >= 0.5 * 67_349  # all of the other half
    few = [cell("feddf/fig6", row, "CIFAR-100") for row in ("10 classes", "1 % of the inputs", "100 steps")]
    assert [few[0].data.reference_classes, few[1].data.reference_fraction, few[2].server["steps"]] == [10, 0.01, 100]
    assert {each.partition.options["alpha"] for each in few} == {1.0}
    unlike = Config.load("feddf/fig4")
    assert (unlike.model.name, unlike.model.also[0]) == ("resnet20", "resnet32")
    assert unlike.model.also[1:] == ({"name": "shufflenetv2", "stem": "small"},)
    assert (unlike.rounds, unlike.local["epochs"], unlike.partition.clients) == (30, 80, 21)
    teachers = [column for column in table("feddf/fig4").columns if column.metric == "ensemble_accuracy"]
    assert [column.name for column in teachers] == [
        f"{data}, ensemble" for data in ("CIFAR-10", "CIFAR-100", "ImageNet-32")
    ]
    assert cell("feddf/fig4", "FedDF", "CIFAR-10, ensemble").algorithm["before_fusion"] is True
    large = cell("feddf/fig4", "FedDF", "ImageNet-32, ResNet-20").partition
    assert (large.clients, large.participation) == (150, 0.1)
    toy = Config.load("feddf/fig1")
    assert (toy.data.reference_size, toy.partition.clients, toy.model.options["hidden"]) == (60, 2, [32, 32])


@pytest.mark.thorough
def test_feddf_against_fedavg_is_figures_2_and_14() -> None:
    """The last accuracy of both methods, for every alpha, share of the data and number of local epochs."""
    for name in ("feddf/fig2", "feddf/fig14"):
        places = planned(name, "paper").at
        cells = {place: planned(name, "paper").cells[number].config for place, number in places.items()}
        assert {column.metric or table(name).metric for column in table(name).columns} == {"accuracy"}
        settings = [
            (c.method, c.partition.options["alpha"], c.data.fraction, c.local["epochs"]) for c in cells.values()
        ]
        every = product(("fedavg", "feddf"), (100.0, 1.0, 0.01), (1.0, 0.5), (1, 20, 40, 80, 160))
        assert sorted(settings) == sorted(every)


@pytest.mark.parametrize(("name", "alpha"), [("feddf/fig15", 100.0), ("feddf/fig16", 1.0), ("feddf/fig17", 0.01)])
def test_figures_15_to_17_have_four_panels(name: str, alpha: float) -> None:
    """a and c with both methods by round, b and d with FedDF before and after fusion."""
    found = planned(name, "paper")
    assert {cell.config.partition.options["alpha"] for cell in found.cells} == {alpha}
    assert {cell.config.eval_every for cell in found.cells} == {1}
    columns = {column.name: column for column in table(name).columns}
    for panel, share in {"a": 1.0, "b": 1.0, "c": 0.5, "d": 0.5}.items():
        mine = [column for column in columns if column.startswith(f"{panel}: ")]
        runs = [found.cells[number].config for (_, column, _), number in found.at.items() if column in mine]
        assert {run.data.fraction for run in runs} == {share}
        assert {run.method for run in runs} == ({"fedavg", "feddf"} if panel in "ac" else {"feddf"})
        shown = [columns[column].metric or "accuracy" for column in mine]
        assert shown == (["accuracy"] if panel in "ac" else ["before_fusion", "after_fusion"])
        assert {run.local["epochs"] for run in runs} == {1, 20, 40, 80, 160}
        assert all(run.algorithm.get("before_fusion") for run in runs if run.method == "feddf")


@pytest.mark.thorough
def test_only_averages_leave_sectors_in_fedeeds_own_rows() -> None:
    """But where clients teach, and where what clients send is counted."""
    for name in (name for name in TABLES if name.startswith("fedeed/")):
        for cell in planned(name, "paper").cells:
            if cell.config.method in ("fedeed", "frame"):
                averaged = cell.config.algorithm["ensemble"].startswith("aggregated")
                assert cell.config.algorithm["through_sectors"] == (averaged and name != "fedeed/table3")


def test_what_the_authors_program_does_otherwise() -> None:
    for name in ("feddf_code", *(name for name in PRESETS if name.startswith("feddf/") and "as-coded" in name)):
        config = Config.load(name)
        assert (config.partition.scheme, config.algorithm["by"]) == ("blocked", "uniform")
        assert (config.algorithm["outlier_rule"], config.server["batch"]) == (True, 64)
    assert Config.load("feddf/fig5-as-coded").data.reference_noise == "gaussian"
    assert Config.load("feddf/fig4-as-coded").algorithm["skip_inactive"] is True


def test_fedeed_as_printed() -> None:
    config = Config.load("fedeed/table4")
    assert (config.rounds, config.partition.clients, config.partition.participation) == (100, 20, 0.4)
    wanted = {"epochs": 40, "batch": 64, "optimizer": "sgd", "lr": 0.8, "weight_decay": 0.0}
    assert {key: config.local[key] for key in wanted} == wanted
    wanted = {"steps": 5000, "batch": 256, "optimizer": "sgd", "lr": 0.1, "temperature": 4.0, "patience": None}
    assert {key: config.server[key] for key in wanted} == wanted
    assert (config.algorithm["cohorts"], config.algorithm["kept"], config.data.reference) == (4, 1, "cifar100")
    assert cell("fedeed/table4", "WRN-16-2, FedEED, R = 4", "CIFAR-10, alpha 1").algorithm["kept"] == 4
    lengths = [
        (each.rounds, each.local["epochs"], each.server["steps"])
        for row in table("fedeed/table6").rows
        if "FedEED" in row.name
        for each in [cell("fedeed/table6", row.name, "alpha 1")]
    ]
    assert lengths == [(25, 160, 20_000), (100, 40, 5_000), (400, 10, 1_250)]
    inside = cell("fedeed/table5", "FedEED with FedProx", "8 active clients, alpha 1")
    assert (inside.method, inside.algorithm["local"], inside.algorithm["prox_mu"]) == ("frame", "fedprox", 0.001)
    assert (inside.algorithm["cohorts"], inside.algorithm["ensemble"]) == (4, "aggregated_temporal")


def test_feddf_inside_fedeeds_tables() -> None:
    """Table 4's is trained as FedEED; table 9 goes there from the original, step by step."""
    theirs = cell("fedeed/table4", "ResNet-56, FedDF", "CIFAR-10, alpha 1")
    assert (theirs.method, theirs.model.name, theirs.algorithm["drop_worst"]) == ("feddf", "resnet56", False)
    assert (theirs.server["optimizer"], theirs.server["temperature"], theirs.server["patience"]) == ("sgd", 4.0, None)
    steps = [cell("fedeed/table9", row.name, "alpha 1") for row in table("fedeed/table9").rows]
    assert [each.method for each in steps] == ["feddf", "feddf", "feddf", "fedeed"]
    assert {each.model.name for each in steps} == {"resnet20"}
    assert {each.data.validation for each in steps} == {0.1}
    assert [each.local["lr"] for each in steps] == [0.1, 0.8, 0.8, 0.8]
    assert [each.server["temperature"] for each in steps] == [1.0, 4.0, 4.0, 4.0]
    assert [each.server["patience"] for each in steps] == [1000, 1000, None, None]
    assert [each.algorithm.get("drop_worst") for each in steps] == [True, True, False, None]
