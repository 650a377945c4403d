"""Callbacks of a run: what they get, that they change nothing, how they stop a run, and what their errors say."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headwater as hw

Y = np.arange(90) % 3
X = (np.random.default_rng(0).normal(size=(90, 4)) * 0.5 + np.eye(3, 4)[Y]).astype(np.float32)
QUICK: dict[str, Any] = {"data": (X, Y), "clients": 3, "sectors": 1, "rounds": 4, "local__epochs": 1}
QUICK |= {"engine": "inline"}


class Recorder(hw.Callback):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def run_begin(self, config: hw.Config) -> None:
        self.seen.append(("begin", config.method, config.seed))

    def round_end(self, row: dict[str, Any]) -> None:
        self.seen.append(("round", row["round"], row["accuracy"]))

    def run_end(self, run: hw.Run) -> None:
        self.seen.append(("end", run.accuracy))

    def run_failed(self, error: BaseException) -> None:
        self.seen.append(("failed", type(error).__name__))


class Meddler(hw.Callback):
    """Touches everything that a callback can reach."""

    def round_end(self, row: dict[str, Any]) -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        torch.rand(5)
        row.clear()

    def run_end(self, run: hw.Run) -> None:
        for parameter in run.model.parameters():
            parameter.data.zero_()


class StopAfter(hw.Callback):
    def __init__(self, round: int) -> None:
        self.round = round

    def round_end(self, row: dict[str, Any]) -> None:
        if row["round"] >= self.round:
            raise hw.StopRun


class Faulty(hw.Callback):
    def __init__(self, hook: str) -> None:
        setattr(self, hook, self.fail)

    def fail(self, value: Any) -> None:
        raise ValueError("the disk is on fire")


@pytest.fixture(scope="module")
def plain() -> hw.Run:
    return hw.run("fedavg", **QUICK)


def test_callbacks_get_the_configuration_every_row_and_the_run() -> None:
    recorder = Recorder()
    run = hw.run("fedavg", callbacks=[recorder], **QUICK)
    rows = [("round", row["round"], row["accuracy"]) for row in run.history]
    assert recorder.seen == [("begin", "fedavg", 0), *rows, ("end", run.accuracy)]


def test_callbacks_change_no_bits(plain: hw.Run) -> None:
    run = hw.run("fedavg", callbacks=[Meddler(), Recorder()], **QUICK)
    assert run.result["model_sha256"] == plain.result["model_sha256"]
    assert [row["accuracy"] for row in run.history] == [row["accuracy"] for row in plain.history]


def test_a_comparison_gives_the_same_callbacks_every_run() -> None:
    recorder = Recorder()
    hw.compare(["fedavg", "local"], seeds=[0, 1], callbacks=[recorder], **{**QUICK, "rounds": 1})
    assert [item[1:] for item in recorder.seen if item[0] == "begin"] == [
        ("fedavg", 0),
        ("local", 0),
        ("fedavg", 1),
        ("local", 1),
    ]


@pytest.mark.parametrize("more", [{}, {"eval_every": 3}, {"engine__overlap": False}])
def test_a_callback_ends_a_run_early(more: dict[str, Any]) -> None:
    recorder = Recorder()
    run = hw.run("fedavg", callbacks=[StopAfter(2), recorder], **QUICK, **more)
    assert len(run.history) == run.result["rounds"] == 2
    assert recorder.seen[-1] == ("end", run.accuracy)
    assert "ended after round 2 of 4 by the callback StopAfter" in run.result["notes"]
    whole = hw.run("fedavg", **{**QUICK, "rounds": 2})
    assert run.result["model_sha256"] == whole.result["model_sha256"]
    assert run.accuracy == whole.accuracy


def test_a_run_that_was_ended_carries_on_to_the_same_bits(plain: hw.Run, tmp_path: Path) -> None:
    out = tmp_path / "run"
    ended = hw.run("fedavg", callbacks=[StopAfter(2)], out=out, **QUICK)
    assert ended.directory == out
    assert not (out / "result.json").exists()
    assert ended.save(tmp_path / "so far").joinpath("model.safetensors").exists()
    whole = hw.run("fedavg", out=out, **QUICK)
    assert whole.result["model_sha256"] == plain.result["model_sha256"]
    assert (out / "result.json").exists()


@pytest.mark.parametrize(("hook", "when"), [("run_begin", ""), ("round_end", " after round 1"), ("run_end", "")])
def test_an_error_names_the_callback_and_the_state_is_kept(hook: str, when: str, plain: hw.Run, tmp_path: Path) -> None:
    recorder, out = Recorder(), tmp_path / "run"
    with pytest.raises(hw.CallbackError) as caught:
        hw.run("fedavg", callbacks=[Faulty(hook), recorder], out=out, **QUICK)
    message = f"callback Faulty: {hook} raised ValueError{when}: the disk is on fire"
    assert str(caught.value) == f"{message}; {out} keeps the run: the same call carries on"
    assert isinstance(caught.value.__cause__, ValueError)
    assert recorder.seen[-1] == ("failed", "CallbackError")
    assert hw.run("fedavg", out=out, **QUICK).result["model_sha256"] == plain.result["model_sha256"]


def test_stopping_elsewhere_is_an_error() -> None:
    class Never(hw.Callback):
        def run_begin(self, config: hw.Config) -> None:
            raise hw.StopRun

    with pytest.raises(hw.CallbackError, match="callback Never: StopRun was raised in run_begin"):
        hw.run("fedavg", callbacks=[Never()], **QUICK)
