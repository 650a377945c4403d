"""Sets from the Hugging Face hub: the real library, on copies of repositories that are laid out as the hub's."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from headwater.data import DATASETS
from headwater.data.files import may_fetch, published
from headwater.data.loading import load
from headwater.errors import MissingExtra
from miniatures import pixels

PROGRAM = """
import sys
from pathlib import Path
from PIL import Image as Picture
from datasets import ClassLabel, Dataset, Features, Image
from miniatures import pixels
from headwater.data.datasets import cifar, stl10
from headwater.data.datasets.images import fetch
from headwater.errors import DataError

here = Path(sys.argv[1])

def write(path, columns, features):
    path.parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_dict(columns, features=Features(features)).to_parquet(path)

def colour(count, side=32):
    return [Picture.fromarray(x) for x in pixels(count, side).transpose(0, 2, 3, 1)]

def refused(case, name, **source):
    try:
        fetch(name, here / "refused" / name / f"{name}.npz", **source)
    except DataError as error:
        print(case, error)

# CIFAR-100's columns; the classes are named in another order there.
backwards = ClassLabel(names=list(reversed(cifar.CIFAR100)))
features = {"img": Image(), "fine_label": backwards, "coarse_label": ClassLabel(names=list(cifar.CIFAR100_COARSE))}
for part, count in (("train", 100), ("test", 20)):
    columns = {"img": colour(count), "fine_label": range(count), "coarse_label": [n % 20 for n in range(count)]}
    write(here / "hub100" / "data" / f"{part}-00000-of-00001.parquet", columns, features)
fetch("cifar100", here / "cifar100" / "cifar100.npz", source=str(here / "hub100"))

# SVHN's digits are one of two configurations, and there is a third part.
digits = {"image": Image(), "label": ClassLabel(names=list("0123456789"))}
parts = ("train", "test", "extra")
for part in parts:
    write(here / "svhn_hub" / "digits" / f"{part}.parquet", {"image": colour(10), "label": range(10)}, digits)
lines = "".join(f"  - split: {part}\\n    path: digits/{part}.parquet\\n" for part in parts)
card = f"---\\nconfigs:\\n- config_name: cropped_digits\\n  data_files:\\n{lines}---\\n"
(here / "svhn_hub" / "README.md").write_text(card)
fetch("svhn_extra", here / "svhn" / "svhn_extra.npz", source=str(here / "svhn_hub"))

# STL-10's images are larger.
things = {"image": Image(), "label": ClassLabel(names=list(stl10.CLASSES))}
for part in ("train", "test"):
    write(here / "stl_hub" / "data" / f"{part}.parquet", {"image": colour(10, 96), "label": range(10)}, things)
fetch("stl10", here / "stl10" / "stl10.npz", source=str(here / "stl_hub"))

# What is no longer as it was.
label = ClassLabel(names=list(cifar.CIFAR10))
for case, columns, features in (
    ("column", {"picture": colour(2), "label": [0, 1]}, {"picture": Image(), "label": label}),
    ("size", {"img": colour(2, 64), "label": [0, 1]}, {"img": Image(), "label": label}),
    ("label", {"img": colour(2), "label": [0, 10]}, {"img": Image(), "label": ClassLabel(num_classes=11)}),
):
    for part in ("train", "test"):
        write(here / case / "data" / f"{part}.parquet", columns, features)
    refused(case, "cifar10", source=str(here / case))
refused("offline", "mnist")
"""


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The data directory, and what was said by case. In a process of its own, since the library reads its settings when
    it is imported; without a network, so that nothing depends on one."""
    if find_spec("datasets") is None:
        pytest.skip("datasets is not installed: pip install datasets")
    here = tmp_path_factory.mktemp("hub")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(here)],
        env=os.environ
        | {"HF_HOME": str(here / "cache"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = (line.partition(" ") for line in done.stdout.splitlines())
    return here, {case: sentence for case, _, sentence in said}


class TestColumns:
    def test_both_kinds_of_labels_in_our_order(self, fetched: tuple[Path, dict[str, str]]) -> None:
        folder = fetched[0]
        assert [path.name for path in (folder / "cifar100").iterdir()] == ["cifar100.npz"]
        fine, coarse = load("cifar100", folder), load("cifar100", folder, {"coarse": True})
        torch.testing.assert_close(fine.train.x, torch.from_numpy(pixels(100)).float() / 127.5 - 1)
        assert fine.train.y.tolist() == list(reversed(range(100)))
        assert coarse.test.y.tolist() == list(range(20))
        assert (fine.classes, coarse.classes) == (100, 20)

    def test_one_configuration_of_several(self, fetched: tuple[Path, dict[str, str]]) -> None:
        found = load("svhn_extra", fetched[0])
        assert found.train.y.tolist() == list(range(10))
        torch.testing.assert_close(found.train.x, torch.from_numpy(pixels(10)).float() / 127.5 - 1)

    def test_larger_images_are_averaged(self, fetched: tuple[Path, dict[str, str]]) -> None:
        means = np.rint(pixels(10, 96).reshape(10, 3, 32, 3, 32, 3).mean(axis=(3, 5)))
        found = load("stl10", fetched[0])
        torch.testing.assert_close(found.test.x, torch.from_numpy(means).float() / 127.5 - 1)


class TestRefused:
    @pytest.mark.parametrize(
        ("case", "words"),
        [
            ("column", "no column 'img' (it has picture, label)"),
            ("size", "(64, 64) px instead of 32 x 32"),
            ("label", "not all from 0 to 9"),
        ],
    )
    def test_what_has_changed_is_not_half_used(
        self, case: str, words: str, fetched: tuple[Path, dict[str, str]]
    ) -> None:
        folder, said = fetched
        assert words in said[case]
        assert not (folder / "refused").exists()

    def test_without_a_network(self, fetched: tuple[Path, dict[str, str]]) -> None:
        folder, said = fetched
        known = published("mnist")
        assert said["offline"].startswith(f"mnist could not be fetched from the Hugging Face hub ({known.hub}:")
        assert f"get it from {known.source} and put it into {folder / 'refused' / 'mnist'}" in said["offline"]


class TestAgreement:
    def test_only_who_says_so_agrees(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("HEADWATER_FETCH", raising=False)
        assert not may_fetch()
        for word, answer in (("1", True), ("yes", True), ("", False), ("0", False), ("False", False), ("no", False)):
            monkeypatch.setenv("HEADWATER_FETCH", word)
            assert may_fetch() is answer, word

    def test_without_the_library_it_says_how_to_install_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HEADWATER_FETCH", "1")
        monkeypatch.setitem(sys.modules, "datasets", None)  # which is how Python says that there is none
        with pytest.raises(MissingExtra, match=r"fetching mnist from the Hugging Face hub .*'headwater\[hub\]'"):
            load("mnist", tmp_path)

    def test_what_is_offered_can_be_fetched(self) -> None:
        for name in DATASETS:
            assert bool(published(name).hub) == (published(name).layout is not None), name
