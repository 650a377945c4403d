"""Mistakes of the caller's: status 2, one sentence that names what is wrong, no traceback, and earlier results whole.

Every case is given the directory of a finished run as its place for results, so that a command which wrote before it
checked would be caught.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwater.cli.app import main
from headwater.config import Config
from headwater.training.experiment import prepare
from headwater.training.loop import train

Call = Callable[..., Any]
Files = Callable[[Path], dict[str, bytes]]


@pytest.fixture(scope="module")
def earlier(npz: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run, alone in its folder."""
    out = tmp_path_factory.mktemp("results") / "earlier"
    sets = ["--set", f"data.name={npz}", "--set", "partition.clients=4", "--set", "local.epochs=1"]
    assert main(["run", "fedavg", *sets, "--rounds", "1", "--engine", "inline", "--quiet", "--out", str(out)]) == 0
    return out


@pytest.fixture
def wrong(call: Call, earlier: Path, snapshot: Files) -> Callable[..., None]:
    """Run a command that must be refused, and check how."""

    def check(*words: str | Path, names: tuple[str, ...]) -> None:
        before = snapshot(earlier.parent)
        told = call(*words)
        assert told.status == 2, told
        assert told.out == ""
        assert told.err.startswith("headwater: ")
        assert told.err.count("\n") == 1
        assert told.err.endswith("\n")
        assert "Traceback" not in told.err
        assert len(told.err) < 3000
        for name in names:
            assert name in told.err, told.err
        assert snapshot(earlier.parent) == before

    return check


# One --set each: the pair, and what the sentence must name.
SETS = [
    # keys that there are not, at each level
    ("round=3", ("'round'", "did you mean 'rounds'?")),
    ("dta.name=digits", ("'dta'", "did you mean 'data'?")),
    ("data.nam=digits", ("'data.nam'", "did you mean 'data.name'?")),
    ("partition.client=3", ("'partition.client'", "data.client")),
    ("partition.alhpa=3", ("'partition.alhpa'", "did you mean 'partition.alpha'?")),
    ("model.nmae=cnn", ("'model.nmae'", "did you mean 'model.name'?")),
    ("model.shortcuts=padding", ("'model.shortcuts'", "did you mean 'model.shortcut'?")),
    ("algorithm.leadr=fixed", ("'algorithm.leadr'", "did you mean 'algorithm.leader'?")),
    ("local.learning_rate=1", ("'local.learning_rate'", "accepted in [local]")),
    ("sector.temprature=2", ("'sector.temprature'", "did you mean 'sector.temperature'?")),
    ("engine.worker=2", ("'engine.worker'", "did you mean 'engine.workers'?")),
    ("faults.dropouts=0.1", ("'faults.dropouts'", "did you mean 'faults.dropout'?")),
    ("privacy.masked=1.0", ("'privacy.masked'", "accepted in [privacy]")),
    ("alpha=0.5", ("'alpha'", "did you mean 'partition.alpha'?")),
    # names that there are not
    ("algorithm.name=fedhed", ("algorithm.name", "'fedhed'", "did you mean 'fedhead'?")),
    ("algorithm.name=no.such:Method", ("algorithm.name", "no.such")),
    ("data.name=digit", ("data.name", "'digit'", "did you mean 'digits'?")),
    ("data.reference=holdot", ("data.reference", "'holdot'", "did you mean 'holdout'?")),
    ("model.name=resnet9", ("model.name", "'resnet9'", "did you mean 'resnet8'?")),
    ("partition.scheme=dirichlt", ("partition.scheme", "'dirichlt'", "did you mean 'dirichlet'?")),
    ("partition.assign=block", ("partition.assign", "'block'", "did you mean 'blocks'?")),
    ("engine.name=pol", ("engine.name", "'pol'", "did you mean 'pool'?")),
    ("local.optimizer=adm", ("local.optimizer", "'adm'", "did you mean 'adam'?")),
    ("sector.restore=beste", ("sector.restore", "'beste'", "did you mean 'best'?")),
    ("model.buffers=mean", ("model.buffers", "'mean'", "'average', 'first'")),
    # objects that are something else; none of them is called
    ("algorithm.name=headwater:run", ("algorithm.name", "is not a method", "init(fed, model)")),
    ("algorithm.name=headwater:Data", ("algorithm.name", "is not a method")),
    ("algorithm.name=os:system", ("algorithm.name", "is not a method")),
    ("algorithm.name=:", ("algorithm.name", "'package.module:name'")),
    ("data.name=os:system", ("'os:system'", "is not called", "-> hw.Data")),
    ("data.name=os:getcwd", ("'os:getcwd'", "is not called", "-> hw.Data")),
    ("data.name=headwater:run", ("'headwater:run'", "is not called", "-> hw.Data")),
    ("data.name=:", ("'package.module:name'",)),
    ("data.reference=os:getcwd", ("'os:getcwd'", "is not called", "-> hw.Data")),
    ("model.name=os:getcwd", ("'os:getcwd'", "is not called", "no torch.nn.Module")),
    ("model.name=headwater:run", ("'headwater:run'", "is not called", "torch.nn.Module")),
    ("partition.scheme=builtins:str", ("partition.scheme", "is not a partition scheme")),
    ("engine.name=os:system", ("engine.name", "'os:system'", "from_config")),
    # names of 5000 letters
    (f"algorithm.name={'a' * 5000}", ("algorithm.name", "5,000 letters", "known:")),
    (f"algorithm.name={'a' * 5000}:b", ("algorithm.name", "5,002 letters", "'package.module:name'")),
    (f"data.name={'a' * 5000}", ("data.name", "5,000 letters", "digits")),
    (f"data.name={'a' * 5000}:b", ("5,002 letters", "'package.module:name'")),
    (f"data.reference={'a' * 5000}", ("data.reference", "5,000 letters")),
    (f"model.name={'a' * 5000}", ("model.name", "5,000 letters", "known:")),
    (f"partition.scheme={'a' * 5000}", ("partition.scheme", "5,000 letters", "known:")),
    (f"engine.name={'a' * 5000}", ("engine.name", "5,000 letters")),
    # types
    ("rounds=many", ("rounds", "'many'", "a whole number")),
    ("rounds=2.5", ("rounds", "2.5", "a whole number")),
    ("rounds=true", ("rounds", "true", "a whole number")),
    ("seed='0'", ("seed", "'0'", "a whole number")),
    ("data.fraction=half", ("data.fraction", "'half'", "a number")),
    ("data.name=3", ("data.name", "3", "text")),
    ("algorithm.leader=1", ("algorithm.leader", "1", "'random'")),
    ("partition.drop_remainders=yes", ("partition.drop_remainders", "'yes'", "true or false")),
    ("data=digits", ("data is a section", "'digits'")),
    ("local.lr=2020-01-01", ("local.lr", "a number")),
    ("local={lr=0.1,clip=-1}", ("local.clip", "-1")),
    # ranges
    ("rounds=0", ("rounds", "0", "at least 1")),
    ("seed=-1", ("seed", "-1", "at least 0")),
    ("eval_every=0", ("eval_every", "0")),
    ("partition.alpha=0", ("partition.alpha", "0", "above 0")),
    ("partition.alpha=-0.1", ("partition.alpha", "-0.1", "above 0")),
    ("partition.alpha=inf", ("partition.alpha", "inf", "finite")),
    ("partition.alpha=nan", ("partition.alpha", "nan", "finite")),
    ("partition.clients=0", ("partition.clients", "0", "at least 1")),
    ("partition.sectors=30", ("partition.sectors", "30", "20 clients")),
    ("partition.participation=0", ("partition.participation", "0", "above 0")),
    ("partition.participation=1.1", ("partition.participation", "1.1", "at most 1")),
    ("partition.local_test=1", ("partition.local_test", "1", "below 1")),
    ("data.fraction=0", ("data.fraction", "0", "above 0")),
    ("data.validation=1.5", ("data.validation", "1.5", "a share below 1")),
    ("data.validation=-3", ("data.validation", "-3")),
    ("data.reference_size=-1", ("data.reference_size", "-1", "at least 0")),
    ("faults.dropout=1", ("faults.dropout", "1", "below 1")),
    ("local.lr=0", ("local.lr", "0", "above 0")),
    ("sector.patience=0", ("sector.patience", "0", "at least 1")),
    ("engine.workers=-1", ("engine.workers", "-1", "at least 0")),
    # what does not go together
    ("server.lr=0.1", ("server.lr", "'fedhead' has no server stage")),
    ("partition.min_size=3", ("'partition.min_size'", "with 'dirichlet'")),
    ("data.client=hospital", ("data.client", "is not a table")),
    ("partition.assign=[0, 1]", ("partition.assign", "2 sectors for 20 clients")),
    (f"partition.assign={[0] * 19 + [2]}", ("partition.assign", "client 19", "sector 2")),
    (f"partition.assign={[0] * 20}", ("partition.assign", "sector 1 without clients")),
    (f"partition.assign={[0.5] * 20}", ("partition.assign", "0.5")),
    # the option itself
    ("rounds", ("--set", "'rounds'", "KEY=VALUE")),
    ("=3", ("--set", "'=3'")),
    ("local..lr=3", ("--set", "'local..lr=3'")),
    ("partition.assign=[0, 1", ("--set", "partition.assign", "TOML")),
    ("extends=demo", ("extends", "--set")),
]


@pytest.mark.parametrize(("pair", "names"), SETS, ids=[pair[:60] for pair, _ in SETS])
def test_a_setting(wrong: Callable[..., None], earlier: Path, pair: str, names: tuple[str, ...]) -> None:
    wrong("run", "--set", pair, "--out", earlier, "--force", "--quiet", names=names)


CLASHES = [
    (("local.epochs=1", "local.steps=1"), ("local", "either epochs or steps")),
    (("local.optimizer=adam", "local.momentum=0.9"), ("local", "momentum", "'adam'")),
    (("model.name=mlp", "model.norm=batch"), ("'model.norm'", "with 'mlp'")),
    (("model.name=cnn", "model.shortcut=padding"), ("'model.shortcut'",)),
    (("model.name=mlp", "model.hidden=9"), ("model.hidden", "9", "a list of whole numbers")),
    (("data.validation=0", "sector.patience=3"), ("sector.patience", "data.validation")),
    (("data.validation=0", "sector.restore=best"), ("sector.restore", "data.validation")),
    (("algorithm.name=feddf", "data.reference_size=0"), ("data.reference_size",)),
    (("data.validation=2000",), ("2000", "data.validation")),
    (("partition.scheme=dirichlet-balanced", "partition.clients=900"), ("900", "min_size")),
    (("model.name=resnet8", "model.norm=layer"), ("model.norm", "'layer'")),
    (("model.name=resnet18", "model.norm=none"), ("norm", "'none'")),
    (("model.name=bilstm",), ("'bilstm' reads token numbers", "'auto'")),
    (("model.name=no_such_module:make",), ("no_such_module",)),
    (("data.name=no_such_module:make",), ("no_such_module",)),
    (("data.reference=fashion_mnist", "data.dir=/nonexistent"), ("fashion_mnist", "/nonexistent", "--data-dir")),
    (("data.name=cifar10", "data.dir=/nonexistent"), ("cifar10", "/nonexistent", "--data-dir")),
    (("rounds=0", "seed=x", "local.lr=z"), ("rounds", "(and 2 more problems)")),
]


@pytest.mark.parametrize(("sets", "names"), CLASHES, ids=[" ".join(sets) for sets, _ in CLASHES])
def test_settings_together(
    wrong: Callable[..., None], earlier: Path, sets: tuple[str, ...], names: tuple[str, ...]
) -> None:
    words = [word for pair in sets for word in ("--set", pair)]
    wrong("run", *words, "--out", earlier, "--force", "--quiet", names=names)


USAGE = [
    (("rnu",), ("'rnu'", "did you mean 'run'?")),
    (("run", "--ronds", "3"), ("--ronds", "--rounds")),
    (("run", "--rounds"), ("--rounds", "requires an argument")),
    (("run", "--rounds", "x"), ("--rounds", "'x'", "integer")),
    (("run", "demo", "demo"), ("unexpected extra argument", "demo")),
    (("list", "algorithm"), ("'algorithm'", "did you mean 'algorithms'?")),
    (("compare",), ("missing argument",)),
    (("compare", "fedavg", "fedavgg"), ("algorithm.name", "'fedavgg'", "did you mean 'fedavg'?")),
    (("compare", "fedavg", "fedavg"), ("'fedavg' is named twice",)),
    (("compare", "fedavg", "--seeds", "0;1"), ("--seeds", "'0;1'")),
    (("compare", "fedavg", "--seeds", "0,0"), ("--seeds", "0", "twice")),
    (("compare", "fedavg", "--seeds", "0", "--seed", "1"), ("--seed and --seeds",)),
    (("compare", "fedavg", "--seeds", "-1"), ("seed", "-1")),
    (("compare", "fedavg", "--target", "80"), ("--target", "80", "0.8")),
    (("compare", "fedavg", "local", "--set", "sector.lr=1"), ("sector.lr", "none of fedavg, local")),
    (("compare", "fedavg", "--set", "algorithm.leader=fixed"), ("'algorithm.leader'",)),
    (("compare", "fedavg", "--config", "dmeo"), ("'dmeo'", "did you mean 'demo'")),
    (("run", "fedhead/tabel2"), ("'fedhead/tabel2'", "did you mean 'fedhead/table2' or ", "headwater list presets")),
    (("run", "fedavg", "--set", "privacy.noize=1"), ("'privacy.noize'",)),
    (("run", "fedavg", "--set", "local.tau=1"), ("'local.tau'", "did you mean 'algorithm.tau' (of moon)?")),
    (("config", "sektors"), ("'sektors'", "did you mean 'sectors'?")),
    (("runs", "nowhere"), ("there is no directory nowhere",)),
    (("audit", "nowhere"), ("nowhere",)),
    (("run", "--from", "nowhere"), ("model.start", "nowhere")),
    (("run", "nowhere.toml"), ("'nowhere.toml'",)),
    (("resume", "nowhere"), ("nowhere", "there is no directory")),
    (("report", "nowhere"), ("nowhere",)),
    (("run", "a" * 5000), ("preset or file", "5,000 letters")),
    (("run", f"{'a' * 5000}:b"), ("algorithm.name", "5,002 letters")),
    (("resume", "a" * 5000), ("5,000 letters", "too long")),
    (("report", "a" * 5000), ("5,000 letters", "too long")),
    (("compare", "a" * 5000), ("algorithm.name", "5,000 letters")),
    (("report",), ("missing argument",)),
    (("partition", "--set", "partition.alpha=0", "--quiet"), ("partition.alpha", "0")),
]


@pytest.mark.parametrize(("words", "names"), USAGE, ids=[" ".join(words)[:60] for words, _ in USAGE])
def test_a_command_line(
    wrong: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    names: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong(*words, names=names)
    assert list(tmp_path.iterdir()) == []


X, Y = np.ones((12, 4), np.float32), np.arange(12) % 3


def _broken_arrays() -> dict[str, tuple[dict[str, Any], tuple[str, ...]]]:
    nan = X.copy()
    nan[3, 1] = np.nan
    good = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y}
    return {
        "NaN pixels": (good | {"x_train": nan}, ("x_train", "NaN")),
        "infinite pixels": (good | {"x_test": X * np.inf}, ("x_test",)),
        "labels below 0": (good | {"y_train": Y - 1}, ("y_train", "-1")),
        "test labels out of range": (good | {"y_test": Y + 5}, ("7",)),
        "labels with fractions": (good | {"y_train": Y + 0.5}, ("y_train",)),
        "fewer labels than samples": (good | {"y_train": Y[:5]}, ("5", "12")),
        "shapes that differ": (good | {"x_test": X[:, :3]}, ("(4,)", "(3,)")),
        "no samples": (good | {"x_train": X[:0], "y_train": Y[:0]}, ("x_train",)),
        "Python objects": (good | {"x_train": np.array([{}] * 12)}, ("broken.npz",)),
        "other names": ({"images": X, "labels": Y}, ("images, labels", "x_train")),
    }


@pytest.mark.parametrize("case", _broken_arrays())
def test_a_data_file(wrong: Callable[..., None], earlier: Path, tmp_path: Path, case: str) -> None:
    arrays, names = _broken_arrays()[case]
    np.savez(tmp_path / "broken.npz", **arrays)
    sets = ("--set", f"data.name={tmp_path / 'broken.npz'}", "--set", "partition.clients=2")
    wrong("run", *sets, "--out", earlier, "--force", "--quiet", names=("broken.npz", *names))


@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.99])
def test_a_truncated_data_file(
    wrong: Callable[..., None], earlier: Path, npz: Path, tmp_path: Path, kept: float
) -> None:
    whole = npz.read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: int(kept if kept >= 1 else kept * len(whole))])
    words = ("run", "--set", f"data.name={tmp_path / 'cut.npz'}", "--out", earlier, "--force", "--quiet")
    wrong(*words, names=("cut.npz", "damaged"))


def test_a_missing_data_file(wrong: Callable[..., None], earlier: Path) -> None:
    words = ("run", "--set", "data.name=nowhere/a.npz", "--out", earlier, "--force", "--quiet")
    wrong(*words, names=("nowhere/a.npz", "there is no file"))


SOURCES = {
    "a circle of two": ({"a.toml": 'extends = "b.toml"', "b.toml": 'extends = "a.toml"'}, ("circle", "b.toml")),
    "a circle of one": ({"a.toml": 'extends = "a.toml"'}, ("circle", "a.toml")),
    "extends nothing there is": (
        {"a.toml": 'extends = "fedhead/table9"'},
        ("'fedhead/table9'", "did you mean"),
    ),
    "extends a number": ({"a.toml": "extends = 3"}, ("extends", "3")),
    "not TOML": ({"a.toml": "rounds: 3"}, ("a.toml", "not valid TOML", "line 1")),
    "not text": ({"a.toml": b"\xff\xfe\x00"}, ("a.toml", "could not be read as text")),
    "a key twice": ({"a.toml": "rounds = 1\nrounds = 2"}, ("a.toml", "not valid TOML")),
    "an unknown section": ({"a.toml": "[optimiser]\nlr = 1"}, ("'optimiser'",)),
    "a typo in an unused stage": ({"a.toml": "[server]\nepoch = 1"}, ("'server.epoch'", "server.epochs")),
}


@pytest.mark.parametrize("case", SOURCES)
def test_a_configuration_file(wrong: Callable[..., None], earlier: Path, tmp_path: Path, case: str) -> None:
    files, names = SOURCES[case]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    wrong("run", tmp_path / "a.toml", "--out", earlier, "--force", "--quiet", names=names)


def test_a_directory_as_configuration(wrong: Callable[..., None], earlier: Path) -> None:
    wrong("run", earlier, "--quiet", names=("is a directory", f"headwater resume {shlex.quote(str(earlier))}"))


class TestOutput:
    def test_a_directory_with_another_run(
        self, wrong: Callable[..., None], earlier: Path, small: tuple[str, ...]
    ) -> None:
        words = ("run", "fedavg", *small, "--rounds", "2", "--out", earlier)
        wrong(*words, names=(str(earlier), "rounds is 1 there and 2", "--force", "--out"))

    def test_a_comparison_over_another_run(
        self, wrong: Callable[..., None], call: Call, small: tuple[str, ...], tmp_path: Path
    ) -> None:
        words = ("compare", "fedavg", *small, "--out", tmp_path / "c")
        assert call(*words, "--rounds", 1).status == 0
        wrong(*words, "--rounds", "2", names=("rounds is 1 there and 2", "--force"))

    def test_a_configuration_of_the_users_own_is_never_replaced(
        self, wrong: Callable[..., None], small: tuple[str, ...], tmp_path: Path
    ) -> None:
        file = tmp_path / "config.toml"
        file.write_text("rounds = 1\n")
        wrong("run", file, *small, "--out", tmp_path, "--force", names=(str(file), "not written by a run"))
        assert file.read_text() == "rounds = 1\n"

    def test_parts_of_a_run(
        self, wrong: Callable[..., None], earlier: Path, small: tuple[str, ...], tmp_path: Path
    ) -> None:
        shutil.copytree(earlier, tmp_path / "a")
        (tmp_path / "a/config.toml").unlink()
        wrong("run", "fedavg", *small, "--out", tmp_path / "a", names=("parts of a run", "--force"))
        assert (tmp_path / "a/result.json").exists()

    def test_a_run_whose_configuration_is_cut_short(
        self, wrong: Callable[..., None], earlier: Path, small: tuple[str, ...], tmp_path: Path
    ) -> None:
        shutil.copytree(earlier, tmp_path / "a")
        file = tmp_path / "a/config.toml"
        file.write_text(file.read_text()[:200] + "\n[data")
        wrong("run", "fedavg", *small, "--out", tmp_path / "a", names=("config.toml", "cannot be read", "--force"))
        wrong("resume", tmp_path / "a", names=("config.toml", "cannot be read"))

    @pytest.mark.parametrize("command", ["run", "partition"])
    def test_a_file_in_the_way(self, wrong: Callable[..., None], tmp_path: Path, npz: Path, command: str) -> None:
        (tmp_path / "a").write_text("mine")
        for out in ("a", "a/b", "a/b/c"):
            wrong(
                command, "--set", f"data.name={npz}", "--quiet", "--out", tmp_path / out, names=("is a file", "--out")
            )
        assert (tmp_path / "a").read_text() == "mine"

    def test_another_split_in_the_way(self, wrong: Callable[..., None], earlier: Path, npz: Path) -> None:
        words = ("partition", "--set", f"data.name={npz}", "--quiet", "--out", earlier)
        wrong(*words, names=("partition.json", "another split", "--force"))

    def test_a_place_where_nothing_can_be_made(self, wrong: Callable[..., None], small: tuple[str, ...]) -> None:
        if not Path("/proc/self").is_dir():
            pytest.skip("there is no /proc here")
        wrong("run", "fedavg", *small, "--out", "/proc/headwater/a", names=("/proc/headwater",))

    def test_a_report_over_a_file(self, wrong: Callable[..., None], earlier: Path, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("mine")
        wrong("report", earlier, "--out", tmp_path / "a", "--quiet", names=("is a file",))


class TestDamagedRuns:
    def test_no_run_in_the_directory(self, wrong: Callable[..., None], tmp_path: Path) -> None:
        wrong("resume", tmp_path, names=(str(tmp_path), "config.toml"))
        wrong("report", tmp_path, "--quiet", names=(str(tmp_path), "no run"))

    def test_checkpoints_that_cannot_be_read(self, wrong: Callable[..., None], npz: Path, tmp_path: Path) -> None:
        def stop(event: Any) -> None:
            if event.kind == "round":
                raise KeyboardInterrupt

        sets = [f"data.name={npz}", "partition.clients=4", "local.epochs=1", "engine.name=inline", "rounds=3"]
        with pytest.raises(KeyboardInterrupt):
            train(prepare(Config.load("fedavg", sets)), out=tmp_path / "a", watch=stop)
        for head in (tmp_path / "a/checkpoints").glob("round-*.json"):
            head.write_text(head.read_text()[:50])
        wrong("resume", tmp_path / "a", "--quiet", names=("checkpoint", "--force"))

    @pytest.mark.parametrize("name", ["rounds.jsonl", "result.json", "partition.json"])
    def test_a_file_that_was_altered(
        self, wrong: Callable[..., None], earlier: Path, tmp_path: Path, name: str
    ) -> None:
        shutil.copytree(earlier, tmp_path / "a")
        (tmp_path / "a" / name).write_text('{"round": \n{"round": 1}\n')
        wrong("report", tmp_path / "a", "--out", tmp_path / "r", "--quiet", names=(name,))

    def test_a_manifest_that_was_altered(self, earlier: Path) -> None:
        from headwater.errors import DataError
        from headwater.partition.partition import Partition

        manifest = json.loads((earlier / "partition.json").read_text())
        manifest["sectors"][0] = 1 - manifest["sectors"][0]
        with pytest.raises(DataError, match="was changed"):
            Partition.from_manifest(manifest)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A small file system of its own, where this user may make one."""
    folder = tmp_path / "mounted"
    folder.mkdir()

    def mount(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "headwater", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount command")
        if done.returncode:
            pytest.skip(f"a file system cannot be mounted here ({done.stderr.strip()})")
        return folder

    yield mount
    if os.path.ismount(folder):
        subprocess.run(["umount", str(folder)], check=True)


class TestDisk:
    def test_a_read_only_directory(
        self, wrong: Callable[..., None], small: tuple[str, ...], mounted: Callable[[str], Path]
    ) -> None:
        folder = mounted("ro,size=64k")
        wrong("run", "fedavg", *small, "--out", folder / "a", names=(str(folder), "read-only"))
        wrong("run", "fedavg", *small, "--out", folder, names=(str(folder), "read-only"))

    @pytest.mark.parametrize(
        "room", ["4k", "64k", *(pytest.param(room, marks=pytest.mark.thorough) for room in ("8k", "12k", "300k"))]
    )
    def test_a_full_disk(
        self,
        wrong: Callable[..., None],
        call: Call,
        small: tuple[str, ...],
        earlier: Path,
        mounted: Callable[[str], Path],
        snapshot: Files,
        room: str,
    ) -> None:
        """Wherever the room ends: a sentence, no file cut short, and with more room the same command carries on."""
        folder = mounted(f"size={room}")
        words = ("run", "fedhead", *small, "--rounds", "4", "--out", folder / "a")
        wrong(*words, names=("the disk is full",))
        done = subprocess.run(["mount", "-o", "remount,size=4m", str(folder)], check=False)
        assert done.returncode == 0
        assert call(*words).status == 0
        assert (folder / "a/report.html").exists()
