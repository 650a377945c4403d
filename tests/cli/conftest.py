"""A small data set, a run on it, and the command line called in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from headwater.cli.app import main

SMALL = ("--set", "partition.clients=4", "--set", "local.epochs=1", "--engine", "inline", "--quiet")


class CommandResult(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., CommandResult]:
    """The exit status and the two streams of one command. The terminal that the tests run in has no say in them."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def command(*words: str | Path) -> CommandResult:
        capsys.readouterr()
        status = main([str(word) for word in words])
        return CommandResult(status, *capsys.readouterr())

    return command


@pytest.fixture(scope="session")
def npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three well-separated classes of 4 features: quick to train and easy to learn."""
    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    x = (rng.normal(size=(240, 4)) * 0.3 + np.eye(3, 4)[y]).astype(np.float32)
    path = tmp_path_factory.mktemp("data") / "small.npz"
    np.savez(path, x_train=x[:180], y_train=y[:180], x_test=x[180:], y_test=y[180:])
    return path


@pytest.fixture
def small(npz: Path) -> tuple[str, ...]:
    """Options that make any training command small and silent."""
    return ("--set", f"data.name={npz}", *SMALL)


@pytest.fixture(scope="session")
def snapshot() -> Callable[[Path], dict[str, bytes]]:
    """Every file below a directory with its content."""

    def files(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    return files
