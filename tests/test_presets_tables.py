"""The tables of FedHEAD, FedHKD and MTGC: sound files, the papers' numbers, and claims that these numbers support."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from itertools import product
from typing import Any

import pytest

import chosen
from headwater import presets
from headwater.config import Config, catalog
from headwater.config.plain_tables import merge
from headwater.papers import scales
from headwater.papers.table import load

PAPERS = {
    "fedhead": ("table1", "table2", "table3", "table4", "table5", "table6", "table7"),
    "fedhkd": ("table1", "table2"),
    "mtgc": ("settings", "ablations", "datasets"),
}
TABLES = [f"{paper}/{table}" for paper, tables in PAPERS.items() for table in tables]
PRINTED = [name for name in TABLES if not name.startswith("mtgc/")]
METRICS = ("accuracy", "local_accuracy", "parameters_held", "seconds_per_client", "public_samples", "round_trips")
OWN = ("FedHEAD, best kept",)  # rows that no paper has
Table = dict[str, Any]


def table(name: str) -> Table:
    return tomllib.loads((files("headwater.papers") / f"{name}.toml").read_text(encoding="utf-8"))


def names(found: Table, part: str) -> list[str]:
    return [entry["name"] for entry in found[part]]


def value(found: Table, row: str, column: str) -> float:
    return float(found["printed"][row][names(found, "column").index(column)])


def configs(found: Table) -> dict[tuple[str, str], Config]:
    """Every cell: the row's preset or the table's, over it the row's settings, over these the column's."""
    made, known = {}, {}
    for row, column in product(found["row"], found["column"]):
        preset, asked = row.get("preset", found["preset"]), merge(row.get("set", {}), column.get("set", {}))
        key = (row["name"], json.dumps(asked, sort_keys=True))
        if key not in known:
            known[key] = cell(preset, asked)
        made[row["name"], column["name"]] = known[key]
    return made


def cell(preset: str, asked: Table) -> Config:
    """Options of a method that the row does not have are for other rows."""
    method = asked.get("algorithm", {}).get("name") or Config.load(preset).method
    own = catalog.own("algorithm", method) or {}
    options = {key: value for key, value in asked.get("algorithm", {}).items() if key in ("name", *own)}
    fitting = {**asked, "algorithm": options}
    return Config.load(preset, **{f"{part}__{key}": v for part, keys in fitting.items() for key, v in keys.items()})


def pick(values: Table, wanted: Table) -> Table:
    return {key: values.get(key) for key in wanted}


@pytest.mark.parametrize("name", TABLES)
def test_files_are_sound(name: str) -> None:
    found = table(name)
    rows, columns = names(found, "row"), names(found, "column")
    assert found["preset"] in presets.names()
    assert all(row.get("preset", found["preset"]) in presets.names() for row in found["row"])
    assert len(set(rows)) == len(rows)
    assert len(set(columns)) == len(columns)
    assert all(column.get("metric", found["metric"]) in METRICS for column in found["column"])
    if "printed" in found:
        assert list(found["printed"]) == [row for row in rows if row not in OWN]
        assert all(len(values) == len(columns) for values in found["printed"].values())
    assert load(name, scales.names()).title


@pytest.mark.parametrize("name", chosen.first(TABLES, TABLES[::4]))
def test_every_cell_is_a_configuration_of_its_own(name: str) -> None:
    """No two rows ask for the same in a column; columns that ask for the same have different metrics."""
    found = table(name)
    made = configs(found)
    metric = {column["name"]: column.get("metric", found["metric"]) for column in found["column"]}
    cells = {(config.to_toml(), metric[column]) for (_, column), config in made.items()}
    assert len(cells) == len(made)


@pytest.mark.parametrize("name", PRINTED)
def test_claims_are_what_the_numbers_say(name: str) -> None:
    found = table(name)
    assert found["order"]
    for claim in found["order"]:
        better, by_row = claim["better"], claim["better"] in names(found, "row")
        places = claim.get("columns" if by_row else "rows") or names(found, "column" if by_row else "row")
        for worse, at in product(claim["than"], places):
            cells = ((better, at), (worse, at)) if by_row else ((at, better), (at, worse))
            less = found["metric"] == "round_trips"
            assert (value(found, *cells[0]) < value(found, *cells[1])) is less, cells
            assert value(found, *cells[0]) != value(found, *cells[1]), cells


@pytest.mark.parametrize("name", [name for name in PRINTED if name.startswith("fedhead/")])
def test_no_claim_of_fedhead_is_left_out(name: str) -> None:
    """Who is better than whom among FedHEAD, FedHEAD+ and the others, wherever the numbers say so, and where not."""
    found = table(name)
    if "FedMD" not in names(found, "row"):
        return
    claimed = {
        (claim["better"], worse, column)
        for claim in found["order"]
        for worse in claim["than"]
        for column in claim.get("columns") or names(found, "column")
    }
    beaten = {
        "FedHEAD": ("FedAvg", "FedHKD", "FedMD", "FedDF", "FedHEAD+"),
        "FedHEAD+": ("FedMD", "FedDF", "FedHEAD"),
        "FedDF": ("FedHEAD",),
    }
    for better, others in beaten.items():
        for worse in others:
            for column in names(found, "column"):
                holds = value(found, better, column) > value(found, worse, column)
                assert ((better, worse, column) in claimed) == holds


@pytest.mark.parametrize(
    ("name", "row", "column", "printed"),
    [
        ("fedhead/table2", "FedAvg", "SVHN, alpha 0.1", 70.24),
        ("fedhead/table2", "FedHEAD", "CIFAR-10, alpha 0.1", 48.81),
        ("fedhead/table2", "FedMD", "SVHN, alpha 1", 88.18),
        ("fedhead/table2", "FedHEAD+", "CIFAR-100, alpha 1", 34.98),
        ("fedhead/table3", "FedHKD", "AG News, alpha 1", 88.53),
        ("fedhead/table3", "FedHEAD+", "SST-2, alpha 0.1", 87.91),
        ("fedhead/table3", "FedDF", "SST-2, alpha 1", 87.15),
        ("fedhead/table4", "FedAvg", "75 applications, alpha 0.1", 63.51),
        ("fedhead/table4", "FedHEAD+", "141 applications, alpha 1", 79.22),
        ("fedhead/table5", "FedHEAD+", "20 clients", 63.76),
        ("fedhead/table5", "FedDF", "60 clients", 58.81),
        ("fedhead/table6", "alpha 0.1, 20 clients", "1 sector", 51.19),
        ("fedhead/table6", "alpha 0.1, 40 clients", "8 sectors", 49.19),
        ("fedhead/table6", "alpha 1, 60 clients", "2 sectors", 57.82),
        ("fedhead/table7", "largest client", "CIFAR-10", 46.62),
        ("fedhead/table7", "drawn anew", "CIFAR-100", 31.45),
        ("fedhkd/table1", "FedAvg", "SVHN, 10 clients, local", 67.66),
        ("fedhkd/table1", "FedMD", "SVHN, 50 clients, global", 80.85),
        ("fedhkd/table1", "Moon", "CIFAR-10, parameters", 33.627),
        ("fedhkd/table1", "FedAlign", "CIFAR-10, seconds a client and round", 36.24),
        ("fedhkd/table1", "FedHKD*", "CIFAR-10, 50 clients, local", 66.75),
        ("fedhkd/table1", "FedGen", "CIFAR-100, parameters", 11.333),
        ("fedhkd/table1", "FedHKD", "CIFAR-100, 20 clients, global", 27.95),
        ("fedhkd/table2", "FedAvg", "SVHN, alpha 0.2, global", 25.81),
        ("fedhkd/table2", "FedProto", "CIFAR-10, alpha 5, local", 48.02),
        ("fedhkd/table2", "FedHKD", "SVHN, alpha 5, global", 80.83),
    ],
)
def test_numbers_are_the_papers(name: str, row: str, column: str, printed: float) -> None:
    assert value(table(name), row, column) == printed


def test_tables_agree_where_they_overlap() -> None:
    """FedHEAD on CIFAR-10 at alpha 0.1, and at 1 with 20 clients and 2 sectors, is printed in several tables."""
    two, six, seven = (table(f"fedhead/table{n}") for n in (2, 6, 7))
    assert value(two, "FedHEAD", "CIFAR-10, alpha 0.1") == value(six, "alpha 0.1, 20 clients", "2 sectors")
    assert value(two, "FedHEAD", "CIFAR-10, alpha 1") == value(six, "alpha 1, 20 clients", "2 sectors")
    for data in ("SVHN", "CIFAR-10", "CIFAR-100"):
        assert value(two, "FedHEAD", f"{data}, alpha 0.1") == value(seven, "drawn anew", data)


def test_cells_that_are_one_setting_are_one_configuration() -> None:
    """The same cells, as configurations."""
    two, six, seven = (configs(table(f"fedhead/table{n}")) for n in (2, 6, 7))
    for alpha in ("0.1", "1"):
        assert two["FedHEAD", f"CIFAR-10, alpha {alpha}"] == six[f"alpha {alpha}, 20 clients", "2 sectors"]
    for data in ("SVHN", "CIFAR-10", "CIFAR-100"):
        assert two["FedHEAD", f"{data}, alpha 0.1"] == seven["drawn anew", data]


def test_sizes() -> None:
    """Methods × settings as printed; two rows more than the papers have, and said to be so."""
    sizes = {name: (len(found["row"]), len(found["column"])) for name in TABLES for found in [table(name)]}
    assert sizes == {
        "fedhead/table1": (4, 3),
        "fedhead/table2": (6 + 1, 3 * 2),
        "fedhead/table3": (6 + 1, 2 * 2),
        "fedhead/table4": (6 + 1, 2 * 2),
        "fedhead/table5": (6 + 1, 3),
        "fedhead/table6": (2 * 3, 4),
        "fedhead/table7": (2, 3),
        "fedhkd/table1": (9 + 1, 3 * (2 * 3 + 3)),
        "fedhkd/table2": (9 + 1, 2 * 2 * 2),
        "mtgc/settings": (6, 3),
        "mtgc/ablations": (4, 3),
        "mtgc/datasets": (6, 4),
    }


@pytest.mark.parametrize("name", ["fedhead/table2", "fedhead/table3", "fedhead/table4", "fedhead/table5"])
def test_fedheads_rows_are_its_presets(name: str) -> None:
    """What a table says of the methods beside FedHEAD is what their presets say."""
    found = table(name)
    first = names(found, "column")[0]
    made = configs(found)
    flavours = {"FedHKD": "fedhead/fedhkd", "FedMD": "fedhead/fedmd", "FedDF": "feddf_as_in_fedhead"}
    for row, preset in flavours.items():
        wanted = Config.load(preset)
        known = {k: v for k, v in wanted.algorithm.items() if k != "pretrain_epochs"}  # depends on the reference set
        assert pick(made[row, first].algorithm, known) == known
        assert (made[row, first].local, made[row, first].server) == (wanted.local, wanted.server)
    stages = {row: (c.local, c.sector, c.server) for (row, column), c in made.items() if column == first}
    assert stages["FedHEAD+"][2] == stages["FedDF"][2]
    assert stages["FedHEAD+"][:2] == stages["FedHEAD"][:2]
    assert stages["FedHEAD, best kept"][1] == stages["FedHEAD"][1] | {"restore": "best_or_init"}


def test_fedhkds_cells() -> None:
    """10, 20 and 50 clients with as many hundredths of the data; the net follows the data, not the method."""
    made = configs(table("fedhkd/table1"))
    for (row, column), config in made.items():
        data = column.split(", ")[0]
        assert config.data.fraction == config.partition.clients / 100
        net = ("shufflenetv2", 32) if data == "SVHN" else ("resnet18", 64)
        assert (config.model.name, config.model.options["features"]) == net
        assert config.partition.options["alpha"] == 0.5
        public = 0.75 * (73_257 if data == "SVHN" else 50_000) * config.data.fraction / config.partition.clients
        if row == "FedMD":
            assert config.data.reference_size == int(public)
        assert config.data.reference == "unused"  # so that the clients' data does not depend on it
        assert (config.model.projection == 0) == (row == "Moon")
    assert {config.partition.clients for config in made.values()} == {10, 20, 50}
    alphas = {column: c.partition.options["alpha"] for (_, column), c in configs(table("fedhkd/table2")).items()}
    assert alphas == {column: float(column.split(", ")[1].removeprefix("alpha ")) for column in alphas}


@pytest.mark.parametrize("name", chosen.first(["fedhkd/table1", "fedhkd/table2"], ["fedhkd/table2"]))
def test_fedhkds_rows_train_as_their_presets(name: str) -> None:
    """The printed schedule, epochs and batch are those of the presets in every cell."""
    found = table(name)
    presets = {row["name"]: row.get("preset", found["preset"]) for row in found["row"]}
    for (row, _), config in configs(found).items():
        wanted = Config.load(presets[row])
        assert (config.local, config.rounds) == (wanted.local, wanted.rounds)
        assert config.partition.scheme == wanted.partition.scheme
        assert config.partition.local_test == wanted.partition.local_test


def test_mtgcs_cells() -> None:
    made = configs(table("mtgc/settings"))
    assert {c.partition.options["setting"] for c in made.values()} == {"both", "clients", "sectors"}
    assert {c.algorithm["sector_rounds"] for c in made.values()} == {30}
    first = "sectors and clients unlike"
    starts = [made[row, first].algorithm["z_init"] for row in ("MTGC", "MTGC, as coded")]
    assert starts == ["gradient", "zero"]
    nets = {column: c.model.name for (_, column), c in configs(table("mtgc/datasets")).items()}
    assert nets == {"CIFAR-10": "mtgc_cnn", "Fashion-MNIST": "mlp", "EMNIST letters": "mlp", "CIFAR-100": "resnet18"}
