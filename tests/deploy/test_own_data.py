"""A client's own file is read as `init` read its data: the same rows give the same bits, other data is refused."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from headwater.config import Config
from headwater.data.base import Examples
from headwater.data.preparation import from_json, pack, to_json
from headwater.deploy.agreement import client_context
from headwater.deploy.folder import PartyFolder
from headwater.deploy.init import init
from headwater.deploy.own_data import own_data
from headwater.errors import ConfigError, DataError, UserError
from headwater.training.experiment import Experiment, prepare

pytest.importorskip("cryptography")
HEAD = ["row", "age", "Blood Sugar", "smokes", "ward", "code", "outcome", "site"]
SITES = ("Ann", "Bob", "Cleo")


def visit(n: int) -> list[str]:
    """A row of numbers and words, some missing; `code` looks like a number at all but one client."""
    site = SITES[n % 3]
    age = "" if n % 11 == 0 else f"{20 + 7 * n % 60}.{n % 10}"
    sugar = "" if site == "Bob" else str(10_000_000_019 + 37 * n % 1000)
    ward = (
        ""
        if n % 13 == 0
        else "north"
        if site == "Ann" and n % 2
        else ("east", "west", "süd, links")[n % 3 if n % 4 else 1]
    )
    code = f"0{n % 4}" if site != "Cleo" else f"x{n % 2}"
    outcome = "ill" if n % 2 else "well" if n % 5 or site == "Bob" else "unsure"
    return [str(n), age, sugar, ("True", "False")[n // 3 % 2], ward, code, outcome, site]


def save(file: Path, head: list[str], rows: list[list[str]], delimiter: str = ",") -> Path:
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out, delimiter=delimiter).writerows([head, *rows])
    return file


def federate(made: Experiment, out: Path) -> Path:
    init(made, out)
    return out


def of(out: Path, client: str, name: str | Path) -> PartyFolder:
    """A client's folder that names data of its own."""
    file = out / client / "party.toml"
    text = file.read_text()
    assert text.count("[data]\nname = ") == 1
    file.write_text(text.partition("[data]\n")[0] + f"[data]\nname = {json.dumps(str(name))}\n")
    return PartyFolder.open(out / client)


def same(found: Examples, client: Path) -> bool:
    with np.load(client / "data.npz", allow_pickle=False) as held:
        x, y = found.x.numpy(), found.y.numpy()
        assert (x.dtype, y.dtype) == (held["x"].dtype, held["y"].dtype)
        return x.shape == held["x"].shape and x.tobytes() == held["x"].tobytes() and y.tobytes() == held["y"].tobytes()


def refused(out: Path, name: str | Path, client: str = "c0", kind: type[UserError] = DataError) -> str:
    with pytest.raises(kind) as caught:
        own_data(of(out, client, name))
    return str(caught.value)


TABLE = ["data.label=outcome", "data.client=site", 'data.drop=["row"]', "data.reference_size=10"]


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Experiment]:
    """A federation of a table that is read with all its rows, so that `row` says which a client has."""
    place = tmp_path_factory.mktemp("own")
    file = save(place / "visits.csv", HEAD, [visit(n) for n in range(240)])
    made = prepare(Config.load("fedavg", [f"data.name={file}", *TABLE]))
    return federate(made, place / "f"), made


def rows_of(made: Experiment, place: Path, number: int) -> list[int]:
    """Which rows of the table a client has, found by splitting a table that holds nothing but row numbers."""
    file = save(place / "numbers.csv", ["row", "outcome", "site"], [[str(n), *visit(n)[-2:]] for n in range(240)])
    twin = prepare(
        Config.load("fedavg", [f"data.name={file}", "data.label=outcome", "data.client=site", "data.reference_size=10"])
    )
    assert [rows.tolist() for rows in twin.partition.indices] == [rows.tolist() for rows in made.partition.indices]
    assert twin.exchange is not None
    mean, deviation = (float(one[0]) for one in twin.exchange.settled)
    numbers = twin.split.train.x[:, 0].double().numpy()[twin.partition.indices[number]] * deviation + mean
    return [int(n) for n in np.rint(numbers)]


Change = Callable[[list[str], list[list[str]]], object]
CASES: dict[str, tuple[Change, str]] = {
    "a missing column": (
        lambda head, rows: head.__setitem__(1, "Age"),
        "has no column 'age', which is learnt from in this federation; add it (left empty, its values count as "
        "missing), or rename one of row, Age, Blood Sugar",
    ),
    "no label": (
        lambda head, rows: head.__setitem__(6, "end"),
        "has no column 'outcome', which holds the label in",
    ),
    "an unknown label": (
        lambda head, rows: rows[2].__setitem__(6, "il"),
        "row 3 has the label 'il', which is no class of this federation ('ill', 'unsure', 'well'); correct it, "
        "leave such rows out, or have `headwater deploy init` run on data that has it; did you mean 'ill'?",
    ),
    "an empty label": (lambda head, rows: rows[1].__setitem__(6, ""), "row 2 has no label (column 'outcome')"),
    "a text among numbers": (
        lambda head, rows: rows[3].__setitem__(1, "old"),
        "row 4 has 'old' in column 'age', which holds numbers in this federation; correct it, or leave the cell "
        "empty, which counts as the mean",
    ),
    "infinite": (lambda head, rows: rows[0].__setitem__(1, "inf"), "row 1 is infinite in column 'age'; replace it"),
    "no rows": (lambda head, rows: rows.clear(), "has no rows; name a file that has some"),
}


class TestTables:
    @pytest.mark.parametrize("number", range(3))
    def test_the_same_rows_give_the_same_bits(
        self, visits: tuple[Path, Experiment], tmp_path: Path, number: int
    ) -> None:
        out, made = visits
        own = [visit(n) for n in rows_of(made, tmp_path, number)]
        assert {row[-1] for row in own} == {SITES[number]}
        found = own_data(of(out, f"c{number}", save(tmp_path / "own.csv", HEAD, own)))
        assert same(found, out / f"c{number}")
        assert bool(torch.isfinite(found.x).all())
        labels = {row[HEAD.index("outcome")] for row in own}
        assert ("unsure" in labels) == (number != 1)  # Bob lacks a class, and others have it
        assert ("north" in {row[HEAD.index("ward")] for row in own}) == (number == 0)  # a word of one client only

    def test_other_columns_another_order_and_other_ways_to_write_do_not_matter(
        self, visits: tuple[Path, Experiment], tmp_path: Path
    ) -> None:
        out, made = visits
        own = [visit(n) for n in rows_of(made, tmp_path, 2)]
        order = [6, 4, 3, 5, 2, 1]  # without `row` and `site`
        cut = [[row[at] for at in order] + ["gone"] for row in own]
        head = [HEAD[at] for at in order] + ["address"]
        for file in (save(tmp_path / "own.tsv", head, cut, "\t"), save(tmp_path / "semi.csv", head, cut, ";")):
            assert same(own_data(of(out, "c2", file)), out / "c2")
        frame = pd.read_csv(tmp_path / "own.tsv", sep="\t", dtype={"code": str})
        pytest.importorskip("pyarrow")
        frame.index = pd.Index([f"r{n}" for n in range(len(frame))])
        frame["smokes"] = frame["smokes"].astype("boolean")
        frame["age"] = frame["age"].astype("Float64")
        frame.to_parquet(tmp_path / "own.parquet")
        assert same(own_data(of(out, "c2", tmp_path / "own.parquet")), out / "c2")

    def test_the_agreement_has_no_rows_but_means_and_words(self, visits: tuple[Path, Experiment]) -> None:
        out, made = visits
        told = json.loads((out / "c0" / "federation.json").read_text(encoding="utf-8"))["preparation"]
        assert (told["kind"], told["label"], told["name"]) == ("table", "outcome", "columns")
        assert told["columns"] == ["age", "Blood Sugar", "smokes", "ward", "code"]
        assert told["worded"] == ["ward", "code"]
        assert told["settled"][2] == {"words": ["east", "north", "süd, links", "west"]}
        assert made.exchange is not None
        for array, again in zip(made.exchange.settled, from_json(told["settled"]), strict=True):
            assert (array.dtype, array.tobytes()) == (again.dtype, again.tobytes())

    def test_the_file_that_init_wrote_is_as_good(self, visits: tuple[Path, Experiment]) -> None:
        out, _ = visits
        assert same(own_data(of(out, "c1", "data.npz")), out / "c1")

    def test_all_rows_are_trained_on_but_a_share_for_the_clients_own_test(self, tmp_path: Path) -> None:
        rows = [visit(n) for n in range(90)]
        file = save(tmp_path / "visits.csv", HEAD, rows)
        made = prepare(Config.load("fedavg", [f"data.name={file}", *TABLE, "partition.local_test=0.25"]))
        out = federate(made, tmp_path / "f")
        own = save(tmp_path / "own.csv", HEAD, rows[:40])
        folder = of(out, "c0", own)
        found = own_data(folder)
        assert len(found) == 40
        context = client_context(folder.federation, "c0", found)
        assert (len(context.rows["c0"]), len(context.test_rows["c0"])) == (30, 10)

    def test_unknown_words_are_encoded_as_zero_and_reported(
        self, visits: tuple[Path, Experiment], tmp_path: Path
    ) -> None:
        out, _ = visits
        row = ["1", "33", "5", "True", "moon", "00", "ill", "Ann"]
        file = save(tmp_path / "own.csv", HEAD, [row, [*row[:4], "", *row[5:]], [*row[:4], "north", *row[5:]]])
        told: list[str] = []
        x = own_data(of(out, "c0", file), told.append).x
        assert x[0].equal(x[1])
        assert (x[2] - x[0]).tolist() == [0, 0, 0, 0, 1, *[0] * 8]  # age, sugar, smokes, east, north, …
        assert len(told) == 1
        assert "1 of 3 rows have words in column 'ward' that this federation does not know ('moon'); each" in told[0]

    @pytest.mark.parametrize("case", CASES)
    def test_data_that_does_not_fit_is_refused(
        self, visits: tuple[Path, Experiment], tmp_path: Path, case: str
    ) -> None:
        change, sentence = CASES[case]
        head, rows = [*HEAD], [visit(n) for n in range(1, 8)]
        change(head, rows)
        file = save(tmp_path / "own.csv", head, rows)
        told = refused(visits[0], file)
        assert told.startswith(str(file))
        assert sentence in told

    def test_data_of_another_kind_is_refused(self, visits: tuple[Path, Experiment], tmp_path: Path) -> None:
        out, _ = visits
        wanted = (
            "name a .csv, .tsv or .parquet file with the columns 'age', 'Blood Sugar', 'smokes', 'ward', 'code', 'outc"
        )
        (tmp_path / "pictures").mkdir()
        assert wanted in refused(out, tmp_path / "pictures")
        (tmp_path / "visits.xlsx").write_bytes(b"PK")
        assert "is a file of another kind" in (told := refused(out, tmp_path / "visits.xlsx"))
        assert wanted in told

    def test_rows_that_are_marked_for_tests_are_not_trained_on_by_mistake(self, tmp_path: Path) -> None:
        head = ["a", "label", "who", "part"]
        rows = [[str(n), "ab"[n % 2], "xy"[n // 2 % 2], "test" if n % 5 == 0 else "train"] for n in range(60)]
        file = save(tmp_path / "all.csv", head, rows)
        made = prepare(
            Config.load("fedavg", [f"data.name={file}", "data.client=who", "data.test=part", "data.reference_size=5"])
        )
        out = federate(made, tmp_path / "f")
        told = refused(out, save(tmp_path / "own.csv", head, rows[1:8]))
        assert (
            "row 5 is for tests (column 'part'), and a client trains on all rows of its file; leave these out" in told
        )
        assert len(own_data(of(out, "c0", save(tmp_path / "own.csv", head, rows[1:5])))) == 4

    def test_of_a_folder_with_a_table_for_each_client(self, tmp_path: Path) -> None:
        """Its path and options mean nothing at a client, so the agreement must have all that is needed."""
        (tmp_path / "all").mkdir()
        rows = {who: [visit(n) for n in range(at, 90, 3)] for at, who in enumerate(SITES)}
        for who, own in rows.items():
            save(tmp_path / "all" / f"{who}.csv", HEAD[:-1], [row[:-1] for row in own])
        sets = [f"data.name={tmp_path / 'all'}", "data.label=outcome", 'data.columns=["ward", "code", "age"]']
        made = prepare(Config.load("fedavg", [*sets, "data.reference_size=5", "data.validation=0"]))
        out = federate(made, tmp_path / "f")
        (tmp_path / "all").rename(tmp_path / "moved")
        for number, who in enumerate(SITES):
            found = own_data(of(out, f"c{number}", tmp_path / "moved" / f"{who}.csv"))
            with np.load(out / f"c{number}" / "data.npz") as held:
                every = [(x.tobytes(), int(y)) for x, y in zip(found.x.numpy(), found.y, strict=True)]
                trained = [(x.tobytes(), int(y)) for x, y in zip(held["x"], held["y"], strict=True)]
            assert set(trained) <= set(every)
            assert len(every) == 30

    def test_true_and_false_are_numbers_or_words_as_in_the_federation(self, tmp_path: Path) -> None:
        rows = [[("true", "False")[n % 2], ("TRUE", "false", "maybe")[n % 3], "ab"[n % 2]] for n in range(60)]
        file = save(tmp_path / "all.csv", ["a", "b", "label"], rows)
        made = prepare(
            Config.load(
                "fedavg", [f"data.name={file}", "data.reference_size=5", "partition.scheme=iid", "partition.clients=2"]
            )
        )
        out = federate(made, tmp_path / "f")
        told = json.loads((out / "c0" / "federation.json").read_text(encoding="utf-8"))["preparation"]
        assert (told["worded"], told["settled"][2]) == (["b"], {"words": ["TRUE", "false", "maybe"]})
        own = [["TRUE", "TRUE", "a"], ["", "false", "a"], ["false", "", "b"]]
        x = own_data(of(out, "c0", save(tmp_path / "own.csv", ["a", "b", "label"], own))).x
        assert x[0, 0] > x[1, 0] == 0 > x[2, 0]
        assert x[:, 1:].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]

    def test_labels_that_are_numbers(self, tmp_path: Path) -> None:
        rows = [[str(n), str((7, 10, 2)[n % 3])] for n in range(60)]
        file = save(tmp_path / "all.csv", ["a", "label"], rows)
        made = prepare(
            Config.load(
                "fedavg", [f"data.name={file}", "data.reference_size=5", "partition.scheme=iid", "partition.clients=2"]
            )
        )
        assert made.class_names == ("2", "7", "10")
        out = federate(made, tmp_path / "f")
        own = save(tmp_path / "own.csv", ["a", "label"], [["1", "10.0"], ["2", "7"], ["3", "10"]])
        assert own_data(of(out, "c0", own)).y.tolist() == [2, 1, 2]
        assert "row 1 has the label '3'" in refused(out, save(own, ["a", "label"], [["1", "3"]]))


class TestTexts:
    WORDS = ("Good soup", "no soup today", "it's NA", "", "Good, good soup 12")

    @pytest.mark.parametrize("vocabulary", ["hashed", "counted"])
    def test_the_same_rows_give_the_same_bits(self, tmp_path: Path, vocabulary: str) -> None:
        rows = [[f"{self.WORDS[n % 5]} {'zebra ' * (n % 2)}{n % 7}", "ab"[n % 3 % 2], "xy"[n % 2]] for n in range(80)]
        file = save(tmp_path / "all.csv", ["note", "mood", "who"], rows)
        sets = ["data.text=note", "data.label=mood", "data.client=who", "data.words=12", "data.length=6"]
        sets += [f"data.name={file}", f"data.vocabulary={vocabulary}", "data.reference_size=5", "data.validation=0"]
        made = prepare(Config.load("fedavg", sets))
        out = federate(made, tmp_path / "f")
        for number, who in enumerate("xy"):
            mine = [row for row in rows if row[2] == who]
            found = own_data(
                of(out, f"c{number}", save(tmp_path / "own.csv", ["mood", "note"], [row[1::-1] for row in mine]))
            )
            with np.load(out / f"c{number}" / "data.npz") as held:  # some of the rows, in their order
                kept = {row.tobytes() for row in held["x"]}
                assert kept <= {row.tobytes() for row in found.x.numpy()}
            assert found.x.dtype == torch.int64
        told = json.loads((out / "c0" / "federation.json").read_text(encoding="utf-8"))["preparation"]
        assert (told["kind"], told["text"]) == ("text", "note")
        assert ("settled" in told) == (vocabulary == "counted")
        strange = save(tmp_path / "own.csv", ["note", "mood"], [["quagga soup", "a"]])
        x = own_data(of(out, "c0", strange)).x[0].tolist()
        assert x[:4] == [0, 0, 0, 0]
        if vocabulary == "counted":
            assert x[4] == 1
            assert x[5] == 2 + told["settled"][0]["words"].index("soup")
        assert "has no column 'note', which holds the texts" in refused(
            out, save(strange, ["text", "mood"], [["a", "a"]])
        )


def paint(file: Path, level: int, size: tuple[int, int] = (8, 6), mode: str = "RGB") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(level).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(file)


class TestImages:
    def federation(self, place: Path, *sets: str, mode: str = "RGB") -> Path:
        for who in ("Ann", "Bob"):
            for number, name in enumerate(("ant", "bee", "cat")):
                for n in range(12 if who == "Ann" or name != "bee" else 0):
                    paint(place / "all" / who / name / f"{n}.png", 100 * number + n + 7 * (who == "Bob"), mode=mode)
                paint(place / "all" / who / "cat" / "odd.png", 5, (9, 9), mode)
        sets = (f"data.name={place / 'all'}", "data.reference_size=5", "data.validation=0", *sets)
        return federate(prepare(Config.load("fedavg", [*sets])), place / "f")

    @pytest.mark.parametrize("sets", [(), ("data.pixels=5",)])
    def test_the_same_images_give_the_same_bits(self, tmp_path: Path, sets: tuple[str, ...]) -> None:
        out = self.federation(tmp_path, *sets)
        for number, who in enumerate(("Ann", "Bob")):
            found = own_data(of(out, f"c{number}", tmp_path / "all" / who))
            with np.load(out / f"c{number}" / "data.npz") as held:
                every = [(x.tobytes(), int(y)) for x, y in zip(found.x.numpy(), found.y, strict=True)]
                trained = [(x.tobytes(), int(y)) for x, y in zip(held["x"], held["y"], strict=True)]
            assert [one for one in every if one in trained] == trained  # the others were set aside, in init
            assert len(every) > len(trained) > 10
        assert found.y.unique().tolist() == [0, 2]

    def test_data_that_does_not_fit_is_refused(self, tmp_path: Path) -> None:
        out, own = self.federation(tmp_path, mode="L"), tmp_path / "own"
        paint(own / "ant" / "0.png", 1, mode="L")
        paint(own / "bee" / "1.png", 1)
        assert f"{own / 'bee' / '1.png'} is in colour, and this federation learns from grey" in refused(out, own)
        paint(own / "bee" / "1.png", 1, (4, 4), "L")
        paint(own / "bee" / "2.png", 1, (4, 4), "L")
        told = refused(out, own)
        assert "are of 4 x 4 px, and this federation learns from 8 x 6 px; bring them to that size" in told
        (own / "bee").rename(own / "beee")
        assert "lies in beee/, which is no class of this federation ('ant', 'bee', 'cat'); rename" in refused(out, own)
        paint(own / "all" / "bee" / "1.png", 1)
        assert "must: class/file below" in refused(out, own)
        (tmp_path / "empty").mkdir()
        assert "holds no images" in refused(out, tmp_path / "empty")
        table = save(tmp_path / "own.csv", ["a", "label"], [["1", "ant"]])
        assert "is a table, and this federation learns from others; name a folder of images as class/file" in refused(
            out, table
        )

    def test_grey_images_among_coloured_ones(self, tmp_path: Path) -> None:
        out = self.federation(tmp_path)
        paint(tmp_path / "own" / "bee" / "1.png", 1, mode="L")
        x = own_data(of(out, "c0", tmp_path / "own")).x
        assert x.shape == (1, 3, 6, 8)
        assert x[0, 0].equal(x[0, 2])


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = prepare(Config.load("fedavg", ["partition.clients=3", "partition.alpha=1.0"]))
    return federate(made, tmp_path_factory.mktemp("own") / "f")


class TestArrays:
    def test_plain_arrays_need_no_preparation(self, digits: Path) -> None:
        folder = PartyFolder.open(digits / "c0")
        assert folder.federation.preparation == {}
        assert same(own_data(folder), digits / "c0")

    def test_bytes_doubles_and_names_of_classes(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        x, y = rng.integers(0, 256, (40, 5, 4, 3), dtype=np.uint8), np.arange(40) % 3
        np.savez(tmp_path / "all.npz", x=x, y=y, class_names=["ant", "bee", "cat"])
        sets = [f"data.name={tmp_path / 'all.npz'}", "partition.clients=2", "data.reference_size=2"]
        out = federate(prepare(Config.load("fedavg", sets)), tmp_path / "f")
        np.savez(tmp_path / "own.npz", x=x, y=y)
        found = own_data(of(out, "c0", tmp_path / "own.npz"))
        assert found.x.shape == (40, 3, 5, 4)
        with np.load(out / "c0" / "data.npz") as held:
            assert {row.tobytes() for row in held["x"]} <= {row.tobytes() for row in found.x.numpy()}
        np.savez(tmp_path / "own.npz", x=found.x.numpy().astype(np.float64), y=1 - y[:] % 2, class_names=["cat", "ant"])
        again = own_data(of(out, "c0", tmp_path / "own.npz"))
        assert again.x.equal(found.x)
        assert again.y.tolist() == [(0, 2)[one % 2] for one in (np.arange(40) % 3).tolist()]
        np.savez(tmp_path / "own.npz", x=x, y=y, class_names=["ant", "bee", "dog"])
        assert "has samples of 'dog', which is no class of this federation ('ant', 'bee', 'cat')" in refused(
            out, tmp_path / "own.npz"
        )

    @pytest.mark.parametrize(
        ("arrays", "sentence"),
        [
            (
                {"x": np.zeros((3, 1, 8, 8)), "y": [0, 1, 10]},
                "has labels from 0 to 10, and this federation knows the cl",
            ),
            (
                {"x": np.zeros((2, 3, 8, 8)), "y": [0, 1]},
                "8 x 8 px with 3 channels, and this federation learns from images",
            ),
            ({"x": np.zeros((2, 28, 28)), "y": [0, 1]}, "has images of 28 x 28 px with 1 channel, and this federation"),
            (
                {"x": np.zeros((2, 64)), "y": [0, 1]},
                "has inputs of shape (64,), and this federation learns from images of",
            ),
            ({"x": np.full((2, 1, 8, 8), np.nan), "y": [0, 1]}, "NaN or infinite values, the first in sample 0"),
            ({"x": np.zeros((0, 1, 8, 8)), "y": []}, "has no rows"),
            ({"x": np.zeros((2, 1, 8, 8)), "y": [0]}, "has 1 labels for 2 samples"),
            ({"x": np.zeros((2, 1, 8, 8))}, "holds x; a client's file needs x and y"),
            ({"x": np.zeros((2, 1, 8, 8)), "y": [0.5, 1]}, "labels that are not whole numbers"),
        ],
    )
    def test_data_that_does_not_fit_is_refused(
        self, digits: Path, tmp_path: Path, arrays: dict[str, Any], sentence: str
    ) -> None:
        np.savez(tmp_path / "own.npz", **arrays)
        told = refused(digits, tmp_path / "own.npz")
        assert str(tmp_path / "own.npz") in told
        assert sentence in told

    def test_a_file_without_arrays_is_refused(self, digits: Path, tmp_path: Path) -> None:
        (tmp_path / "own.npz").write_bytes(b"nothing")
        assert "is damaged or incomplete" in refused(digits, tmp_path / "own.npz")
        assert "a .npz file with x (each (1, 8, 8), as the model takes it) and y" in refused(digits, tmp_path)


FUNCTIONS = """
import numpy as np
import headwater as hw
from headwater.data.table_columns import Columns, Encoded
from headwater.data.preparation import Standardise

def rows(shift=0.0):
    rng = np.random.default_rng(3)
    return shift + 5 * rng.normal(size=(60, 4)), np.arange(60) % 3

def whole(shift=0.0) -> hw.Data:
    x, y = rows(shift)
    return hw.Data(x, y, x, y, class_names=["a", "b", "c"], preparation=Standardise())

def mine(shift=0.0) -> hw.Data:
    x, y = rows(shift)
    return hw.Data(x[:10], (2 - y)[:10], x[:1], y[:1], class_names=["c", "b", "a"], preparation=Standardise())

def bare() -> hw.Data:
    x, y = rows()
    return hw.Data(x, y, x, y)

def narrow() -> hw.Data:
    x, y = rows()
    return hw.Data(x[:, :3], y, x[:, :3], y, preparation=Standardise())

def visits() -> hw.Data:
    kinds = Columns(("ward", "smokes", "code", "age", "Blood Sugar"), (("moon", "north"), None, ("00",), None, None))
    x = np.array([[1.0, 1.0, 0.0, 33.0, 5.0], [0.0, 0.0, np.nan, np.nan, 6.0]])
    return hw.Data(x, [0, 1], x, [0, 1], class_names=["ill", "well"], preparation=Encoded(kinds))

def pixels() -> hw.Data:
    return hw.Data(np.zeros((4, 9, 9)), [0, 1, 0, 1], np.zeros((4, 9, 9)), [0, 1, 0, 1])

def tokens() -> hw.Data:
    return hw.Data(np.zeros((4, 9), dtype=int), [0, 1, 0, 1], np.zeros((4, 9), dtype=int), [0, 1, 0, 1], tokens=True)

number = 3
"""


class TestFunctions:
    @pytest.fixture(autouse=True)
    def package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        (tmp_path / "clinic.py").write_text(FUNCTIONS)
        monkeypatch.syspath_prepend(tmp_path)
        yield
        sys.modules.pop("clinic", None)

    @pytest.fixture
    def settled(self, tmp_path: Path) -> Path:
        sets = ["data.name=clinic:whole", "data.shift=100.0", "partition.clients=2", "data.reference_size=5"]
        return federate(prepare(Config.load("fedavg", sets)), tmp_path / "f")

    def test_settled_values_and_options_are_applied(self, settled: Path) -> None:
        whole = own_data(of(settled, "c0", "clinic:whole"))
        mine = own_data(of(settled, "c0", "clinic:mine"))
        assert mine.x.equal(whole.x[:10])
        assert mine.y.equal(whole.y[:10])  # by the names of classes
        assert float(whole.x.abs().max()) < 4
        with np.load(settled / "c0" / "data.npz") as held:
            assert {row.tobytes() for row in held["x"]} <= {row.tobytes() for row in whole.x.numpy()}

    def test_another_preparation_is_refused(self, settled: Path, digits: Path) -> None:
        told = refused(settled, "clinic:bare")
        assert "preparation asks for none, and this federation has what was settled for 'standardise'; give" in told
        assert "asks for 'standardise', and this federation has nothing that was settled" in refused(
            digits, "clinic:mine"
        )
        assert "what this federation settled does not fit its (60, 3) inputs" in refused(settled, "clinic:narrow")

    def test_of_a_table(self, visits: tuple[Path, Experiment], tmp_path: Path) -> None:
        rows = [["0", "33", "5", "True", "north", "00", "ill", ""], ["1", "", "6", "False", "moon", "", "well", ""]]
        out, _ = visits
        table = own_data(of(out, "c0", save(tmp_path / "own.csv", HEAD, rows)))
        made = own_data(of(out, "c0", "clinic:visits"))
        assert made.x.equal(table.x)
        assert made.y.equal(table.y)

    def test_data_that_does_not_fit_is_refused(self, digits: Path) -> None:
        assert "images of 9 x 9 px with 1 channel" in refused(digits, "clinic:pixels")
        assert "gives tokens, and this federation learns from values; give these" in refused(digits, "clinic:tokens")
        assert "not callable" in refused(digits, "clinic:number", kind=ConfigError)
        assert "nowhere" in refused(digits, "nowhere:rows", kind=ConfigError)


def test_settled_values_are_the_same_bits_after_json() -> None:
    rng = np.random.default_rng(0)
    arrays = (
        rng.normal(size=50) * 10.0 ** rng.integers(-300, 300, 50),
        pack(["ä", "b c"]),
        pack([]),
        np.array([255, 254], dtype=np.uint8),
        np.arange(6, dtype=np.float32).reshape(2, 3) / 7,
        np.array([True, False]),
        np.array([2**62 + 1]),
        np.array(0.1),
    )
    for array, again in zip(arrays, from_json(json.loads(json.dumps(to_json(arrays)))), strict=True):
        assert (array.dtype, array.shape, array.tobytes()) == (again.dtype, again.shape, again.tobytes())


def test_a_changed_preparation_is_refused(digits: Path, tmp_path: Path) -> None:
    file = digits / "c2" / "federation.json"
    told = json.loads(file.read_text())
    for odd in ({"kind": "table", "colour": 3}, {"settled": [{"float64": ["a"]}]}, {"settled": [3]}):
        file.write_text(json.dumps(told | {"preparation": odd}))
        assert "is not what `headwater deploy init` wrote" in refused(digits, "data.npz", "c2", ConfigError)
