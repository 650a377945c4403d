"""`headwater run` and `headwater resume`, end to end on a small data set."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.config import Config
from headwater.training.experiment import prepare
from headwater.training.loop import train

Call = Callable[..., Any]
FILES = {"config.toml", "rounds.jsonl", "result.json", "model.safetensors", "partition.json", "report.html"}
TIMES = {"seconds"}


def result(folder: Path) -> dict[str, Any]:
    return {k: v for k, v in json.loads((folder / "result.json").read_text()).items() if k not in TIMES}


def test_it_leaves_the_files_and_shows_the_result(call: Call, small: tuple[str, ...], tmp_path: Path) -> None:
    told = call("run", *small, "--rounds", 2, "--out", tmp_path / "a")
    assert (told.status, told.err) == (0, "")
    assert {path.name for path in (tmp_path / "a").iterdir()} > FILES
    for words in (
        "accuracy",
        "95 % interval over the test set",
        "best round",
        "server – sectors",
        "round trips",
        "report.html",
    ):
        assert words in told.out


def test_it_tells_of_personal_models_privacy_and_what_went_wrong(
    call: Call, small: tuple[str, ...], tmp_path: Path
) -> None:
    """FedHKD with a threshold that no class passes; then a rate that is far too large, left out and stopped."""
    own = ("--set", "partition.local_test=0.2", "--set", "algorithm.nu=1.0", "--set", "partition.alpha=100")
    told = call("run", "fedhkd", *small, *own, "--rounds", 2, "--out", tmp_path / "a")
    for words in (
        "mean over clients, from",
        "Representations only: nothing was released",
        "this run is the same as fedavg",
    ):
        assert words in " ".join(told.out.split())
    far = ("--set", "local.optimizer=sgd", "--set", "local.lr=1e30", "--rounds", 1)
    assert call("run", "fedavg", *small, *far, "--out", tmp_path / "b").status == 0
    assert json.loads((tmp_path / "b/rounds.jsonl").read_text())["bad_updates"][0]["task"] == "local_train"
    stopped = call("run", "fedavg", *small, *far, "--set", "faults.bad_update=stop", "--out", tmp_path / "c")
    assert stopped.status == 2
    assert "fedavg: local_train at c" in stopped.err
    assert "local.lr = 1e+30" in stopped.err


def test_json_is_all_that_stands_on_standard_output(call: Call, small: tuple[str, ...], tmp_path: Path) -> None:
    told = call("run", "fedavg", *small, "--rounds", 1, "--out", tmp_path / "a", "--json")
    facts = json.loads(told.out)
    assert (facts["algorithm"], facts["rounds"]) == ("fedavg", 1)
    assert facts == json.loads((tmp_path / "a/result.json").read_text())


def test_the_default_directory_numbers_itself(
    call: Call, small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loud = [word for word in small if word != "--quiet"]
    told = call("run", "fedavg", *loud, "--rounds", 1)
    assert "results go to runs/fedavg-small-001\n" in told.err
    for seed in (0, 3):  # the same once more, and another
        assert call("run", "fedavg", *small, "--rounds", 1, "--seed", seed).status == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        *(f"fedavg-small-{number:03}" for number in (1, 2, 3)),
        "latest",
    ]
    assert os.readlink("runs/latest") == "fedavg-small-003"
    shown = call("resume", "--json", "-q")
    assert (shown.status, json.loads(shown.out)["seed"]) == (0, 3)
    assert "runs/fedavg-small-003 already holds this run" in shown.err


def test_resume_without_a_directory_and_without_runs(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = call("resume")
    assert (told.status, "name the directory of a run" in told.err) == (2, True)


class TestStart:
    """--from: the trained model of another run."""

    @pytest.mark.thorough
    def test_it_starts_there_and_says_so(self, call: Call, small: tuple[str, ...], tmp_path: Path) -> None:
        call("run", "fedavg", *small, "--rounds", 3, "--out", tmp_path / "a")
        words = ("run", "fedprox", *small, "--rounds", 2, "--from", tmp_path / "a")
        assert call(*words, "--out", tmp_path / "b").status == 0
        assert call(*words, "--engine", "pool", "--workers", 2, "--out", tmp_path / "c").status == 0
        first, warm = result(tmp_path / "a"), result(tmp_path / "b")
        assert warm["start"] == {"path": str(tmp_path / "a"), "model_sha256": first["model_sha256"]}
        assert warm["model_sha256"] == result(tmp_path / "c")["model_sha256"]
        call("run", "fedprox", *small, "--rounds", 2, "--out", tmp_path / "cold")
        assert warm["model_sha256"] != result(tmp_path / "cold")["model_sha256"]
        assert "start" not in first

    def test_its_configuration_repeats_it_unless_that_model_has_changed(
        self, call: Call, small: tuple[str, ...], tmp_path: Path
    ) -> None:
        call("run", "fedavg", *small, "--rounds", 1, "--out", tmp_path / "a")
        call(
            "run", "fedavg", *small, "--rounds", 1, "--from", tmp_path / "a/model.safetensors", "--out", tmp_path / "b"
        )
        assert call("run", tmp_path / "b/config.toml", "-q", "--out", tmp_path / "c").status == 0
        assert result(tmp_path / "b")["model_sha256"] == result(tmp_path / "c")["model_sha256"]
        call("run", "fedavg", *small, "--rounds", 2, "--out", tmp_path / "a", "--force")
        told = call("run", tmp_path / "b/config.toml", "-q", "--out", tmp_path / "d")
        assert (told.status, "holds another model than when this run began" in told.err) == (2, True)

    def test_another_architecture_is_refused(self, call: Call, small: tuple[str, ...], tmp_path: Path) -> None:
        call("run", "fedavg", *small, "--rounds", 1, "--set", "model.name=mlp", "--out", tmp_path / "a")
        for sets, words in (
            (("model.name=linear",), "holds a 'mlp', and this run trains a 'linear'"),
            (("model.name=mlp", "model.hidden=[7]"), "has shape (200, 4)"),
        ):
            chosen = [word for pair in sets for word in ("--set", pair)]
            told = call("run", "fedavg", *small, *chosen, "--from", tmp_path / "a", "--out", tmp_path / "b")
            assert told.status == 2
            assert words in told.err
            assert not (tmp_path / "b").exists()

    def test_without_a_single_model_or_any_it_is_refused(
        self, call: Call, small: tuple[str, ...], tmp_path: Path
    ) -> None:
        call("run", "local", *small, "--rounds", 1, "--out", tmp_path / "a")
        told = call("run", "fedavg", *small, "--from", tmp_path / "a", "--out", tmp_path / "b")
        assert (told.status, "models and no global one" in told.err) == (2, True)
        told = call("run", "fedavg", *small, "--from", tmp_path / "none", "--out", tmp_path / "b")
        assert (told.status, "--from: there is no" in told.err) == (2, True)


def test_show_prints_the_configuration_and_runs_nothing(
    call: Call, small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = call("run", "demo", *small, "--seed", 4, "--show")
    assert told.status == 0
    assert list(tmp_path.iterdir()) == []
    lines = told.out.splitlines()
    assert "seed = 4  # from an option" in lines
    assert "epochs = 1  # from --set" in lines
    assert any(line.endswith("# from demo") for line in lines)
    assert 'name = "mlp"  # chosen to suit the data and the method' in lines
    parsed = Config.from_toml(told.out)
    assert parsed.partition.clients == 4
    assert json.loads(call("run", *small, "--show", "--json").out)["partition"]["clients"] == 4


def test_show_without_the_data_leaves_out_what_follows_from_it(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWATER_DATA", str(tmp_path))
    told = call("run", "fedavg", "--set", "data.name=cifar10", "--show")
    assert told.status == 0
    assert "that cannot be read" in told.err
    assert 'name = "cifar10"  # from --set' in told.out


def test_its_configuration_repeats_it(call: Call, small: tuple[str, ...], tmp_path: Path) -> None:
    call("run", *small, "--rounds", 2, "--set", "sector.patience=none", "--out", tmp_path / "a")
    told = call("run", tmp_path / "a/config.toml", "--out", tmp_path / "b", "--quiet")
    assert told.status == 0
    assert result(tmp_path / "a") == result(tmp_path / "b")
    assert (tmp_path / "a/config.toml").read_text() == (tmp_path / "b/config.toml").read_text()


def test_progress_is_a_plain_line_a_round_where_there_is_no_terminal(
    call: Call, small: tuple[str, ...], tmp_path: Path
) -> None:
    loud = [word for word in small if word != "--quiet"]
    told = call("run", "fedavg", *loud, "--rounds", 2, "--out", tmp_path / "a")
    lines = told.err.splitlines()
    assert lines[0].startswith("reading ")
    assert [line.split("  ")[0] for line in lines if "round" in line] == ["fedavg: round 1/2", "fedavg: round 2/2"]
    assert "\x1b" not in told.err


class TestADirectoryInUse:
    def test_the_same_finished_run_is_shown_and_left_alone(
        self, call: Call, small: tuple[str, ...], tmp_path: Path, snapshot: Callable[[Path], dict[str, bytes]]
    ) -> None:
        words = ("run", "fedavg", *small, "--rounds", 1, "--out", tmp_path / "a")
        first = call(*words)
        before = snapshot(tmp_path)
        again = call(*words)
        assert (again.status, again.out) == (0, first.out)
        assert "already holds this run, finished" in again.err
        assert snapshot(tmp_path) == before

    def test_a_report_that_is_missing_is_written(self, call: Call, small: tuple[str, ...], tmp_path: Path) -> None:
        call("run", "fedavg", *small, "--rounds", 1, "--out", tmp_path / "a")
        (tmp_path / "a/report.html").unlink()
        assert call("resume", tmp_path / "a", "--quiet").status == 0
        assert (tmp_path / "a/report.html").exists()

    def test_the_engine_makes_no_other_run(self, call: Call, small: tuple[str, ...], tmp_path: Path) -> None:
        call("run", "fedavg", *small, "--rounds", 1, "--out", tmp_path / "a")
        told = call("run", "fedavg", *small, "--rounds", 1, "--out", tmp_path / "a", "--workers", 7)
        assert told.status == 0
        assert "already holds this run" in told.err

    def test_force_removes_the_run_and_nothing_else(self, call: Call, small: tuple[str, ...], tmp_path: Path) -> None:
        out = tmp_path / "a"
        call("run", "fedavg", *small, "--rounds", 2, "--out", out)
        kept = {"notes.txt": "mine", "checkpoints/mine.txt": "mine", "figures/a.txt": "mine"}
        for name, text in kept.items():
            (out / name).parent.mkdir(exist_ok=True)
            (out / name).write_text(text)
        assert call("run", "fedavg", *small, "--rounds", 1, "--out", out, "--force").status == 0
        assert result(out)["rounds"] == 1
        assert len((out / "rounds.jsonl").read_text().splitlines()) == 1
        assert {name: (out / name).read_text() for name in kept} == kept


class Stop:
    """Interrupts a run after a round, as Ctrl-C would."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, event: Any) -> None:
        if event.kind == "round" and event.round == self.after:
            raise KeyboardInterrupt


@pytest.fixture
def stopped(npz: Path, tmp_path: Path) -> Path:
    """A run of three rounds that was interrupted after the first."""
    settings = [f"data.name={npz}", "partition.clients=4", "local.epochs=1", "engine.name=inline", "rounds=3"]
    with pytest.raises(KeyboardInterrupt):
        train(prepare(Config.load(None, settings)), out=tmp_path / "stopped", watch=Stop(1))
    return tmp_path / "stopped"


class TestResume:
    def test_it_ends_as_if_nothing_had_happened(
        self, call: Call, small: tuple[str, ...], stopped: Path, tmp_path: Path
    ) -> None:
        assert not (stopped / "result.json").exists()
        assert call("resume", stopped, "--quiet").status == 0
        call("run", *small, "--rounds", 3, "--out", tmp_path / "whole")
        assert result(stopped) == result(tmp_path / "whole")

    def test_the_same_run_command_carries_on_too(self, call: Call, small: tuple[str, ...], stopped: Path) -> None:
        loud = [word for word in small if word != "--quiet"]
        told = call("run", *loud, "--rounds", 3, "--out", stopped)
        assert told.status == 0
        assert "carrying on after round 1" in told.err
        assert "round 1/3" not in told.err

    def test_a_finished_run_is_shown(self, call: Call, small: tuple[str, ...], tmp_path: Path) -> None:
        call("run", "fedavg", *small, "--rounds", 1, "--out", tmp_path / "a")
        told = call("resume", tmp_path / "a", "--quiet", "--json")
        assert told.status == 0
        assert json.loads(told.out)["rounds"] == 1

    def test_it_works_from_the_moment_the_directory_exists(self, call: Call, npz: Path, tmp_path: Path) -> None:
        settings = [f"data.name={npz}", "partition.clients=4", "local.epochs=1", "rounds=1", "engine.name=inline"]
        (tmp_path / "a").mkdir()
        (tmp_path / "a/config.toml").write_text(prepare(Config.load(None, settings)).config.to_toml())
        assert call("resume", tmp_path / "a", "--quiet").status == 0
        assert (tmp_path / "a/result.json").exists()


def test_an_interrupt_says_how_to_carry_on(npz: Path, tmp_path: Path) -> None:
    """Ctrl-C in a real process: status 130, the command to carry on, and a directory that it works on."""
    out = tmp_path / "with space"
    # A job in the background inherits that it ignores interrupts; a command at a terminal does not.
    heed = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heed}; from headwater.cli.app import main; sys.exit(main())"
    words = ["run", "--set", f"data.name={npz}", "--set", "partition.clients=4", "--rounds", "100000"]
    command = [sys.executable, "-c", code, *words, "--engine", "inline", "--out", str(out)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "round 2/" in line:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    last = rest.splitlines()[-1]
    assert process.returncode == 130
    assert last.startswith("headwater: interrupted after round ")
    assert last.endswith(f"carry on with: headwater resume '{out}'")
    assert "Traceback" not in rest
    assert list((out / "checkpoints").glob("round-*.json"))
