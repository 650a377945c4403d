"""Files of a run that somebody edited, cut or overwrote: a sentence with a way out, or the run writes them again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.cli.app import main
from headwater.config import Config
from headwater.training.experiment import prepare
from headwater.training.loop import Event, train

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def finished(npz: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    sets = ["--set", f"data.name={npz}", "--set", "partition.clients=4", "--set", "local.epochs=1"]
    assert main(["run", "fedavg", *sets, "--rounds", "3", "--engine", "inline", "--quiet", "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def stopped(npz: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted after its second of three rounds."""
    out = tmp_path_factory.mktemp("stopped") / "run"

    def stop(event: Event) -> None:
        if event.kind == "round" and event.round == 2:
            raise KeyboardInterrupt

    sets = [f"data.name={npz}", "partition.clients=4", "local.epochs=1", "engine.name=inline", "rounds=3"]
    with pytest.raises(KeyboardInterrupt):
        train(prepare(Config.load("fedavg", sets)), out=out, watch=stop)
    return out


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Path], Path]:
    return lambda run: Path(shutil.copytree(run, tmp_path / "run"))


def sha(run: Path) -> str:
    return str(json.loads((run / "result.json").read_text())["model_sha256"])


def refused(told: Any, *names: str) -> None:
    assert told.status == 2, told
    assert told.err.startswith("headwater: ")
    assert told.err.count("\n") == 1
    for name in names:
        assert name in told.err


class TestResume:
    @pytest.mark.parametrize("content", [b"not JSON", b"\xff\xfe", b"[]", b"3", b"{}", b'{"label": "a"}', b""])
    def test_a_result_that_is_none_is_written_again(
        self, call: Call, finished: Path, copy: Callable[[Path], Path], content: bytes
    ) -> None:
        run = copy(finished)
        (run / "result.json").write_bytes(content)
        told = call("resume", run, "--quiet")
        assert told.status == 0, told
        assert "result.json is not a result and is written again" in told.err
        assert sha(run) == sha(finished)

    @pytest.mark.parametrize("junk", [b"\xff\xfe\n", b"[]\n", b"{}\n", b'{"round": "one"}\n', b"null\n"])
    def test_junk_after_the_rows_is_removed(
        self, call: Call, finished: Path, stopped: Path, copy: Callable[[Path], Path], junk: bytes
    ) -> None:
        run = copy(stopped)
        for name in ("rounds.jsonl", "timeline.jsonl"):
            (run / name).write_bytes((run / name).read_bytes() + junk)
        assert call("resume", run, "--quiet").status == 0
        assert sha(run) == sha(finished)
        rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
        assert [row["round"] for row in rows] == [1, 2, 3]

    @pytest.mark.parametrize("line", [0, 1])
    def test_a_row_that_is_damaged_is_refused(
        self, call: Call, stopped: Path, copy: Callable[[Path], Path], line: int
    ) -> None:
        run = copy(stopped)
        lines = (run / "rounds.jsonl").read_bytes().splitlines()
        lines[line] = b"\xff" + lines[line]
        (run / "rounds.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        before = (run / "rounds.jsonl").read_bytes()
        refused(call("resume", run, "--quiet"), "rounds.jsonl", f"round {line + 1}", "--force")
        assert (run / "rounds.jsonl").read_bytes() == before  # for whoever repairs it

    def test_an_edited_configuration_is_refused_with_its_keys(
        self, call: Call, stopped: Path, copy: Callable[[Path], Path]
    ) -> None:
        run = copy(stopped)
        file = run / "config.toml"
        file.write_text(file.read_text().replace("rounds = 3", "rounds = 9").replace("epochs = 1", "epochs = 2"))
        told = call("resume", run, "--quiet")
        refused(told, "config.toml was edited", "rounds from 3 to 9", "local.epochs from 1 to 2", "checkpoints/config")
        shutil.copy(run / "checkpoints/config.toml", file)
        assert call("resume", run, "--quiet").status == 0

    def test_where_it_is_computed_may_be_edited(
        self, call: Call, finished: Path, stopped: Path, copy: Callable[[Path], Path]
    ) -> None:
        run = copy(stopped)
        file = run / "config.toml"
        file.write_text(file.read_text().replace("workers = 0", "workers = 1"))
        assert call("resume", run, "--quiet").status == 0
        assert sha(run) == sha(finished)

    def test_a_run_of_an_earlier_version_has_no_copy_of_its_configuration(
        self, call: Call, finished: Path, stopped: Path, copy: Callable[[Path], Path]
    ) -> None:
        run = copy(stopped)
        (run / "checkpoints/config.toml").unlink()
        assert call("resume", run, "--quiet").status == 0
        assert sha(run) == sha(finished)

    def test_force_removes_the_copy_too(
        self, call: Call, stopped: Path, copy: Callable[[Path], Path], small: tuple[str, ...]
    ) -> None:
        run = copy(stopped)
        assert call("run", "fedavg", *small, "--rounds", 1, "--out", run, "--force").status == 0


class TestReport:
    @pytest.mark.parametrize(("kept", "what"), [(-1, "lacks 1 of 3 rounds, the first is 3"), (0, "lacks 3 of 3")])
    def test_a_cut_file_of_a_finished_run_is_noticed(
        self, call: Call, finished: Path, copy: Callable[[Path], Path], tmp_path: Path, kept: int, what: str
    ) -> None:
        run = copy(finished)
        lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
        (run / "rounds.jsonl").write_text("".join(lines[:kept]))
        told = call("report", run, "--out", tmp_path / "r", "--quiet")
        assert told.status == 0
        assert "rounds.jsonl is cut or damaged" in told.err
        assert what in told.err
        assert what in (tmp_path / "r/report.html").read_text()

    def test_half_a_line_is_noticed(
        self, call: Call, finished: Path, stopped: Path, copy: Callable[[Path], Path], tmp_path: Path
    ) -> None:
        run = copy(stopped)
        content = (run / "rounds.jsonl").read_text()
        (run / "rounds.jsonl").write_text(content + content[:30])
        told = call("report", run, "--out", tmp_path / "r", "--quiet")
        assert "ends in half a line" in told.err
        assert "resume the run" in told.err

    def test_whole_files_are_not_complained_about(
        self, call: Call, finished: Path, stopped: Path, tmp_path: Path
    ) -> None:
        for number, run in enumerate((finished, stopped)):
            assert call("report", run, "--out", tmp_path / str(number), "--quiet").err == ""

    @pytest.mark.parametrize("name", ["rounds.jsonl", "result.json", "partition.json"])
    def test_bytes_that_are_no_text(
        self, call: Call, finished: Path, copy: Callable[[Path], Path], tmp_path: Path, name: str
    ) -> None:
        run = copy(finished)
        (run / name).write_bytes(b"\xff\xfe\x00\n" + (run / name).read_bytes())
        refused(call("report", run, "--out", tmp_path / "r", "--quiet"), name)


def test_a_function_for_the_data_is_announced(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, npz: Path
) -> None:
    (tmp_path / "a_users_loader.py").write_text(
        "import headwater as hw\nfrom headwater.data.loading import load\n"
        f"def make() -> hw.Data:\n    return load({str(npz)!r})\n"
        f"def silent():\n    return load({str(npz)!r})\n"
        "def other() -> int:\n    raise AssertionError('called')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sets = ("--set", "partition.clients=2", "--set", "partition.sectors=1", "--out", tmp_path / "split")
    told = call("partition", "--set", "data.name=a_users_loader:make", *sets)
    assert told.status == 0, told
    assert "running the function a_users_loader:make" in told.err
    told = call("partition", "--set", "data.name=a_users_loader:silent", "--force", *sets)
    assert told.status == 0, told
    told = call("partition", "--set", "data.name=a_users_loader:other", "--quiet", *sets)
    refused(told, "'a_users_loader:other' is not called", "def other(...) -> hw.Data")
