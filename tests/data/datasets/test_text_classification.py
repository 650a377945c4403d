"""AG News and SST-2, from their authors' files in small and from the packed ones."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

import headwater as hw
from headwater.data.loading import load
from headwater.errors import DataError


def news(folder: Path) -> Path:
    """As its authors give it: no header, classes from 1, everything in quotation marks."""
    where = folder / "ag_news"
    where.mkdir(parents=True)
    for part, count in (("train", 40), ("test", 8)):
        lines = [f'"{n % 4 + 1}","Title {n % 4} said ""so""","word{n % 4} text, more"' for n in range(count)]
        (where / f"{part}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return where


def films(folder: Path) -> Path:
    where = folder / "sst2" / "SST-2"
    where.mkdir(parents=True)
    for part, count in (("train", 30), ("dev", 6)):
        lines = [f'{"a good " if n % 2 else "a bad "}film " {n} \t{n % 2}' for n in range(count)]
        (where / f"{part}.tsv").write_text("sentence\tlabel\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return where


class TestOfficial:
    def test_news(self, tmp_path: Path) -> None:
        news(tmp_path)
        data = load("ag_news", tmp_path, {"length": 12, "words": 500})
        assert data.class_names == ("World", "Sports", "Business", "Sci/Tech")
        assert (len(data), len(data.test), data.shape, data.words) == (40, 8, (12,), 500)
        assert torch.bincount(data.train.y).tolist() == [10, 10, 10, 10]
        assert data.train.x.dtype == torch.int64
        assert len(torch.unique(data.train.x, dim=0)) == 4  # texts of one class are alike here

    def test_films(self, tmp_path: Path) -> None:
        films(tmp_path)
        data = load("sst2", tmp_path, {"length": 6})
        assert (len(data), len(data.test)) == (30, 6)
        # A quotation mark in the text is a sign: six tokens in all, so no row begins with padding.
        assert int((data.train.x[:, 0] == 0).sum()) == 30
        assert int((data.train.x[:, 1:] == 0).sum()) == 0

    def test_a_tenth_of_the_phrases_is_tested(self, tmp_path: Path) -> None:
        """The split is scikit-learn's with seed 100: of 30 rows the first three of its permutation."""
        where = films(tmp_path)
        (where / "dev.tsv").unlink()  # is not read
        data = load("sst2", tmp_path, {"length": 6, "tested": "tenth"})
        assert (len(data), len(data.test)) == (27, 3)
        held = sorted(np.random.RandomState(100).permutation(30)[:3].tolist())
        assert data.test.y.tolist() == [n % 2 for n in held]
        assert data.train.y.tolist() == [n % 2 for n in range(30) if n not in held]

    def test_news_are_learnt(self, tmp_path: Path) -> None:
        news(tmp_path)
        run = hw.run(
            "fedavg",
            data="ag_news",
            data__dir=str(tmp_path),
            data__length=8,
            partition={"clients": 2, "sectors": 1, "alpha": 100.0},
            rounds=3,
            validation=0,
            model="bilstm",
            model__embedding=8,
            model__widths=[8, 8],
            model__hidden=[16],
            local={"epochs": 20, "lr": 0.01},
        )
        assert run.accuracy == 1.0


class TestCounted:
    def test_only_words_of_clients_count(self, tmp_path: Path) -> None:
        """A word that occurs in the test part alone has no number of its own."""
        where = news(tmp_path)
        (where / "test.csv").write_text('"1","Title 0","unheard of"\n"2","Title 1","word1 text"\n', encoding="utf-8")
        run = hw.run(
            "fedavg",
            data="ag_news",
            data__dir=str(tmp_path),
            vocabulary="counted",
            data__length=8,
            clients=2,
            sectors=1,
            rounds=1,
            validation=0,
            reference_size=0,
            model="bilstm",
            model__widths=[4],
            model__hidden=[4],
        )
        setup = run.result["ledger"]["setup"]["sector_client"]
        assert setup["up_bytes"] > 0
        assert {"purpose": "setup", "from": "client", "to": "server", "kind": "word counts", "count": 2} in run.result[
            "ledger"
        ]["moves"]


class TestWrong:
    @pytest.mark.parametrize("name", ["ag_news", "sst2"])
    def test_absent(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(DataError, match=f"{name}.*is not in the data directory.*get it from http"):
            load(name, tmp_path)

    def test_one_file_is_missing(self, tmp_path: Path) -> None:
        (news(tmp_path) / "test.csv").unlink()
        with pytest.raises(DataError, match=r"has no test\.csv"):
            load("ag_news", tmp_path)

    @pytest.mark.parametrize("line", ['"5","a","b"', '"99999999999999999999","a","b"', '"one","a","b"', '"1","a"'])
    def test_damaged(self, tmp_path: Path, line: str) -> None:
        (news(tmp_path) / "train.csv").write_text(line + "\n", encoding="utf-8")
        with pytest.raises(DataError, match=r"train\.csv is damaged"):
            load("ag_news", tmp_path)

    def test_a_cut_file(self, tmp_path: Path) -> None:
        where = tmp_path / "sst2"
        where.mkdir()
        packed = gzip.compress(b"label,text\n1,good\n0,bad\n" * 50)
        (where / "train_sentences.csv.gz").write_bytes(packed[: len(packed) // 2])
        (where / "test.csv.gz").write_bytes(packed)
        with pytest.raises(DataError, match=r"train_sentences\.csv\.gz is damaged"):
            load("sst2", tmp_path, {"part": "sentences"})
