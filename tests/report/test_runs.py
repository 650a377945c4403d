"""Reading directories back: whole, killed, broken and nested ones."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.errors import UserError
from headwater.report.runs import find, read, tree_bytes


class TestAccepts:
    def test_a_finished_run(self, fake, tmp_path):
        made = fake(method="fedhead", label="FedHEAD", seed=3, distils=True)
        run = read(made.write(tmp_path / "run"))
        rows = made.rows()
        assert (run.label, run.algorithm, run.seed, run.finished) == ("FedHEAD", "fedhead", 3, True)
        assert run.rows == rows
        assert run.config == made.config
        assert run.accuracy == rows[-1]["accuracy"]
        assert run.interval == pytest.approx((rows[-1]["accuracy"] - 0.015, rows[-1]["accuracy"] + 0.013))
        assert run.best == max(row["accuracy"] for row in rows)
        assert (run.done, run.planned) == (8, 8)
        assert run.seconds == pytest.approx(8 * 0.65)
        assert run.traffic()[3] == 3 * 2 * 2 * made.model_bytes
        assert run.sent("sector_client", "up") == 8 * 10 * made.model_bytes
        assert run.setup == 3 * 115_200, "models and round trips of the setup are no bytes"

    def test_a_run_without_result_counts_its_rows(self, fake, tmp_path):
        made = fake(method="mtgc", label="MTGC", rounds=8, stop=3)
        run = read(made.write(tmp_path / "run"))
        assert not run.finished
        assert run.label == "mtgc"
        assert (run.done, run.planned) == (3, 8)
        assert run.accuracy == made.rows()[-1]["accuracy"]
        assert run.sent("server_sector", "down") == 3 * 2 * made.model_bytes
        assert run.seconds == pytest.approx(3 * 0.45)
        assert (run.interval, run.setup, run.ledger("server_sector")) == (None, None, {})

    @pytest.mark.parametrize(
        "cut", [b'{"round": 4, "accur', b'{"round": 4, "name": "\xc3', b"{", b'"text"', b"\x00\x00"]
    )
    def test_a_last_line_that_stops_in_the_middle_is_ignored(self, fake, tmp_path, cut):
        path = fake(stop=3).write(tmp_path / "run")
        with (path / "rounds.jsonl").open("ab") as file:
            file.write(cut)
        assert [row["round"] for row in read(path).rows] == [1, 2, 3]

    def test_the_newest_row_of_a_repeated_round_counts(self, fake, tmp_path):
        path = fake(stop=3).write(tmp_path / "run")
        with (path / "rounds.jsonl").open("a") as file:
            file.write(json.dumps({"round": 2, "accuracy": 0.5}) + "\n")
        assert read(path).curve()[1] == (2, 0.5)

    def test_values_that_are_no_numbers_are_left_out(self, fake, tmp_path):
        path = fake(stop=1).write(tmp_path / "run")
        rows = [math.nan, None, "0.5", True, math.inf, 0.25]
        lines = [json.dumps({"round": at, "accuracy": value}) for at, value in enumerate(rows, start=1)]
        (path / "rounds.jsonl").write_text("\n".join(lines))
        assert read(path).curve() == [(6, 0.25)]

    def test_a_run_that_has_only_begun(self, fake, tmp_path):
        path = fake(stop=1).write(tmp_path / "run")
        (path / "rounds.jsonl").unlink()
        (path / "partition.json").unlink()
        run = read(path)
        assert (run.rows, run.partition, run.accuracy, run.best, run.seconds, run.done) == (
            [],
            None,
            None,
            None,
            None,
            0,
        )
        assert run.sent("server_sector", "up") is None

    def test_parts_of_a_ledger(self):
        assert tree_bytes(7) == 7
        assert tree_bytes({"a": {"up_bytes": 2, "up_models": 9}, "b": {"down_bytes": 3, "round_trips": 9}}) == 5
        assert tree_bytes([{"count": 3}]) is None


class TestRefuses:
    def test_a_directory_without_configuration(self, tmp_path):
        with pytest.raises(UserError, match=r"holds no config\.toml.*headwater run"):
            read(tmp_path)

    def test_broken_files_are_named(self, fake, tmp_path):
        path = fake().write(tmp_path / "run")
        lines = (path / "rounds.jsonl").read_text().splitlines()
        (path / "rounds.jsonl").write_text("\n".join([lines[0], "{oops", lines[2]]))
        with pytest.raises(UserError, match=r"line 2 of .*rounds\.jsonl"):
            read(path)
        (path / "rounds.jsonl").unlink()
        (path / "result.json").write_text('{"accuracy": 0.')
        with pytest.raises(UserError, match=r"result\.json.*resume"):
            read(path)
        (path / "result.json").write_text("[1]")
        with pytest.raises(UserError, match="holds a list"):
            read(path)
        (path / "config.toml").write_text("rounds = ")
        with pytest.raises(UserError, match=r"config\.toml.*not valid TOML"):
            read(path)


class TestFind:
    def test_a_comparison_in_natural_order(self, fake, comparison, tmp_path):
        out = comparison(tmp_path / "out", seeds=(10, 2))
        found = find(out)
        assert [(run.algorithm, run.seed) for run in found[:3]] == [("fedavg", 2), ("fedavg", 10), ("feddf", 2)]
        assert len(found) == 8

    def test_a_run_is_found_once(self, fake, tmp_path):
        path = fake().write(tmp_path / "out" / "run")
        (tmp_path / "out" / "again").symlink_to(path, target_is_directory=True)
        (tmp_path / "out" / "loop").symlink_to(tmp_path / "out", target_is_directory=True)
        assert len(find([path, tmp_path / "out", str(path)])) == 1

    def test_what_lies_inside_a_run_is_not_another_run(self, fake, tmp_path):
        path = fake().write(tmp_path / "run")
        fake(seed=1).write(path / "checkpoints" / "old")
        assert [run.seed for run in find(path)] == [0]

    def test_a_configuration_above_runs_is_a_sweep(self, fake, tmp_path):
        fake(seed=4).write(tmp_path / "sweep" / "cell")
        (tmp_path / "sweep" / "config.toml").write_text("rounds = 3\n")
        assert [run.seed for run in find(tmp_path / "sweep")] == [4]

    @pytest.mark.parametrize("make", [False, True])
    def test_nothing_there(self, tmp_path, make):
        path = tmp_path / "empty"
        if make:
            path.mkdir()
        with pytest.raises(UserError, match="--out directory"):
            find([path])

    def test_no_directory_at_all(self):
        with pytest.raises(UserError, match="name one or more directories"):
            find([])


def test_torch_stays_away(fake, tmp_path):
    path = fake().write(tmp_path / "run")
    work = f"from headwater import report; report.export([{str(path)!r}], {str(tmp_path)!r})"
    code = f"import sys; {work}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert Path(tmp_path / "report.html").exists()


def test_missing_rounds_are_counted_whatever_number_a_damaged_result_has(fake, tmp_path):
    path = fake(method="fedavg", label="FedAvg", rounds=8).write(tmp_path / "run")
    result = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps(result | {"rounds": 10**15}))
    assert f"lacks {10**15 - 8} of {10**15} rounds, the first is 9" in read(path).damage
    lines = (path / "rounds.jsonl").read_text().splitlines(keepends=True)
    (path / "rounds.jsonl").write_text("".join(lines[:2] + lines[3:]))
    (path / "result.json").write_text(json.dumps(result))
    assert "lacks 1 of 8 rounds, the first is 3" in read(path).damage
