"""Directories that number themselves."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from headwater.training.run_numbers import LATEST, continued, numbered, numbers, point_latest

PROCESSES, EACH = 4, 15


def mark(folder: Path) -> None:
    (folder / "config.toml").write_text(str(os.getpid()))


def make(stem: str) -> list[tuple[str, int]]:
    return [(numbered(Path(stem), mark).name, os.getpid()) for _ in range(EACH)]


def test_processes_at_once_get_different_numbers(tmp_path: Path) -> None:
    stem = tmp_path / "runs" / "fedavg-digits"
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        made = [each for part in pool.map(make, [str(stem)] * PROCESSES) for each in part]
    assert sorted(name for name, _ in made) == [f"fedavg-digits-{n:03}" for n in range(1, PROCESSES * EACH + 1)]
    for name, process in made:  # and nobody wrote into another's
        assert (stem.parent / name / "config.toml").read_text() == str(process)
    assert len(list(stem.parent.iterdir())) == PROCESSES * EACH  # no draft is left


def test_numbers_go_on_after_the_largest(tmp_path: Path) -> None:
    for name in ("a-001", "a-007", "a-1000", "a-b-009", "a-seed3", "a-12"):
        (tmp_path / name).mkdir()
    assert numbers(tmp_path / "a") == [1, 7, 1000]
    assert numbered(tmp_path / "a").name == "a-1001"
    assert numbered(tmp_path / "new").name == "new-001"


def test_what_fits_is_carried_on_with(tmp_path: Path) -> None:
    first = continued(tmp_path / "a", lambda path: True)
    assert continued(tmp_path / "a", lambda path: path == first) == first
    assert continued(tmp_path / "a", lambda path: False).name == "a-002"


def test_a_failure_leaves_no_directory(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        mark(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        numbered(tmp_path / "a", fail)
    assert list(tmp_path.iterdir()) == []


def test_latest_follows_the_newest_and_never_replaces_a_directory(tmp_path: Path) -> None:
    for _ in range(2):
        point_latest(numbered(tmp_path / "a", mark))
    assert os.readlink(tmp_path / LATEST) == "a-002"
    (tmp_path / LATEST).unlink()
    (tmp_path / LATEST).mkdir()
    point_latest(tmp_path / "a-001")
    assert not (tmp_path / LATEST).is_symlink()


def test_without_symbolic_links_there_is_no_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: object, target_is_directory: bool = False) -> None:
        raise OSError("symbolic links are not supported")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    path = numbered(tmp_path / "a", mark)
    point_latest(path)
    assert [item.name for item in tmp_path.iterdir()] == ["a-001"]
