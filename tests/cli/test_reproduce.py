"""`headwater reproduce`: a table from one command, and the same command again."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.cli.app import main
from headwater.config import Config
from headwater.training.experiment import prepare
from headwater.training.loop import train

Call = Callable[..., Any]
HEED = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
CODE = f"{HEED}; from headwater.cli.app import main; sys.exit(main())"

TABLE = """# Two methods, and one that cannot end well
preset = "base.toml"
seeds = [0, 1]
note = "by hand"

[[row]]
name = "FedAvg"
set = { algorithm = { name = "fedavg" } }
[[row]]
name = "FedHEAD"
[[row]]
name = "Too fast"
set = { local = { lr = 1e38, optimizer = "sgd" }, faults = { bad_update = "stop" } }

[[column]]
name = "alpha 1"
set = { partition = { alpha = 1.0 } }
[[column]]
name = "alpha 0.3"
set = { partition = { alpha = 0.3 } }
rows = ["FedAvg", "FedHEAD"]
[[column]]
name = "model"
set = { partition = { alpha = 1.0 } }
metric = "parameters_held"
unit = ""

[printed]
FedAvg = [80, 70, nan]
FedHEAD = [90, 80, nan]

[[order]]
better = "FedHEAD"
than = ["FedAvg"]

[scale.smoke]
seeds = 2
"""


@pytest.fixture(scope="module")
def file(npz: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    base = folder / "base.toml"
    base.write_text(
        f'rounds = 4\n[data]\nname = "{npz}"\n[partition]\nclients = 4\nsectors = 2\n'
        '[model]\nname = "mlp"\nhidden = [8]\n[local]\nepochs = 2\n'
    )
    path = folder / "mine.toml"
    path.write_text(TABLE)
    return path


def words(file: Path, out: Path) -> list[str]:
    return ["reproduce", str(file), "--out", str(out), "--workers", "1"]


@pytest.fixture(scope="module")
def out(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished table; one of its rows has failed, so the status is not 0."""
    folder = tmp_path_factory.mktemp("done") / "t"
    assert main([*words(file, folder), "--quiet", "--json"]) == 2
    return folder


@pytest.fixture
def facts(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "table.json").read_text())
    return found


def test_every_place_has_its_numbers(out: Path, facts: dict[str, Any]) -> None:
    places = {(each["row"], each["column"]): each for each in facts["cells"]}
    assert len(places) == 3 * 2 + 2  # one column is not for all
    first = places["FedAvg", "alpha 1"]
    values = list(first["values"].values())
    assert len(values) == 2
    assert first["ours"] == pytest.approx(sum(values) / 2)
    half = 12.706204736432095 * abs(values[0] - values[1]) / 2  # Student's t with one degree of freedom
    assert (first["low"], first["high"]) == pytest.approx((first["ours"] - half, first["ours"] + half))
    assert first["difference"] == pytest.approx(first["ours"] - 80)
    run = out / first["runs"]["0"]
    assert json.loads((run / "result.json").read_text())["accuracy"] * 100 == values[0]
    assert places["FedAvg", "model"]["ours"] == (4 + 1) * 8 + (8 + 1) * 3


def test_a_cell_is_the_run_that_its_configuration_gives(out: Path) -> None:
    folder = out / "cells/FedHEAD/alpha-0.3/seed-1"
    config = Config.from_toml((folder / "config.toml").read_text())
    assert (config.method, config.partition.options["alpha"], config.seed, config.rounds) == ("fedhead", 0.3, 1, 4)
    alone = train(prepare(config))
    assert alone.result["model_sha256"] == json.loads((folder / "result.json").read_text())["model_sha256"]


def test_columns_with_the_same_settings_share_a_run(out: Path, facts: dict[str, Any]) -> None:
    runs = {each["column"]: each["runs"] for each in facts["cells"] if each["row"] == "FedAvg"}
    assert runs["model"] == runs["alpha 1"]
    assert not (out / "cells/FedAvg/model").exists()


def test_what_failed_is_told_and_does_not_end_the_table(out: Path, facts: dict[str, Any]) -> None:
    assert list(facts["failed"]) == ["Too fast · alpha 1 · seed 0", "Too fast · alpha 1 · seed 1"]
    assert all("gave numbers that are not finite" in sentence for sentence in facts["failed"].values())
    page = (out / "table.md").read_text(encoding="utf-8")
    assert "| Too fast | failed |  | failed |" in page
    assert "FedHEAD better than FedAvg: " in page
    assert (out / "table.csv").read_text().count("\n") == 1 + 8


@pytest.mark.thorough
def test_again_nothing_that_is_finished_is_run(
    call: Call, out: Path, file: Path, snapshot: Callable[[Path], dict[str, bytes]]
) -> None:
    table = {name: text for name, text in snapshot(out).items() if name.startswith("table")}
    before = {path: path.stat().st_mtime_ns for path in out.rglob("cells/*/*/*/*.json*")}
    told = call(*words(file, out))
    assert told.status == 2  # what failed was tried again, and failed again
    assert "10 runs, of which 8 are finished" in told.err
    assert "FedAvg · alpha 1" not in told.err
    assert "Too fast · alpha 1 · seed 0 failed: " in told.err
    assert "2 of 10 runs failed" in told.err
    kept = {path: at for path, at in before.items() if "Too" not in str(path)}
    assert kept
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert {name: text for name, text in snapshot(out).items() if name.startswith("table")} == table


@pytest.mark.thorough
def test_other_settings_in_the_same_place_are_refused_unless_forced(call: Call, out: Path, file: Path) -> None:
    told = call(*words(file, out), "--rounds", 2)
    assert told.status == 2
    assert "holds another run (rounds is 4 there and 2 now); choose another --out" in told.err
    assert json.loads((out / "cells/FedAvg/alpha-1/seed-0/result.json").read_text())["rounds"] == 4


@pytest.mark.thorough
def test_it_begins_with_what_there_is_to_do(call: Call, file: Path, tmp_path: Path) -> None:
    told = call(*words(file, tmp_path), "--seeds", "3", "--set", "local.lr=0.01", "--rounds", 1)
    assert told.status == 0  # the rate is no longer too high
    assert "3 rows, 3 columns, 1 seed: 5 runs, about " in told.err
    assert "scale smoke: " in told.err
    assert "5/5 " in told.err
    assert "With one seed there is no interval" in told.out
    assert {path.name for path in tmp_path.rglob("seed-*")} == {"seed-3"}
    forced = call(*words(file, tmp_path), "--seeds", "3", "--set", "local.lr=0.02", "--rounds", 1, "--force", "--quiet")
    assert (forced.status, forced.err) == (0, "")
    config = Config.from_toml((tmp_path / "cells/FedAvg/alpha-1/seed-3/config.toml").read_text())
    assert config.local["lr"] == 0.02


@pytest.mark.parametrize(
    ("given", "sentences"),
    [
        (["fedhaed"], ["there is no paper or table called 'fedhaed'", "did you mean 'fedhead'"]),
        (["fedhead/tabel4"], ["fedhead has no table", "did you mean 'fedhead/table4'"]),
        (["fedhead/table4", "--scale", "smal"], ["there is no scale 'smal'", "did you mean 'small'"]),
        (["nowhere.toml"], ["there is no file nowhere.toml"]),
        (["fedhead/table4", "--seeds", "0,0"], ["--seeds names 0 twice"]),
    ],
)
def test_a_wrong_name_is_refused_with_the_nearest(call: Call, given: list[str], sentences: list[str]) -> None:
    told = call("reproduce", *given)
    assert told.status == 2
    assert all(sentence in told.err for sentence in sentences)


def test_a_wrong_file_is_refused_in_a_sentence(call: Call, tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('preset = "demo"\n[[row]]\nname = "A"\n')
    told = call("reproduce", tmp_path / "t.toml")
    assert told.status == 2
    assert "t.toml: a table needs at least one [[column]]" in told.err


def test_the_list_needs_no_torch() -> None:
    script = "from headwater.cli.app import main; main(['reproduce', '--list'])"
    code = f"import sys; {script}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "fedhead/table2" in done.stdout
    assert "FedHEAD, table 2" in done.stdout


def test_the_list_of_one_paper(call: Call) -> None:
    rows = json.loads(call("reproduce", "mtgc", "--list", "--json").out)
    assert rows
    assert all(row["name"].startswith("mtgc/") and row["summary"] for row in rows)


@pytest.mark.thorough
def test_an_interrupt_is_carried_on_by_the_command_that_it_says(file: Path, tmp_path: Path) -> None:
    """Ctrl-C in a real process: status 130 and a command; that command gives the table of undisturbed runs."""
    where = tmp_path / "with space"
    long = file.with_name("long.toml")
    kept = file.read_text().partition('[[row]]\nname = "Too fast"')
    long.write_text(kept[0] + kept[2].partition("\n\n")[2])
    given = ["reproduce", str(long), "--out", str(where), "--workers", "1", "--seeds", "0", "--rounds", "60"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", CODE, *given], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "1/4 " in line:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "Traceback" not in rest
    said = rest.splitlines()[-1]
    assert "of 4 runs are finished and kept" in said
    command = shlex.split(said.partition("carry on with: ")[2])
    assert command[:3] == ["headwater", *given[:2]]
    assert sorted(command[3:]) == sorted(given[2:])
    before = {path: path.stat().st_mtime_ns for path in where.rglob("result.json")}
    assert 1 <= len(before) < 4
    assert main([*command[1:], "--quiet"]) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    for path in where.rglob("result.json"):
        config = Config.from_toml((path.parent / "config.toml").read_text())
        assert json.loads(path.read_text())["model_sha256"] == train(prepare(config)).result["model_sha256"]
    assert len(json.loads((where / "table.json").read_text())["cells"]) == 6
