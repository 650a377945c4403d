"""Folders of one's own: images by class, client and sector, and a file for each client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import headwater as hw
from headwater.config import Config
from headwater.data.loading import load
from headwater.errors import HeadwaterError
from headwater.training.experiment import prepare


def paint(file: Path, level: int, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, level if mode == "L" else (level, 0, 255 - level)).save(file)


class TestImages:
    def test_by_class(self, tmp_path: Path) -> None:
        for number, name in enumerate(("ant", "bee")):
            for n in range(10):
                paint(tmp_path / name / f"{n}.png", 40 * number + n)
        data = load(str(tmp_path))
        assert data.class_names == ("ant", "bee")
        assert data.shape == (3, 8, 8)
        assert (len(data), len(data.test)) == (16, 4)
        assert data.owners is None
        reds = (data.train.x[:, 0, 0, 0] + 1) * 127.5
        assert set(reds[data.train.y == 1].round().int().tolist()) <= set(range(40, 50))

    def test_by_client_and_class(self, tmp_path: Path) -> None:
        for client, count in (("clinic 10", 5), ("clinic 2", 15)):
            for name in ("ant", "bee"):
                for n in range(count):
                    paint(tmp_path / client / name / f"{n}.png", 10 * count)
        made = prepare(Config(data={"name": str(tmp_path), "validation": 0, "reference_size": 0}))
        assert made.split.owners.clients == ("clinic 2", "clinic 10")  # 2 before 10
        assert made.partition.sizes == (24, 8)  # a fifth of each client's images is for tests
        for client, level in ((0, 150), (1, 50)):
            mine = made.split.train.x[torch.tensor(made.partition.indices[client])]
            assert ((mine[:, 0, 0, 0] + 1) * 127.5).round().unique().tolist() == [level]

    def test_by_sector_client_and_class(self, tmp_path: Path) -> None:
        for sector in ("east", "west"):
            for client in ("a", "b"):
                for name in ("ant", "bee"):
                    for n in range(6):
                        paint(tmp_path / sector / client / name / f"{n}.png", 9 * n, mode="L")
        made = prepare(Config(data={"name": str(tmp_path)}))
        assert made.split.owners.clients == ("east/a", "east/b", "west/a", "west/b")
        assert made.partition.sectors == (0, 0, 1, 1)
        assert made.split.shape == (1, 8, 8)  # grey stays grey
        run = hw.run("fedhead", data=str(tmp_path), rounds=1)
        assert (run.result["clients"], run.result["sectors"]) == (4, 2)

    def test_a_part_for_tests(self, tmp_path: Path) -> None:
        for part, count in (("train", 9), ("test", 4)):
            for name in ("ant", "bee"):
                for n in range(count):
                    paint(tmp_path / part / name / f"{n}.png", n)
        data = load(str(tmp_path))
        assert (len(data), len(data.test)) == (18, 8)

    def test_images_of_several_sizes_get_the_most_common_one_or_the_asked(self, tmp_path: Path) -> None:
        for name in ("ant", "bee"):
            for n in range(6):
                paint(tmp_path / name / f"{n}.png", 7, (12, 12) if n else (20, 10))
        assert load(str(tmp_path)).shape == (3, 12, 12)
        assert load(str(tmp_path), None, {"pixels": 16}).shape == (3, 16, 16)

    def test_a_class_that_one_client_lacks(self, tmp_path: Path) -> None:
        for client, names in (("a", ("ant", "bee")), ("b", ("bee",))):
            for name in names:
                for n in range(5):
                    paint(tmp_path / client / name / f"{n}.png", 3)
        data = load(str(tmp_path))
        assert data.classes == 2
        assert set(data.train.y[torch.from_numpy(data.owners.indices()[1])].tolist()) == {1}

    def test_capitals_and_a_part_for_validation(self, tmp_path: Path) -> None:
        for part, count in (("Train", 9), ("Test", 4), ("val", 2)):
            for name in ("ant", "bee"):
                for n in range(count):
                    paint(tmp_path / part / name / f"{n}.PNG", n)
        data = load(str(tmp_path))
        assert (len(data), len(data.test)) == (22, 8)
        assert data.owners is None

    def test_levels_of_two_bytes(self, tmp_path: Path) -> None:
        for name, level in (("ant", 257 * 10), ("bee", 257 * 200)):
            (tmp_path / name).mkdir()
            for n in range(5):
                Image.fromarray(np.full((8, 8), level, dtype=np.uint16)).save(tmp_path / name / f"{n}.png")
        data = load(str(tmp_path))
        assert data.shape == (1, 8, 8)
        assert ((data.train.x.unique() + 1) * 127.5).round().tolist() == [10, 200]


class TestFiles:
    def test_a_point_in_a_name_and_columns_that_are_words_in_one_file_only(self, tmp_path: Path) -> None:
        pd.DataFrame({"a": [1, 2] * 5, "label": [True, False] * 5}).to_csv(tmp_path / "site.a.csv", index=False)
        pd.DataFrame({"a": [1, 2] * 5, "label": ["True", "maybe"] * 5}).to_csv(tmp_path / "site.b.csv", index=False)
        data = load(str(tmp_path))
        assert data.owners.clients == ("site.a", "site.b")
        assert data.class_names == ("False", "True", "maybe")

    @pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
    def test_a_file_for_each_client(self, tmp_path: Path, suffix: str) -> None:
        rng = np.random.default_rng(0)
        for number, client in enumerate(("one", "two", "three")):
            x, y = rng.normal(number, 1, (20, 3)), np.arange(20) % 2
            file = tmp_path / ("near" if number < 2 else "far") / f"{client}.{suffix}"
            file.parent.mkdir(exist_ok=True)
            if suffix == "npz":
                np.savez(file, x=x.astype(np.float32), y=y)
                continue
            frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(label=y)
            frame.to_csv(file, index=False) if suffix == "csv" else frame.to_parquet(file, index=False)
        made = prepare(Config(data={"name": str(tmp_path), "validation": 0, "reference_size": 0}))
        assert made.split.owners.clients == ("far/three", "near/one", "near/two")
        assert made.partition.sectors == (0, 1, 1)
        assert made.partition.sizes == (16, 16, 16)
        means = [float(made.split.train.x[torch.tensor(rows)].mean()) for rows in made.partition.indices]
        assert means[0] > means[2] > means[1]  # the rows of "three" lie highest


class TestWrong:
    def test_an_empty_folder(self, tmp_path: Path) -> None:
        with pytest.raises(HeadwaterError, match="no images"):
            load(str(tmp_path))

    def test_images_at_two_depths(self, tmp_path: Path) -> None:
        paint(tmp_path / "ant" / "0.png", 1)
        paint(tmp_path / "ant" / "1.png", 1)
        paint(tmp_path / "a" / "bee" / "0.png", 1)
        with pytest.raises(HeadwaterError, match=r"bee.0\.png does not lie as images must"):
            load(str(tmp_path))

    def test_a_damaged_image_is_named(self, tmp_path: Path) -> None:
        for name in ("ant", "bee"):
            for n in range(5):
                paint(tmp_path / name / f"{n}.png", 1)
        bad = tmp_path / "bee" / "3.png"
        bad.write_bytes(bad.read_bytes()[:40])
        with pytest.raises(HeadwaterError, match=r"bee.3\.png is damaged"):
            load(str(tmp_path))

    def test_one_class(self, tmp_path: Path) -> None:
        for n in range(6):
            paint(tmp_path / "ant" / f"{n}.png", 1)
        with pytest.raises(HeadwaterError, match="one class only"):
            load(str(tmp_path))

    def test_tables_that_differ(self, tmp_path: Path) -> None:
        pd.DataFrame({"a": [1, 2], "label": [0, 1]}).to_csv(tmp_path / "x.csv", index=False)
        pd.DataFrame({"b": [1, 2], "label": [0, 1]}).to_csv(tmp_path / "y.csv", index=False)
        with pytest.raises(HeadwaterError, match="differ in the columns a, b"):
            load(str(tmp_path))

    def test_parts_beside_other_folders(self, tmp_path: Path) -> None:
        paint(tmp_path / "train" / "ant" / "0.png", 1)
        paint(tmp_path / "clinic" / "ant" / "0.png", 1)
        with pytest.raises(HeadwaterError, match="beside other folders"):
            load(str(tmp_path))

    def test_tables_in_parts(self, tmp_path: Path) -> None:
        for part in ("train", "test"):
            (tmp_path / part).mkdir()
            pd.DataFrame({"a": [1, 2], "label": [0, 1]}).to_csv(tmp_path / part / "x.csv", index=False)
        with pytest.raises(HeadwaterError, match=r"name a table for tests with data\.test"):
            load(str(tmp_path))

    def test_options_of_tables_for_images(self, tmp_path: Path) -> None:
        paint(tmp_path / "ant" / "0.png", 1)
        with pytest.raises(HeadwaterError, match=r"data\.test is for tables"):
            load(str(tmp_path), None, {"test": "elsewhere"})

    def test_columns_of_one_table_named_for_a_folder(self, tmp_path: Path) -> None:
        paint(tmp_path / "ant" / "0.png", 1)
        with pytest.raises(HeadwaterError, match="folders' and files' names say who holds what"):
            load(str(tmp_path), None, {"client": "who"})
