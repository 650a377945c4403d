"""Inputs that fuzzing (`make fuzz`) found: each is refused with one sentence, or read for what it is."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

import headwater as hw
from headwater.cli.app import main
from headwater.config import Config
from headwater.core.records import DEEPEST, parse_json, parse_toml
from headwater.data.arrays import Owners
from headwater.data.loading import load
from headwater.deploy.folder import find
from headwater.deploy.payload import PayloadReader, Refused
from headwater.deploy.sent_log import sums
from headwater.deploy.transport import Message
from headwater.errors import LONGEST_MESSAGE, ConfigError, DataError, OutputError, UserError, said
from headwater.models.base import ModelSpec
from headwater.partition.manifest import Manifest
from headwater.report.numbers import number
from headwater.report.runs import read
from headwater.sweep import tuning
from headwater.training.run_directory import RunDirectory
from headwater.training.run_numbers import numbered

DEEP = "[" * 3000 + "]" * 3000
LONG = "9" * 5000


def sentence(error: BaseException) -> str:
    assert "\n" not in str(error)
    assert len(str(error)) < LONGEST_MESSAGE + 2
    return str(error)


class TestTexts:
    @pytest.mark.parametrize(("value", "told"), [(DEEP, "nested too deeply"), (LONG, "thousands of digits")])
    def test_a_configuration_file(self, value: str, told: str, tmp_path: Path) -> None:
        (tmp_path / "odd.toml").write_text(f"seed = {value}\n")
        with pytest.raises(ConfigError, match=told) as caught:
            Config.load(tmp_path / "odd.toml")
        assert "odd.toml is not valid TOML" in sentence(caught.value)
        with pytest.raises(ConfigError, match=told):
            Config.from_toml(f"seed = {value}\n")

    def test_words_of_set(self) -> None:
        with pytest.raises(ConfigError, match="nested too deeply") as caught:
            Config.load(None, [f"local.lr={DEEP}"])
        assert len(sentence(caught.value)) < 500
        with pytest.raises(ConfigError, match="seed must be") as caught:
            Config.load(None, [f"seed={LONG}"])
        with pytest.raises(ConfigError, match="KEY=VALUE") as caught:
            Config.load(None, ["x" * 5000])
        assert len(sentence(caught.value)) < 500
        with pytest.raises(ConfigError, match="no setting called") as caught:
            Config.load(None, [f"local.{'x' * 5000}=1"])
        assert len(sentence(caught.value)) < 2000

    def test_what_is_read_is_bounded_in_depth(self) -> None:
        def lists(levels: int) -> str:
            return "[" * levels + "]" * levels

        assert parse_json(lists(DEEPEST)) == json.loads(lists(DEEPEST))
        for levels in (DEEPEST + 1, 900, 100_000):
            with pytest.raises(ValueError, match="nested too deeply"):
                parse_json(lists(levels))
        assert parse_toml(f"a = {lists(DEEPEST - 1)}") == {"a": json.loads(lists(DEEPEST - 1))}
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_toml(f"a = {lists(DEEPEST)}")

    def test_messages_are_cut(self) -> None:
        assert len(str(UserError("x" * 10**6))) == LONGEST_MESSAGE + 1
        assert len(said(ValueError("x" * 10**6))) < 600
        assert UserError("short", 7).args == ("short", 7)

    def test_a_party_and_a_split(self, tmp_path: Path) -> None:
        (tmp_path / "party.toml").write_text(f"role = {DEEP}\n")
        with pytest.raises(ConfigError, match=r"party\.toml is not valid TOML"):
            find(tmp_path)
        (tmp_path / "partition.json").write_text(DEEP)
        with pytest.raises(DataError, match="could not be read as JSON"):
            Manifest(manifest=str(tmp_path)).fixed_split(np.zeros(3, dtype=np.int64), None)


class TestParties:
    def test_a_message_that_lists_no_values(self) -> None:
        with pytest.raises(Refused, match="which values"):
            PayloadReader({}, 1 << 20).unpack(Message({"cargo": 7}))

    def test_lines_of_other_types_in_what_was_sent(self, tmp_path: Path) -> None:
        rows = [{"bytes": 5, "round": 1, "kind": ["model"], "tier": "relay"}, {"bytes": 7, "round": 2, "to": {"a": 1}}]
        (tmp_path / "sent.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + DEEP)
        assert sum(total.bytes for total in sums(tmp_path).values()) == 12


class TestRuns:
    @pytest.fixture
    def run(self, tmp_path: Path) -> Path:
        (tmp_path / "config.toml").write_text('seed = 1\n[algorithm]\nname = "fedavg"\n')
        (tmp_path / "rounds.jsonl").write_text('{"round": 1, "accuracy": 0.5}\n')
        return tmp_path

    @pytest.mark.parametrize("name", ["result.json", "partition.json", "config.toml"])
    def test_deep_files(self, name: str, run: Path) -> None:
        (run / name).write_text(f"a = {DEEP}" if name.endswith("toml") else DEEP)
        with pytest.raises(UserError, match="nested too deeply") as caught:
            read(run)
        assert name in sentence(caught.value)

    def test_a_number_beyond_floats_is_not_known(self, run: Path) -> None:
        (run / "result.json").write_text(f'{{"accuracy": 1{"0" * 400}}}')
        assert number(10**400) is None
        assert read(run).accuracy == 0.5

    def test_what_a_killed_process_of_the_same_number_left_is_no_obstacle(self, tmp_path: Path) -> None:
        """In a container, every process may have the same number."""
        left = tmp_path / f".run.{os.getpid()}.draft"
        left.mkdir()
        (left / "config.toml").write_text("half a configu")
        config = Config.load("fedavg")
        assert RunDirectory(tmp_path / "run", config).path.is_dir()
        assert Config.load(tmp_path / "run" / "config.toml") == config
        left.mkdir()
        assert numbered(tmp_path / "run", lambda place: None) == tmp_path / "run-001"
        assert not left.exists()

    def test_moves_that_are_none(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (run / "result.json").write_text('{"ledger": {"moves": [{"to": "client", "kind": "model", "count": 1}]}}')
        assert main(["audit", str(run)]) == 2
        assert "is damaged: its list of moves" in capsys.readouterr().err

    def test_a_cut_tune_file_is_as_none(self, tmp_path: Path) -> None:
        """A process that was killed while it wrote in place left one; the next one could not carry on."""
        file = tmp_path / tuning.FILE
        assert tuning._known(file) == {}
        for content in ('{"asked": "x", "best"', "[]", DEEP):
            file.write_text(content)
            assert tuning._known(file) == {}
        file.write_text('{"asked": "x"}')
        assert tuning._known(file) == {"asked": "x"}


class TestData:
    def test_a_single_number_in_place_of_an_array(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", x=np.zeros((4, 2), dtype=np.float32), y=np.arange(4) % 2)
        np.savez(tmp_path / "b.npz", x=np.float32(1), y=np.arange(4) % 2)
        with pytest.raises(DataError, match=r"b\.npz has x of shape \(\)"):
            load(str(tmp_path))
        with pytest.raises(DataError, match="client has 0 entries for 4"):
            Owners.of(np.array(3), None, 4)  # type: ignore[arg-type]
        with pytest.raises(DataError, match=r"must be a word or a number, got the list \[1, 2\]"):
            Owners.of([np.array([1, 2])] * 2, None, 2)  # type: ignore[arg-type]

    def test_labels_of_another_shape(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", x=np.zeros((4, 2), dtype=np.float32), y=np.arange(4) % 2)
        np.savez(tmp_path / "b.npz", x=np.zeros((4, 2), dtype=np.float32), y=np.zeros((4, 1), dtype=np.int64))
        with pytest.raises(DataError, match=r"b\.npz has .* y of shape \(4, 1\)"):
            load(str(tmp_path))

    def test_types_that_do_not_go_together(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", x=np.zeros((4, 2), dtype=np.float32), y=np.arange(4) % 2)
        np.savez(tmp_path / "b.npz", x=np.zeros((4, 2), dtype="datetime64[s]"), y=np.arange(4) % 2)
        with pytest.raises(DataError, match=r"b\.npz has x of type datetime64"):
            load(str(tmp_path))

    def test_a_column_of_bytes(self, tmp_path: Path) -> None:
        pd = pytest.importorskip("pandas")
        pytest.importorskip("pyarrow")
        frame = pd.DataFrame({"a": [b"\xff\x00"] * 8, "b": range(8), "label": ["x", "y"] * 4})
        frame.to_parquet(tmp_path / "t.parquet")
        with pytest.raises(DataError, match="column 'a' holds bytes that are no text"):
            load(str(tmp_path / "t.parquet"), None, {"label": "label"})

    def test_a_model_that_is_too_large_to_exist(self) -> None:
        for width in (2**63 - 1, 2**70):
            with pytest.raises(ConfigError, match="cannot be built with hidden") as caught:
                ModelSpec("mlp", (1, 8, 8), 10, {"hidden": [width]}).outline()
            sentence(caught.value)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model") / "run"
    brief: dict[str, Any] = {"clients": 2, "sectors": 1, "rounds": 1, "local__epochs": 1, "data__fraction": 0.1}
    hw.run("fedavg", model="mlp", model__hidden=[4], out=place, progress=False, **brief)
    return place / "model.safetensors"


class TestModels:
    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"class_names": [["0"], "1"]}, "class_names"),
            ({"class_names": ["0"]}, "1 names for 10 classes"),
            ({"classes": 10.0}, "classes is 10.0"),
            ({"head": 7}, "head is 7"),
            ({"projection": True}, "projection is True"),
            ({"shape": [1, -8, 8]}, "shape is"),
            ({"options": {"hidden": [10**9]}}, "shape"),  # would need 256 GB
            ({"options": {"hidden": [2**70]}}, "cannot be built"),
        ],
    )
    def test_a_description_that_does_not_fit(
        self, change: dict[str, Any], told: str, file: Path, tmp_path: Path
    ) -> None:
        with safe_open(str(file), framework="pt") as opened:
            about = json.loads(opened.metadata()["headwater"])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
        save_file(tensors, tmp_path / "odd.safetensors", {"headwater": json.dumps(about | change)})
        with pytest.raises((OutputError, ConfigError), match=told) as caught:
            hw.load(tmp_path / "odd.safetensors").predict(np.zeros((2, 1, 8, 8), dtype=np.float32))
        sentence(caught.value)


class TestFuzzer:
    """Of every target a few cases, among them those that found something once. `make fuzz` has all of them."""

    @pytest.fixture(autouse=True)
    def _path(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "proof"))

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        ("name", "known"),
        [
            ("config", (1, 5, 26, 193, 211)),
            ("settings", (1, 212, 304)),
            ("tables", (285,)),
            ("arrays", (141, 147, 160)),
            ("checkpoints", ()),
            ("safetensors", (18, 42, 60, 61, 177, 207)),
            ("runs", (80, 193, 202, 213, 243)),
        ],
    )
    def test_cases(self, name: str, known: tuple[int, ...], tmp_path: Path) -> None:
        import targets

        target, taken = targets.TARGETS[name](tmp_path), 0
        for number_ in (*known, *range(10)):
            try:
                taken += target.case(random.Random(f"{name} {number_}"))
            except UserError as error:
                sentence(error)

    def test_changes_follow_from_the_number_of_the_case(self) -> None:
        import mutations

        tree = {"a": [1, 2.5, "x"], "b": {"c": None}}
        changed = [repr(mutations.changed_tree(random.Random(number_), tree)) for number_ in (*range(40), *range(40))]
        assert changed[:40] == changed[40:]
        assert len(set(changed)) > 30
        assert tree == {"a": [1, 2.5, "x"], "b": {"c": None}}
        text = bytes(range(200))
        assert len({mutations.changed_bytes(random.Random(number_), text) for number_ in range(40)}) > 30
