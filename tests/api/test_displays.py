"""What runs, comparisons, plans and splits show of themselves in a notebook and as text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import headwater as hw

Y = np.arange(120) % 3
X = (np.random.default_rng(0).normal(size=(120, 4)) * 0.6 + np.eye(3, 4)[Y]).astype(np.float32)
QUICK: dict[str, Any] = {"data": (X, Y), "clients": 4, "sectors": 2, "rounds": 2, "local__epochs": 1}
QUICK |= {"engine": "inline"}


@pytest.fixture(scope="module")
def found() -> hw.Comparison:
    return hw.compare(["fedavg", hw.FedAvg(by="uniform"), "local"], seeds=[0, 1, 2, 3, 4], **QUICK)


def shown(thing: Any) -> str:
    """The text of the HTML display, which must be well-formed and refer to nothing outside of it."""
    html = thing._repr_html_()
    assert not re.search(r"<script|href|src=|url\(", html)
    return " ".join("".join(ElementTree.fromstring(html).itertext()).split())


class TestComparison:
    def test_the_table_is_a_frame_of_numbers(self, found: hw.Comparison) -> None:
        frame = found.table()
        assert isinstance(frame, pd.DataFrame)
        assert list(frame.index) == ["fedavg (by samples)", "fedavg (by uniform)", "local"]
        assert frame["accuracy"].dtype == np.float64
        assert frame["bytes"].dtype == np.float64
        by_seed = [run.accuracy for run in found.runs if 'by = "uniform"' in run.config]
        assert frame["accuracy"].iloc[1] == pytest.approx(np.mean(by_seed))
        assert "reached target" not in frame.columns

    def test_differences_are_to_the_first_method(self, found: hw.Comparison) -> None:
        frame = found.table()
        first, second, _ = (found.runs[at::3] for at in range(3))
        gaps = [b.accuracy - a.accuracy for a, b in zip(first, second, strict=True)]
        assert frame["difference"].iloc[1] == pytest.approx(np.mean(gaps))
        assert np.isnan(frame["difference"].iloc[0])
        assert (frame["won"].iloc[1], frame["lost"].iloc[1]) == (sum(g > 0 for g in gaps), sum(g < 0 for g in gaps))
        away = (frame["difference low"] > 0) | (frame["difference high"] < 0)
        assert ((frame["star"] == "*") == away).all()

    def test_one_seed_has_no_differences(self, found: hw.Comparison) -> None:
        one = hw.Comparison(found.runs[:3])
        assert "difference" not in one.table().columns
        assert "Difference" not in one.to_markdown()
        two = hw.Comparison(found.runs[:6]).table()
        assert "difference" in two.columns
        assert "won" not in two.columns  # these need five seeds

    def test_a_target_is_counted_to(self, found: hw.Comparison) -> None:
        frame = found.table(target=0.34)
        assert frame.attrs["target"] == 0.34
        assert (frame["rounds to target"].dropna() >= 1).all()

    def test_it_is_text_for_papers(self, found: hw.Comparison) -> None:
        text = found.to_markdown()
        assert "Difference to fedavg (by samples)" in text
        assert re.search(r"\| local +\| 5 ", text)
        latex = found.to_latex()
        assert latex.startswith("\\begin{tabular}{lrr")
        assert "$\\pm$" in latex
        assert not re.search(r"(?<!\\)%|±|−|\u00a0", latex)
        assert "| accuracy" in re.sub(" +", " ", found.table().to_markdown())
        assert "\\toprule" in found.table().to_latex()
        assert str(found).startswith("| Method | Seeds |")

    def test_it_shows_itself(self, found: hw.Comparison) -> None:
        assert repr(found) == "<Comparison of fedavg (by samples), fedavg (by uniform), local over seeds 0, 1, 2, 3, 4>"
        assert "3 methods on arrays" in shown(found)
        assert found._repr_html_().count("<polyline") == 3


def test_a_run_shows_itself(found: hw.Comparison) -> None:
    run = found.runs[0]
    assert f"{100 * run.accuracy:.1f}" in shown(run)
    assert run._repr_html_().count("<polyline") == 1
    assert len(repr(run).splitlines()) <= 3


class TestPlan:
    def test_it_foresees_the_bytes_of_the_run(self, found: hw.Comparison) -> None:
        planned = hw.plan("fedavg", by="samples", **QUICK)
        assert planned.traffic is not None
        sent = planned.traffic.total["server_sector"]
        assert sent["up_bytes"] + sent["down_bytes"] == found.runs[0].ledger.bytes("server_sector")

    def test_it_shows_itself(self) -> None:
        planned = hw.plan("fedhead", **QUICK)
        assert "Plan of fedhead on arrays" in shown(planned)
        assert len(repr(planned).splitlines()) == 2


class TestPartition:
    def test_it_is_the_split_of_the_run(self, found: hw.Comparison) -> None:
        split = hw.partition("fedavg", **QUICK)
        assert split.sha256 == found.runs[0].result["partition_sha256"]
        assert split.counts.to_numpy().tolist() == found.runs[0].partition["counts"]
        assert list(split.clients["samples"]) == split.counts.sum(axis=1).tolist()
        assert split.sectors["samples"].sum() == split.clients["samples"].sum()

    def test_its_files_can_be_used(self, tmp_path: Path) -> None:
        split = hw.partition("fedavg", **QUICK)
        file = split.save(tmp_path / "partition.json")
        again = hw.partition("fedavg", scheme="manifest", manifest=str(file), **QUICK)
        assert again.sha256 == split.sha256
        assert split.figure(tmp_path / "split.png").stat().st_size > 1000
        with pytest.raises(hw.OutputError, match=r"\.png, \.svg or \.pdf"):
            split.figure(tmp_path / "split.txt")

    def test_it_shows_itself(self) -> None:
        split = hw.partition("fedavg", **QUICK)
        assert "4 in 2 sectors" in shown(split)
        assert len(repr(split).splitlines()) == 3

    def test_the_package_of_schemes_has_the_same_name(self) -> None:
        from headwater.partition import PARTITIONS

        assert "dirichlet" in PARTITIONS
        assert callable(hw.partition)
