"""Wrong arguments in Python: each is an error of the project's family, with a sentence that says what is accepted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import headwater as hw

QUICK: dict[str, Any] = {"clients": 3, "sectors": 1, "rounds": 1, "local__epochs": 1, "engine": "inline"}
Y = np.arange(60) % 3
X = (np.random.default_rng(0).normal(size=(60, 4)) * 0.3 + np.eye(3, 4)[Y]).astype(np.float32)
TABLE = pd.DataFrame(X, columns=list("abcd")).assign(kind=Y)
WITH_NAN, WITH_INF = X.copy(), X.copy()
WITH_NAN[3, 1], WITH_INF[3, 1] = np.nan, np.inf
LONG = "z" * 5000


class Items(torch.utils.data.Dataset[Any]):
    """A torch data set of ten items that a function makes."""

    def __init__(self, item: Callable[[int], Any]) -> None:
        self.item = item

    def __len__(self) -> int:
        return 10

    def __getitem__(self, at: int) -> Any:
        return self.item(at)


def broken(at: int) -> Any:
    raise RuntimeError("no such file")


DATA: dict[str, tuple[dict[str, Any], str]] = {  # keywords of hw.run, and words of the message
    "NaN": ({"data": (WITH_NAN, Y)}, "X holds NaN in 1 of 48 samples; replace"),
    "infinity": ({"data": (WITH_INF, Y)}, "infinite values, the first in sample"),
    "ragged": ({"data": ([[1, 2], [3]] * 10, [0, 1] * 10)}, "every sample needs the same shape"),
    "fewer labels": ({"data": (X, Y[:7])}, "each sample needs one label"),
    "no samples": ({"data": (X[:0], Y[:0])}, "at least 5 are needed"),
    "one class": ({"data": (X, Y * 0)}, "at least two classes"),
    "words as inputs": ({"data": (X.astype(str), Y)}, "use whole numbers or floats"),
    "objects as inputs": ({"data": (X.astype(object), Y)}, "use whole numbers or floats"),
    "no inputs": ({"data": (None, Y)}, "X is None; it must be an array"),
    "no labels": ({"data": (X, None)}, "y is None; it must be an array"),
    "missing labels": ({"data": (X, np.where(Y == 0, np.nan, Y))}, "use 0, 1, 2"),
    "one-hot labels": ({"data": (X, np.eye(3)[Y])}, "turn one-hot rows into numbers"),
    "dates as labels": ({"data": (X, pd.date_range("2020", periods=60))}, "use numbers or words"),
    "three arrays": ({"data": (X, Y, X)}, "it can be the name of a data set"),
    "another width for tests": ({"data": (X, Y, X[:, :2], Y)}, "give both alike"),
    "another class for tests": ({"data": (X, Y, X, Y + 5)}, "y_test holds the label '5'"),
    "flat inputs": ({"data": (X[:, 0], Y)}, "samples along its first axis"),
    "complex inputs": ({"data": (X + 1j, Y)}, "use whole numbers or floats"),
    "a dict": ({"data": {"a": 1}}, "data is of type dict; it can be"),
    "a number": ({"data": 5}, "data is of type int; it can be"),
    "a function": ({"data": lambda: 1}, "data is of type function; it can be"),
    "an empty name": ({"data": ""}, "data is empty; give the name of a data set"),
    "a long name": ({"data": LONG}, "data.name must be a data set's name"),
    "a long path": ({"data": "/x" * 3000}, "there is no data set called"),
    "a misspelt name": ({"data": "digit"}, "did you mean 'digits'?"),
    "a table without its label": (
        {"data": TABLE},
        "no column 'label' for data.label; set data.label to the column to learn",
    ),
    "a label that is no column": ({"data": TABLE, "label": "zzz"}, "no column 'zzz' for data.label"),
    "a label that is a list": ({"data": TABLE, "label": ["kind"]}, "data.label must be text"),
    "a table without rows": ({"data": TABLE[:0], "label": "kind"}, "the DataFrame has no rows"),
    "a table of labels": ({"data": TABLE[["kind"]], "label": "kind"}, "no column left for features"),
    "a client that is no column": ({"data": TABLE, "label": "kind", "client": "who"}, "no column 'who'"),
    "a series": ({"data": TABLE["kind"]}, "data is of type Series"),
    "a label for arrays": ({"label": "kind"}, "data.label names a column of a table"),
    "unequal items": ({"data": Items(lambda at: (torch.zeros(at + 1), at % 2))}, "bring them to one shape"),
    "items without label": ({"data": Items(lambda at: torch.zeros(3))}, "a pair of input and label"),
    "items that raise": ({"data": Items(broken)}, "sample 0 of the data set could not be read (RuntimeError: no such"),
    "hw.Data, scaled": ({"data": hw.Data(X, Y, X, Y), "standardize": True}, "no effect on hw.Data"),
    "a table, unscaled": ({"data": TABLE, "label": "kind", "standardize": False}, "are always standardised"),
    "a name, unscaled": ({"data": "digits", "standardize": False}, "standardize=False is for arrays"),
    "standardize of another kind": ({"standardize": 1}, "standardize must be True, False or 'auto'"),
}
SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "negative count": ({"clients": -1}, "partition.clients must be a whole number of at least 1, got -1"),
    "no clients": ({"clients": 0}, "partition.clients must be a whole number of at least 1, got 0"),
    "huge count": ({"clients": 10**9}, "partition.clients must be at most 1,000,000"),
    "text for a count": ({"clients": "4"}, "partition.clients must be a whole number"),
    "bool for a count": ({"clients": True}, "partition.clients must be a whole number"),
    "float for a count": ({"clients": 4.0}, "partition.clients must be a whole number"),
    "more sectors than clients": ({"sectors": 9}, "use at most 3 sectors"),
    "client for clients": ({"client": 4}, "did you mean clients=4?"),
    "sector for sectors": ({"sector": 2}, "did you mean sectors=2?"),
    "no rounds": ({"rounds": 0}, "rounds must be a whole number of at least 1"),
    "text for rounds": ({"rounds": "2"}, "rounds must be a whole number"),
    "negative alpha": ({"alpha": -1}, "partition.alpha must be a finite number above 0"),
    "alpha in words": ({"alpha": "x"}, "partition.alpha must be a number, got 'x'"),
    "alpha NaN": ({"alpha": float("nan")}, "partition.alpha must be a finite number"),
    "negative seed": ({"seed": -1}, "seed must be a whole number of at least 0"),
    "negative rate": ({"local__lr": -1}, "local.lr must be a number above 0"),
    "an object for a rate": ({"local__lr": object()}, "local.lr must be a number above 0"),
    "a number for a section": ({"local": 5}, "local is a section with keys of its own"),
    "unknown keyword": ({"alpa": 1}, "did you mean 'alpha'?"),
    "unknown section": ({"locl__lr": 1}, "did you mean 'local'?"),
    "verbose": ({"verbose": 1}, "progress=False hides the progress bar"),
    "num_clients": ({"num_clients": 1}, "use clients=20"),
    "force": ({"force": True}, "choose another out=…, or remove that folder"),
    "unknown engine": ({"engine": "poool"}, "did you mean 'pool'?"),
    "engine of another kind": ({"engine": 5}, "engine.name must be text"),
    "unknown scheme": ({"scheme": "nope"}, "partition.scheme: there is no partition called 'nope'"),
    "participation above 1": ({"participation": 2}, "of at most 1, got 2"),
    "a module": ({"model": nn.Linear(4, 3)}, "such as lambda: MyNet()"),
    "a number as model": ({"model": 5}, "model must be a name or a function"),
    "a model that is none": ({"model": lambda: None}, "must return a torch.nn.Module"),
    "a model that is a dict": ({"model": dict}, "must return a torch.nn.Module"),
    "a model of another width": ({"model": lambda: nn.Linear(4, 7)}, "one logit for each of 3 classes"),
    "a model of other inputs": ({"model": lambda: nn.Linear(9, 3)}, "cannot be called in evaluation"),
    "a model that raises": ({"model": lambda: 1 / 0}, "could not be built (ZeroDivisionError"),
    "a model with arguments": ({"model": lambda a: nn.Linear(4, 3)}, "give a function that needs none"),
    "a model with two outputs": ({"model": lambda: nn.LSTM(4, 3)}, "it must return one tensor"),
    "a misspelt model": ({"model": "resnett"}, "did you mean 'resnet8'?"),
    "callbacks in words": ({"callbacks": "x"}, "callbacks must be a list of hw.Callback objects"),
    "a callback alone": ({"callbacks": hw.Callback()}, "callbacks must be a list of hw.Callback objects"),
    "a callback's class": ({"callbacks": [hw.Callback]}, "write Callback()"),
    "a function as callback": ({"callbacks": [print]}, "derive its class from hw.Callback"),
    "a watcher that is none": ({"watch": 5}, "watch must be a function"),
    "progress in words": ({"progress": "no"}, "progress must be True or False"),
    "out of another kind": ({"out": 5}, "out must be the path of a directory"),
    "out empty": ({"out": ""}, "out must be the path of a directory"),
    "out too long": ({"out": f"/tmp/{LONG}"}, "cannot be a run's directory (file name too long)"),
    "a number as method": ({"method": 5}, "an instance such as hw.FedHead(...)"),
    "a class as method": ({"method": hw.FedHead}, "an instance such as hw.FedHead(...)"),
    "a misspelt method": ({"method": "fedavgg"}, "did you mean 'fedavg'?"),
    "a module as method": ({"method": "nomod:Nova"}, "'nomod:Nova' could not be imported"),
}


@pytest.mark.parametrize("name", [*DATA, *SETTINGS])
def test_run_refuses_in_a_sentence(name: str) -> None:
    keywords, words = (DATA | SETTINGS)[name]
    with pytest.raises(hw.UserError) as caught:
        hw.run(**{"method": "fedavg", "data": (X, Y), **QUICK, **keywords})
    assert words in str(caught.value)
    assert " --" not in str(caught.value), "options of the command are of no use in Python"
    assert "pydantic" not in str(caught.value)


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "compare one": (lambda: hw.compare("fedavg"), "takes a list of methods"),
    "compare none": (lambda: hw.compare([]), "at least one method"),
    "compare a number": (lambda: hw.compare(5), "takes a list of methods"),  # type: ignore[arg-type]
    "compare unknown": (lambda: hw.compare(["fedavg", "x y"], **QUICK), "there is no method called 'x y'"),
    "seeds number": (lambda: hw.compare(["fedavg"], seeds=3), "such as seeds=[0, 1, 2]"),  # type: ignore[arg-type]
    "seeds none": (lambda: hw.compare(["fedavg"], seeds=[]), "seeds that differ"),
    "seeds twice": (lambda: hw.compare(["fedavg"], seeds=[0, 0]), "seeds that differ"),
    "seeds words": (lambda: hw.compare(["fedavg"], seeds=["a"], **QUICK), "seed must be a whole number"),  # type: ignore[list-item]
    "seeds bool": (lambda: hw.compare(["fedavg"], seeds=[True], **QUICK), "seed must be a whole number"),
    "seeds nested": (lambda: hw.compare(["fedavg"], seeds=np.eye(2), **QUICK), "seed must be a whole number"),  # type: ignore[arg-type]
    "one place twice": (lambda: hw.compare(["fedavg", "fedavg"], out="q", **QUICK), "is compared twice"),
    "plan": (lambda: hw.plan(rouns=3), "did you mean 'rounds'?"),
    "plan out": (lambda: hw.plan(out="x"), "out is not an argument"),
    "partition": (lambda: hw.partition(clients=0), "partition.clients must be a whole number"),
    "load nothing": (lambda: hw.load("/nope"), "name the directory of a finished run"),
    "load number": (lambda: hw.load(5), "takes the directory of a finished run"),  # type: ignore[arg-type]
    "load long": (lambda: hw.load(LONG), "name the directory of a finished run"),
    "method's field": (lambda: hw.FedHead(leadr="x"), "FedHead has no setting 'leadr'; did you mean 'leader'?"),  # type: ignore[call-arg]
    "method's value": (lambda: hw.FedHead(leader="x"), "leader should be 'random', 'fixed' or 'rotating', got 'x'"),  # type: ignore[arg-type]
    "method's order": (lambda: hw.FedHead("x"), "FedHead: local should be"),  # type: ignore[arg-type]
    "spec's value": (lambda: hw.LocalSpec(epochs=-1), "epochs should be greater than or equal to 0, got -1"),
    "spec together": (lambda: hw.DistillSpec(), "give either epochs or steps"),
    "Data's labels": (lambda: hw.Data(X, Y, X, Y[:3]), "each sample needs exactly one"),
    "Data's names": (lambda: hw.Data(X, Y, X, Y, class_names=5), "class_names must be a list"),  # type: ignore[arg-type]
    "wandb's mode": (lambda: hw.callbacks.WandB(mode="x"), "'offline' or 'online'"),
}


@pytest.mark.parametrize("name", CALLS)
def test_other_calls_refuse_in_a_sentence(name: str) -> None:
    call, words = CALLS[name]
    if name == "wandb's mode":
        pytest.importorskip("wandb")
    with pytest.raises(hw.UserError) as caught:
        call()
    assert words in str(caught.value)
    assert "errors.pydantic.dev" not in str(caught.value)


@pytest.fixture(scope="module")
def run() -> hw.Run:
    return hw.run("fedavg", data=(X, Y), **QUICK)


class TestAFinishedRun:
    @pytest.mark.parametrize(
        ("rows", "words"),
        [
            (X[:, :2], "rows of 4 columns"),
            (X[0], "rows of 4 columns"),
            (X[None], "rows of 4 columns"),
            (None, "rows of 4 columns"),
            (WITH_NAN, "holds NaN, the first in row 4"),
            (WITH_INF, "row 4 is infinite"),
            (TABLE[["a"]], "no column 'x0'"),
            ([[1], [1, 2]], "every row needs the same length"),
            (X[:0], "has no rows"),
            ("no.csv", "there is no file no.csv"),
            (LONG, "there is no file"),
        ],
    )
    def test_predict(self, run: hw.Run, rows: Any, words: str) -> None:
        with pytest.raises(hw.UserError) as caught:
            run.predict(rows)
        assert words in str(caught.value)

    def test_batch(self, run: hw.Run) -> None:
        with pytest.raises(hw.ConfigError, match="batch must be at least 1, a whole number, got 'a'"):
            run.trained.predict(X, batch="a")  # type: ignore[arg-type]

    def test_save_and_report(self, run: hw.Run, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.write_text("x")
        for place in (file, file / "below", 5):
            with pytest.raises(hw.OutputError):
                run.save(place)  # type: ignore[arg-type]
        with pytest.raises(hw.OutputError, match="choose another path"):
            run.report(file / "report.html")

    def test_target(self, run: hw.Run) -> None:
        with pytest.raises(hw.ConfigError, match="between 0 and 1"):
            hw.Comparison((run,)).table(target="x")  # type: ignore[arg-type]


def test_a_folder_that_holds_another_run_is_left_alone(tmp_path: Path) -> None:
    hw.run("fedavg", data=(X, Y), out=tmp_path / "a", **QUICK)
    with pytest.raises(
        hw.OutputError, match=r"rounds is 1 there and 2 now\); choose another out=…, or remove"
    ) as caught:
        hw.run("fedavg", data=(X, Y), out=tmp_path / "a", **{**QUICK, "rounds": 2})
    assert "--" not in str(caught.value)
    (tmp_path / "file").write_text("x")
    with pytest.raises(hw.OutputError, match="part of it is a file; choose another out=…"):
        hw.run("fedavg", data=(X, Y), out=tmp_path / "file", **QUICK)


def test_data_far_from_unit_scale_is_mentioned_and_used_as_it_is() -> None:
    far = hw.Data(1000 * X, Y, 1000 * X, Y)
    with pytest.warns(UserWarning, match=r"hw\.Data is used as it is, and it has columns with means up to"):
        hw.partition(data=far, **QUICK)
    hw.partition(data=far, standardize=False, **QUICK)  # no warning, which would be an error here


def test_the_section_and_the_column_called_sector_do_not_mix() -> None:
    spec = hw.DistillSpec(epochs=1)
    found = hw.partition("fedhead", data=TABLE, label="kind", sector=spec, clients=3, sectors=1, engine="inline")
    assert found.experiment.config.sector["epochs"] == 1
