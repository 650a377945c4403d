"""Tables of one's own: what becomes of their columns, whose their rows are, and what is refused in which words."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import headwater as hw
from headwater.config import Config
from headwater.data.loading import load, open_data
from headwater.errors import HeadwaterError
from headwater.training.experiment import prepare
from headwater.training.remarks import cautions


def rows(n: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    site = rng.integers(0, 4, n)
    age = rng.normal(50, 10, n).round(1)
    return pd.DataFrame(
        {
            "site": [f"site {s}" for s in site],
            "region": np.where(site < 2, "north", "south"),
            "age": age,
            "dose": rng.normal(1e6, 3, n),
            "kind": rng.choice(["a", "b", "c"], n),
            "ill": np.where(age + 5 * rng.normal(size=n) > 50, "yes", "no"),
        }
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "rows.csv"
    rows().to_csv(file, index=False)
    return file


def split_of(path: Path, **data: object) -> object:
    return prepare(
        Config(data={"name": str(path), "label": "ill", "validation": 0, **data}, algorithm={"name": "fedavg"})
    )


class TestColumns:
    def test_numbers_are_standardised_over_all_clients_and_words_get_a_column_each(self, path: Path) -> None:
        made = split_of(path, client="site", reference_size=0)
        x = made.split.train.x
        assert x.dtype == torch.float32
        assert x.shape[1] == 2 + 2 + 3  # age and dose; region and kind
        np.testing.assert_allclose(x[:, :2].mean(0), 0, atol=1e-6)
        np.testing.assert_allclose(x[:, :2].std(0, unbiased=False), 1, atol=1e-5)
        assert torch.equal(x[:, 2:4].sum(1), torch.ones(len(x)))
        assert torch.equal(x[:, 4:].sum(1), torch.ones(len(x)))
        assert made.split.shape == (7,)

    def test_large_numbers_keep_their_digits(self, path: Path) -> None:
        """A column around a million with a spread of three is told apart, although float32 has seven digits."""
        x = split_of(path, client="site", reference_size=0, columns=["dose"]).split.train.x
        data = load(str(path), None, {"label": "ill", "columns": ("dose",)})
        wanted = pd.read_csv(path)["dose"]
        assert data.train.x.dtype == torch.float64
        assert len(np.unique(x.numpy())) > 0.95 * len(x)
        assert wanted.std() == pytest.approx(3, rel=0.5)

    def test_a_missing_number_becomes_the_mean_and_a_missing_word_no_word(self, tmp_path: Path) -> None:
        frame = rows()
        frame.loc[[3, 8], "age"] = np.nan
        frame.loc[3, "kind"] = None
        frame.to_csv(tmp_path / "gaps.csv", index=False)
        made = split_of(tmp_path / "gaps.csv", reference_size=0, columns=["age", "kind"])
        everything = torch.cat([made.split.train.x, made.split.test.x])
        assert bool(torch.isfinite(everything).all())
        assert int((everything[:, 0] == 0).sum()) == 2
        assert int((everything[:, 1:].sum(1) == 0).sum()) == 1

    def test_a_word_that_no_client_trains_on_is_none_of_the_known(self, tmp_path: Path) -> None:
        rows().to_csv(tmp_path / "train.csv", index=False)
        other = rows(10, seed=1)
        other["kind"] = ["new", *other["kind"][1:]]
        other.to_csv(tmp_path / "test.csv", index=False)
        made = split_of(tmp_path / "train.csv", columns=["kind"], test=str(tmp_path / "test.csv"))
        assert made.split.test.x.shape == (10, 3)
        assert made.split.test.x[0].tolist() == [0, 0, 0]
        assert len(made.split.train) + len(made.split.reference) == 60

    def test_a_column_that_never_varies_is_zero(self, tmp_path: Path) -> None:
        frame = rows()
        frame["flat"] = 7.5
        frame.to_csv(tmp_path / "flat.csv", index=False)
        made = split_of(tmp_path / "flat.csv", columns=["flat", "age"])
        assert torch.equal(made.split.train.x[:, 0], torch.zeros(len(made.split.train)))

    def test_semicolons_tabs_gzip_and_parquet_are_the_same_table(self, tmp_path: Path, path: Path) -> None:
        frame = rows()
        frame.to_csv(tmp_path / "b.csv", index=False, sep=";")
        frame.to_csv(tmp_path / "c.tsv", index=False, sep="\t")
        (tmp_path / "d.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
        frame.to_parquet(tmp_path / "e.parquet", index=False)
        first = load(str(path), None, {"label": "ill"})
        for name in ("b.csv", "c.tsv", "d.csv.gz", "e.parquet"):
            other = load(str(tmp_path / name), None, {"label": "ill"})
            assert torch.equal(first.train.x, other.train.x), name
            assert torch.equal(first.test.y, other.test.y), name

    def test_labels_that_are_numbers_are_classes_in_order(self, tmp_path: Path) -> None:
        frame = pd.DataFrame({"v": np.arange(40.0), "label": np.tile([30, 4, 30, 7], 10)})
        frame.to_csv(tmp_path / "n.csv", index=False)
        data = load(str(tmp_path / "n.csv"))
        assert data.class_names == ("4", "7", "30")

    def test_row_numbers_before_the_columns_are_no_feature(self, tmp_path: Path) -> None:
        rows().to_csv(tmp_path / "numbered.csv")
        assert load(str(tmp_path / "numbered.csv"), None, {"label": "ill"}).preparation.columns.names[0] == "site"

    def test_true_and_false_are_classes(self, tmp_path: Path) -> None:
        rows().assign(ill=lambda frame: frame["ill"] == "yes").to_csv(tmp_path / "b.csv", index=False)
        assert load(str(tmp_path / "b.csv"), None, {"label": "ill"}).class_names == ("False", "True")


class TestOwners:
    def test_the_client_column_overrides_the_partition(self, path: Path) -> None:
        made = split_of(path, client="site", sector="region", reference_size=0)
        assert made.config.partition.scheme == "natural"
        assert (made.config.partition.clients, made.config.partition.sectors) == (4, 2)
        assert made.split.owners.clients == ("site 0", "site 1", "site 2", "site 3")
        assert made.partition.sectors == (0, 0, 1, 1)
        held = rows().groupby("site").size()
        tests = {name: min(round(size / 5), size - 1) for name, size in held.items()}
        assert made.partition.sizes == tuple(size - tests[name] for name, size in held.items())
        assert len(made.split.test) == sum(tests.values())

    def test_a_number_of_clients_beside_it_is_said_to_have_no_effect(self, path: Path) -> None:
        data = {"name": str(path), "label": "ill", "client": "site", "validation": 0, "reference_size": 0}
        asked = Config(data=data, partition={"clients": 7}, algorithm={"name": "fedavg"})
        made = prepare(asked)
        (sentence,) = cautions(made)
        assert sentence.startswith("partition.clients = 7 has no effect")
        assert "there are 4" in sentence
        assert cautions(prepare(made.config)) == ()  # the resolved configuration has the clients of the data
        assert cautions(split_of(path, client="site", reference_size=0)) == ()
        assert cautions(prepare(asked.merged({"data": {"client": ""}}))) == ()

    def test_rows_stay_with_their_client(self, tmp_path: Path) -> None:
        frame = pd.DataFrame(
            {"who": np.repeat(["b", "a", "c"], [12, 9, 30]), "v": np.arange(51.0), "label": np.arange(51) % 2}
        )
        frame.to_csv(tmp_path / "t.csv", index=False)
        data = load(str(tmp_path / "t.csv"), None, {"client": "who"})
        for number, name in enumerate(("a", "b", "c")):
            mine = data.train.x[torch.from_numpy(data.owners.indices()[number])][:, 0]
            assert set(mine.tolist()) <= set(frame.loc[frame.who == name, "v"])

    def test_the_exchange_stands_in_the_ledger_and_in_the_plan(self, path: Path) -> None:
        from headwater.planning import plan

        config = Config(
            data={"name": str(path), "label": "ill", "client": "site", "columns": ["age", "dose", "kind"]},
            algorithm={"name": "fedavg"},
            rounds=1,
        )
        made = prepare(config)
        run = hw.run("fedavg", data=str(path), label="ill", client="site", columns=["age", "dose", "kind"], rounds=1)
        # Three float64 numbers a numeric column, and "a", "b", "c" with two separators; back come mean and deviation.
        assert dict(made.exchange.up) == {f"c{n}": 3 * 2 * 8 + 5 for n in range(4)}
        setup = run.result["ledger"]["setup"]["sector_client"]
        assert (setup["up_bytes"], setup["down_bytes"]) == (4 * (48 + 5), 4 * (2 * 2 * 8 + 5))
        assert plan(made).to_dict()["ledger"]["setup"]["sector_client"]["up_bytes"] == 4 * (48 + 5)
        kinds = {(m["from"], m["to"], m["kind"]) for m in run.result["ledger"]["moves"] if m["purpose"] == "setup"}
        assert {("client", "server", "columns"), ("server", "client", "columns")} <= kinds

    def test_no_row_travels(self, path: Path) -> None:
        """What a client tells has the same size however many rows it has."""
        sizes = []
        for n in (40, 400):
            rows(n).to_csv(path, index=False)
            made = split_of(path, client="site", columns=["age", "dose"], reference_size=0)
            sizes.append(set(made.exchange.up.values()))
        assert sizes == [{48}, {48}]

    def test_a_run_repeats_from_its_own_configuration(self, path: Path, tmp_path: Path) -> None:
        first = hw.run(
            "fedhead", data=str(path), label="ill", client="site", sector="region", rounds=2, out=tmp_path / "r"
        )
        again = prepare(Config.load(tmp_path / "r" / "config.toml"))
        from headwater.training.loop import train

        assert train(again).result["model_sha256"] == first.result["model_sha256"]

    def test_a_client_with_one_row_keeps_it_for_training(self, tmp_path: Path) -> None:
        frame = pd.concat([rows(), rows(1).assign(site="alone")])
        frame.to_csv(tmp_path / "t.csv", index=False)
        run = hw.run("fedhead", data=str(tmp_path / "t.csv"), label="ill", client="site", rounds=1, validation=0)
        assert run.result["clients"] == 5


class TestTests:
    def test_a_column_says_which_rows_are_for_tests(self, tmp_path: Path) -> None:
        frame = rows().assign(part=["test" if n % 3 == 0 else "train" for n in range(60)])
        frame.to_csv(tmp_path / "t.csv", index=False)
        data = load(str(tmp_path / "t.csv"), None, {"label": "ill", "test": "part"})
        assert (len(data), len(data.test)) == (40, 20)
        assert "part" not in data.preparation.columns.names

    def test_words_of_another_kind_are_refused(self, tmp_path: Path) -> None:
        rows().assign(part="sometimes").to_csv(tmp_path / "t.csv", index=False)
        with pytest.raises(HeadwaterError, match="'sometimes'"):
            load(str(tmp_path / "t.csv"), None, {"label": "ill", "test": "part"})


class TestTexts:
    @pytest.mark.parametrize("vocabulary", ["hashed", "counted"])
    def test_a_column_of_texts(self, tmp_path: Path, vocabulary: str) -> None:
        texts = ["good film", "bad film, very bad", "good", "bad"] * 10
        frame = pd.DataFrame({"said": texts, "label": [1, 0, 1, 0] * 10, "who": ["x", "y"] * 20})
        frame.to_csv(tmp_path / "t.csv", index=False)
        config = Config(
            data={
                "name": str(tmp_path / "t.csv"),
                "client": "who",
                "text": "said",
                "vocabulary": vocabulary,
                "words": 50,
                "length": 4,
                "validation": 0,
            },
            algorithm={"name": "fedavg"},
        )
        made = prepare(config)
        assert made.split.train.x.shape[1] == 4
        assert made.split.train.x.dtype == torch.int64
        assert int(made.split.train.x.max()) < 50
        assert (made.exchange is not None) == (vocabulary == "counted")
        assert made.config.model.options["words"] == 50


class TestWays:
    """Legal tables that are easily misread."""

    def load(self, tmp_path: Path, written: str, **options: object) -> hw.Data:
        (tmp_path / "t.csv").write_text(written, encoding="utf-8")
        return load(str(tmp_path / "t.csv"), None, options)

    def test_commas_in_numbers(self, tmp_path: Path) -> None:
        data = self.load(tmp_path, "a;b;label\n" + "1,5;2,25;0\n3,5;2;1\n" * 5)
        assert data.preparation.columns.words == (None, None)
        assert set(data.train.x[:, 0].tolist()) == {1.5, 3.5}

    def test_rows_that_end_with_a_separator_are_not_shifted(self, tmp_path: Path) -> None:
        data = self.load(tmp_path, "label,a,b\n" + "0,5,0,\n1,6,1,\n" * 5)
        assert data.class_names == ("0", "1")
        assert set(data.train.x[:, 0].tolist()) == {5.0, 6.0}
        with pytest.raises(HeadwaterError, match=r"t\.csv: its rows have more fields than its first line has names"):
            self.load(tmp_path, "label,a,b\n" + "0,5,0,9\n1,6,1,9\n" * 5)
        with pytest.raises(HeadwaterError, match=r"t\.csv: line 6 has 4 fields, and the lines before it have 3"):
            self.load(tmp_path, "label,a,b\n" + "0,5,0\n1,6,1\n" * 2 + "0,5,0,9\n")

    def test_two_columns_of_one_name(self, tmp_path: Path) -> None:
        with pytest.raises(HeadwaterError, match="two columns called 'label'"):
            self.load(tmp_path, "a,label,label\n" + "1,0,0\n2,1,1\n" * 5)

    def test_another_encoding(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_bytes("näme,label\n1,0\n".encode("latin-1"))
        with pytest.raises(HeadwaterError, match="save it in UTF-8"):
            load(str(tmp_path / "t.csv"))

    def test_a_mark_at_the_beginning(self, tmp_path: Path) -> None:
        data = self.load(tmp_path, "\ufefflabel,a\n" + "0,1\n1,2\n" * 5)
        assert data.preparation.columns.names == ("a",)

    def test_clients_whose_names_differ_by_zeros_have_a_fixed_order(self, tmp_path: Path) -> None:
        data = self.load(tmp_path, "who,a,label\n" + "s01,1,0\ns1,2,1\ns001,3,0\n" * 6, client="who")
        assert data.owners.clients == ("s001", "s01", "s1")

    def test_an_empty_cell_of_text(self, tmp_path: Path) -> None:
        data = self.load(tmp_path, "said,label\n" + "good,1\n,0\nbad,0\n" * 5, text="said", length=2)
        assert (data.train.x.sum(1) == 0).any()

    @pytest.mark.parametrize(("mark", "said"), [("", "does not say whether"), ("0.5", "says '0.5'")])
    def test_what_is_for_tests_must_be_said(self, tmp_path: Path, mark: str, said: str) -> None:
        with pytest.raises(HeadwaterError, match=said):
            self.load(tmp_path, "a,part,label\n" + "1,1,0\n2,0,1\n" * 5 + f"3,{mark},0\n", test="part")

    def test_one_column_for_two_roles(self, tmp_path: Path) -> None:
        with pytest.raises(HeadwaterError, match=r"data\.label and data\.client both name"):
            self.load(tmp_path, "a,label\n" + "1,0\n2,1\n" * 5, client="label")

    def test_a_test_file_with_half_a_class(self, tmp_path: Path) -> None:
        (tmp_path / "test.csv").write_text("a,label\n1,1.5\n", encoding="utf-8")
        with pytest.raises(HeadwaterError, match=r"not whole numbers, such as 1\.5"):
            self.load(tmp_path, "a,label\n" + "1,0\n2,1\n" * 5, test=str(tmp_path / "test.csv"))

    def test_noise_in_place_of_missing_values(self, tmp_path: Path) -> None:
        text = "a,b,label\n" + "1,,0\n2,,1\n,,0\n" * 20
        (tmp_path / "t.csv").write_text(text, encoding="utf-8")
        made = prepare(
            Config(data={"name": str(tmp_path / "t.csv"), "reference": "noise"}, algorithm={"name": "feddf"})
        )
        assert bool(torch.isfinite(made.split.reference).all())

    def test_a_reference_table_with_other_words_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text("a,label\n" + "red,0\nblue,1\n" * 20, encoding="utf-8")
        (tmp_path / "r.csv").write_text("a,label\n" + "red,0\ngreen,1\n" * 20, encoding="utf-8")
        data = {"name": str(tmp_path / "t.csv"), "reference": str(tmp_path / "r.csv")}
        with pytest.raises(HeadwaterError, match="other columns or words"):
            prepare(Config(data=data, algorithm={"name": "feddf"}))

    def test_more_words_than_are_kept(self, tmp_path: Path) -> None:
        text = "said,label\n" + "".join(f"word{n} film,{n % 2}\n" for n in range(60))
        (tmp_path / "t.csv").write_text(text, encoding="utf-8")
        data = {"name": str(tmp_path / "t.csv"), "text": "said", "vocabulary": "counted", "words": 10, "length": 3}
        made = prepare(Config(data=data, algorithm={"name": "fedavg"}, partition={"clients": 3}))
        assert int(made.split.train.x.max()) < 10

    def test_a_run_is_carried_on_from_elsewhere_and_on_its_own_data_only(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "t.csv").write_text("a,label\n" + "1,0\n2,1\n" * 30, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        asked = {"data": "t.csv", "clients": 2, "sectors": 1, "local__epochs": 1}
        run = hw.run("fedavg", rounds=1, out=tmp_path / "r", **asked)
        (tmp_path / "away").mkdir()
        monkeypatch.chdir(tmp_path / "away")
        assert prepare(Config.load(tmp_path / "r" / "config.toml")).partition.sha256 == run.result["partition_sha256"]
        monkeypatch.chdir(tmp_path)
        (tmp_path / "t.csv").write_text("a,label\n" + "1,1\n2,0\n1,0\n" * 21, encoding="utf-8")
        with pytest.raises(HeadwaterError, match="another split of the data"):
            hw.run("fedavg", rounds=1, out=tmp_path / "r", **asked)


class TestWrong:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"label": "il"}, "did you mean 'ill'"),
            ({"label": "ill", "client": "sit"}, "did you mean 'site'"),
            ({"label": "ill", "sector": "region"}, "data.client must name"),
            ({"label": "ill", "drop": ("dos",)}, "did you mean 'dose'"),
            ({"label": "age"}, "not whole numbers"),
            ({"label": "ill", "columns": ("ill",)}, "no column left for features"),
            ({"label": "ill", "test": "nowhere.csv"}, "there is no file nowhere.csv"),
        ],
    )
    def test_columns_that_are_not_there(self, path: Path, options: dict[str, object], said: str) -> None:
        with pytest.raises(HeadwaterError, match=said):
            load(str(path), None, options)

    def test_a_client_in_two_sectors(self, tmp_path: Path) -> None:
        frame = rows()
        frame.loc[frame.index[frame.site == "site 0"][:1], "region"] = "south"
        frame.to_csv(tmp_path / "t.csv", index=False)
        with pytest.raises(HeadwaterError, match="'site 0' has rows in sector"):
            load(str(tmp_path / "t.csv"), None, {"label": "ill", "client": "site", "sector": "region"})

    def test_a_label_that_is_missing(self, tmp_path: Path) -> None:
        frame = rows()
        frame.loc[6, "ill"] = None
        frame.to_csv(tmp_path / "t.csv", index=False)
        with pytest.raises(HeadwaterError, match="row 7 has no label"):
            load(str(tmp_path / "t.csv"), None, {"label": "ill"})

    def test_a_column_of_names_is_no_feature(self, tmp_path: Path) -> None:
        rows(400).assign(name=[f"person {n}" for n in range(400)]).to_csv(tmp_path / "t.csv", index=False)
        with pytest.raises(HeadwaterError, match=r"'name' holds 3\d\d different words.*data.drop"):
            load(str(tmp_path / "t.csv"), None, {"label": "ill"})

    @pytest.mark.parametrize("content", [b"", b"label,a\n", b"\xff\xfe\x00\x00\x01", b'label,a\n1,"2\n3'])
    def test_damaged_files(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "t.csv").write_bytes(content)
        with pytest.raises(HeadwaterError, match=r"t\.csv"):
            load(str(tmp_path / "t.csv"))

    def test_damaged_parquet(self, tmp_path: Path) -> None:
        rows().to_parquet(tmp_path / "t.parquet")
        (tmp_path / "t.parquet").write_bytes((tmp_path / "t.parquet").read_bytes()[:-50])
        with pytest.raises(HeadwaterError, match=r"t\.parquet is damaged"):
            load(str(tmp_path / "t.parquet"), None, {"label": "ill"})

    def test_an_option_of_tables_for_what_is_none(self) -> None:
        with pytest.raises(HeadwaterError, match=r"data\.drop"):
            Config(data={"name": "digits", "drop": ["a"]})

    def test_a_file_that_is_not_there(self) -> None:
        with pytest.raises(HeadwaterError, match=r"there is no file none\.csv"):
            open_data(Config(data={"name": "none.csv"}).data)


class TestBrokenFiles:
    def test_bytes_in_a_column_of_texts_are_refused_by_its_name(self, tmp_path):
        frame = rows().assign(kind=[b"\xff\xfe"] * 60)
        frame.to_parquet(tmp_path / "rows.parquet")
        with pytest.raises(HeadwaterError, match=r"rows\.parquet: column 'kind' holds bytes that are not text"):
            split_of(tmp_path / "rows.parquet", text="kind")

    def test_a_message_stays_a_sentence_where_a_name_has_swallowed_the_file(self, tmp_path):
        lines = "\n".join(f"{i},{i},no" for i in range(2000))
        (tmp_path / "rows.csv").write_text(f'age,dose,"ill\n{lines}"\n1,2,no\n')
        with pytest.raises(HeadwaterError, match="no column 'ill'") as caught:
            split_of(tmp_path / "rows.csv")
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500
