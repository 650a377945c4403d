"""`headwater tune`: settings are chosen on the validation set alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Call = Callable[..., Any]


def test_the_better_setting_is_found_without_the_test_set(
    call: Call, small: tuple[str, ...], npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("tune", "fedavg", "--grid", "local.lr=0.0000001,0.01", "--budget", 3, "--json")
    facts = json.loads(call(*words, *small).out)
    assert facts["best"] == {"local.lr": "0.01"}
    assert facts["rounds"] == 3
    assert list(tmp_path.iterdir()) == []
    arrays = dict(np.load(npz))
    arrays["y_test"] = np.roll(arrays["y_test"], 1)  # another test set changes nothing
    np.savez(tmp_path / "other.npz", **arrays)
    other = [word.replace(str(npz), str(tmp_path / "other.npz")) for word in small]
    assert json.loads(call(*words, *other).out)["rows"] == facts["rows"]


def test_it_ends_with_what_to_type(call: Call, small: tuple[str, ...]) -> None:
    told = call("tune", "fedavg", *small, "--grid", "local.lr=0.01", "--grid", "local.batch=8,16", "--budget", 1)
    assert told.status == 0
    assert "best on the validation set: --set local.lr=0.01 --set local.batch=" in told.out


def test_mistakes_are_sentences(call: Call, small: tuple[str, ...]) -> None:
    assert "at least one --grid" in call("tune", "fedavg").err
    assert "there is no setting called 'local.lrr'" in call("tune", "fedavg", "--grid", "local.lrr=1").err
    told = call("tune", "fedavg", *small, "--grid", "local.lr=0.1", "--set", "data.validation=0")
    assert (told.status, "set data.validation above 0" in told.err) == (2, True)
