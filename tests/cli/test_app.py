"""The group: help, version, usage errors, and what becomes of an exception."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.cli import app

Call = Callable[..., Any]
COMMANDS = ("run", "compare", "list", "resume", "partition", "report")


def real(*words: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which finds modules as the installed script does."""
    code = "import sys; from headwater.cli.app import main; sys.exit(main())"
    settings = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *words], capture_output=True, text=True, check=False, cwd=cwd, env=settings
    )


def test_help_names_every_command(call: Call) -> None:
    told = call("--help")
    assert told.status == 0
    assert all(f" {command} " in told.out for command in COMMANDS)


def test_no_words_at_all_show_the_help(call: Call) -> None:
    assert call() == call("--help")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(call: Call, command: str) -> None:
    told = call(command, "--help")
    assert told.status == 0
    assert f"headwater {command}" in told.out


@pytest.mark.parametrize("command", ["run", "compare", "partition"])
def test_the_common_options_are_there(call: Call, command: str) -> None:
    told = call(command, "--help")
    for option in (
        "--set",
        "--seed",
        "--rounds",
        "--out",
        "--engine",
        "--workers",
        "--data-dir",
        "--quiet",
        "--json",
        "--force",
    ):
        assert option in told.out


def test_version(call: Call) -> None:
    assert call("--version") == (0, f"headwater {headwater.__version__}\n", "")


def test_help_and_lists_import_neither_torch_nor_pydantic() -> None:
    for words in (["--help"], ["list"], ["list", "algorithms", "--json"]):
        heavy = "sorted({'torch', 'numpy', 'pydantic'} & set(sys.modules))"
        code = f"import sys; from headwater.cli.app import main; main({words!r}); print({heavy}, file=sys.stderr)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stderr == "[]\n"


def test_a_mistake_in_a_real_process_is_one_line_and_status_2() -> None:
    done = real("run", "--rounds", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "headwater: rounds must be a whole number of at least 1, got 0\n"


def test_a_disk_without_room_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert app._system(OSError(errno.ENOSPC, "No space left on device")) == 2
    assert "the disk is full" in capsys.readouterr().err


def test_a_mistake_of_ours_has_status_1_and_says_where_to_go(capsys: pytest.CaptureFixture[str]) -> None:
    assert app._ours(ZeroDivisionError("by zero")) == 1
    told = capsys.readouterr().err
    assert "ZeroDivisionError" in told
    assert "HEADWATER_DEBUG=1" in told
    assert "Traceback" not in told


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        app._ours(ZeroDivisionError("by zero"))


def test_a_reader_that_leaves_early_is_no_error() -> None:
    code = "import sys; from headwater.cli.app import main; sys.exit(main())"
    command = f"{shlex.quote(sys.executable)} -c '{code}' list --json | head -c 10"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_a_terminal_without_our_characters_shows_what_is_closest() -> None:
    told = real("theory", PYTHONIOENCODING="ascii")
    assert told.returncode == 0, told.stderr
    assert "a model of 4.00 MB" in told.stdout
    assert "?" not in told.stdout


def test_characters_and_what_is_closest(call: Call) -> None:
    assert call("--version").status == 0  # which tells Python of it
    text = "4.00\u00a0MB – 3 × σ²: n̄ ± ½ … Ñ ≥ 中"
    assert text.encode("ascii", "headwater.plain") == b"4.00 MB - 3 x sigma2: n +- 1/2 ... N >= ?"
    assert "a\udcc3\udcff".encode("ascii", "headwater.plain") == b"a\xc3\xff"  # of a name that is not text here


@pytest.mark.thorough
def test_a_module_in_the_directory_one_is_in_is_found_and_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(
        "from torch import nn\ndef small():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    (tmp_path / "json.py").write_text("raise SystemExit('this is not the one')")
    asked = ("--rounds", "1", "--set", "model.name=nets:small", "--set", "data.fraction=0.1")
    told = real("run", "fedavg", *asked, "--engine", "pool", "--out", "run", cwd=tmp_path)  # workers find it, too
    assert told.returncode == 0, told.stderr
    told = real("run", "fedavg", "--set", "model.name=nests:small", cwd=tmp_path)
    assert told.returncode == 2
    assert "a file in the directory where the command is given" in told.stderr


def test_the_package_as_a_program_ends_with_the_status_of_its_command() -> None:
    done = subprocess.run([sys.executable, "-m", "headwater", "nonsense"], capture_output=True, text=True, check=False)
    assert (done.returncode, "there is no command 'nonsense'" in done.stderr) == (2, True)
