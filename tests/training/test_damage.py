"""Files of a run that were damaged: noticed when they are read, and a run carries on exactly where it can."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import toys
from headwater.engines.inline import Inline
from headwater.engines.pool import Pool
from headwater.errors import OutputError
from headwater.training import checkpoint
from headwater.training.experiment import Experiment
from headwater.training.loop import Event, train

ROUNDS = 5


@pytest.fixture(scope="module")
def made() -> Experiment:
    return toys.tiny("scaffold", rounds=ROUNDS)


@pytest.fixture(scope="module")
def whole(made: Experiment) -> str:
    return str(train(made).result["model_sha256"])


@pytest.fixture(scope="module")
def stopped(made: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted after round 3, with checkpoints of rounds 2 and 3."""
    out = tmp_path_factory.mktemp("runs") / "stopped"

    def stop(event: Event) -> None:
        if event.kind == "round" and event.round == 3:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "PAUSE", 0)
        with pytest.raises(KeyboardInterrupt):
            train(made, out=out, watch=stop)
    assert [path.name for path in heads(out)] == ["round-000002.json", "round-000003.json"]
    return out


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def heads(out: Path) -> list[Path]:
    return sorted((out / "checkpoints").glob("round-*.json"))


def flip(path: Path, at: int = -70, bits: int = 0b100) -> None:
    """Flip bits of one byte."""
    content = bytearray(path.read_bytes())
    content[at] ^= bits
    path.write_bytes(content)


def values_of(out: Path) -> tuple[set[str], set[str]]:
    """Files that only the newest checkpoint uses, and files that both use."""
    older, newest = (set(json.loads(head.read_text())["files"].values()) - {""} for head in heads(out))
    return newest - older, newest & older


def resumed(made: Experiment, out: Path, engine: Any = None) -> tuple[str, list[str]]:
    """The model after carrying on, and what was said."""
    said: list[str] = []
    run = train(made, out=out, engine=engine, watch=lambda event: said.append(event.text) if event.text else None)
    return run.result["model_sha256"], said


@pytest.mark.parametrize("engine", [Inline, pytest.param(lambda: Pool(2), marks=pytest.mark.thorough)])
def test_flipped_bits_in_a_value_lead_to_the_older_checkpoint(
    made: Experiment, whole: str, run: Path, engine: Callable[[], Any]
) -> None:
    only, _ = values_of(run)
    largest = max((run / "checkpoints/values" / name for name in only), key=lambda path: path.stat().st_size)
    flip(largest)
    flip(largest, at=-90)
    used = engine()
    try:
        sha, said = resumed(made, run, used)
    finally:
        used.close()
    assert sha == whole
    assert any(largest.name in text and "older checkpoint" in text for text in said), said


def test_every_value_of_a_checkpoint_is_checked(made: Experiment, whole: str, stopped: Path, tmp_path: Path) -> None:
    only, _ = values_of(stopped)
    assert only
    for number, name in enumerate(sorted(only)):
        run = Path(shutil.copytree(stopped, tmp_path / str(number)))
        flip(run / "checkpoints/values" / name)
        sha, said = resumed(made, run)
        assert sha == whole
        assert any(name in text for text in said)


def test_a_flipped_digit_in_a_head_leads_to_the_older_checkpoint(made: Experiment, whole: str, run: Path) -> None:
    newest = heads(run)[-1]
    text = newest.read_text()
    at = (
        text.index('"ledger"')
        + len('"ledger"')
        + next(i for i, c in enumerate(text[text.index('"ledger"') + len('"ledger"') :]) if c in "1234567")
    )
    newest.write_text(text[:at] + str(int(text[at]) + 1) + text[at + 1 :])
    sha, said = resumed(made, run)
    assert sha == whole
    assert any("round-000003.json" in sentence for sentence in said)
    rows = (run / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(row)["round"] for row in rows] == [1, 2, 3, 4, 5]


def test_damage_in_both_checkpoints_is_refused_with_the_file(made: Experiment, run: Path) -> None:
    for name in (run / "checkpoints/values").iterdir():
        flip(name)
    with pytest.raises(OutputError, match=r"\.value is damaged.*--force"):
        resumed(made, run)


@pytest.mark.parametrize("content", ["[]", "{}", "null", "3", '"round"', '{"version": 2}', "[" * 100_000])
def test_a_head_that_is_something_else(made: Experiment, whole: str, run: Path, content: str) -> None:
    heads(run)[-1].write_text(content)
    sha, said = resumed(made, run)
    assert sha == whole
    assert any("round-000003.json" in sentence for sentence in said)


def test_a_head_imports_nothing(
    made: Experiment, whole: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that was changed with its hash and names a module of somebody else's."""
    (tmp_path / "intruder.py").write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Saved:\n    state: object\n    tests: object\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for head in heads(run):
        row = json.loads(head.read_text().replace("headwater.training.loop:Saved", "intruder:Saved"))
        row.pop("sha256", None)
        head.write_text(json.dumps(row | {"version": 1}))
    with pytest.raises(OutputError, match=r"no checkpoint .*intruder:Saved is not part of this federation"):
        resumed(made, run)
    assert "intruder" not in sys.modules


def test_a_head_with_an_unknown_class(made: Experiment, whole: str, run: Path) -> None:
    newest = heads(run)[-1]
    row = json.loads(newest.read_text().replace("headwater.training.loop:Saved", "headwater.nowhere:Saved"))
    row.pop("sha256", None)
    newest.write_text(json.dumps(row | {"version": 1}))
    assert resumed(made, run)[0] == whole


def test_a_round_that_is_no_number_leads_to_the_older_checkpoint(made: Experiment, whole: str, run: Path) -> None:
    newest = heads(run)[-1]
    row = json.loads(newest.read_text())
    row |= {"round": float("inf")}
    del row["sha256"]
    newest.write_text(json.dumps(row | {"sha256": checkpoint._sha256(row)}))
    sha, said = resumed(made, run)
    assert sha == whole
    assert any("round-000003.json" in sentence for sentence in said)
