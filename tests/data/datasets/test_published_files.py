"""The published layouts: what stands where in them, on small files of each."""

from __future__ import annotations

import hashlib
import io
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat

from headwater.data import DATASETS
from headwater.data.datasets import cifar
from headwater.data.datasets.imagenet import read_tiny
from headwater.data.files import PublishedFile, published
from headwater.data.loading import load
from headwater.errors import DataError
from miniatures import (
    cifar_files,
    idx,
    idx_files,
    imagenet_files,
    letters,
    mat,
    pixels,
    put,
    stl_files,
    svhn,
    svhn_extra,
    tar,
    tiny_files,
    zipped,
)

BOTH = [(10, "python"), (10, "binary"), (100, "python"), (100, "binary")]


class Trap:
    """Unpickling this would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("never",))


def floats(images: Any) -> torch.Tensor:
    return torch.from_numpy(images).float() / 127.5 - 1


def inside(classes: int, version: str) -> str:
    return f"cifar-10-batches-{version[:3].replace('pyt', 'py')}" if classes == 10 else f"cifar-100-{version}"


def as_folder(where: Path, classes: int, version: str, files: dict[str, bytes]) -> None:
    put(where / f"cifar{classes}" / inside(classes, version), files)


def as_tar(where: Path, classes: int, version: str, files: dict[str, bytes]) -> Path:
    return tar(where / f"cifar{classes}" / f"cifar-{classes}-{version}.tar.gz", inside(classes, version), files)


@pytest.mark.parametrize(("classes", "version"), BOTH)
class TestCifar:
    @pytest.mark.parametrize("form", [as_folder, as_tar])
    def test_both_versions_packed_or_not(self, classes: int, version: str, form: Any, tmp_path: Path) -> None:
        form(tmp_path, classes, version, cifar_files(classes, version == "binary"))
        found = load(f"cifar{classes}", tmp_path)
        torch.testing.assert_close(found.test.x, floats(pixels(classes)))
        torch.testing.assert_close(found.train.x[-classes:], floats(pixels(classes)))
        assert found.train.y.tolist() == [*range(classes)] * (5 if classes == 10 else 1)
        assert found.class_names[3] == ("cat" if classes == 10 else "bear")

    def test_a_missing_batch_is_named(self, classes: int, version: str, tmp_path: Path) -> None:
        files = cifar_files(classes, version == "binary")
        lost = sorted(files)[-1]
        del files[lost]
        as_folder(tmp_path / "a", classes, version, files)
        as_tar(tmp_path / "b", classes, version, files)
        for where in ("a", "b"):
            with pytest.raises(DataError, match=f"damaged or incomplete .*{lost}"):
                load(f"cifar{classes}", tmp_path / where)

    def test_a_truncated_batch_is_named(self, classes: int, version: str, tmp_path: Path) -> None:
        files = cifar_files(classes, version == "binary")
        first = sorted(files)[0]
        as_folder(tmp_path / "a", classes, version, files | {first: files[first][:-100]})
        as_tar(tmp_path / "b", classes, version, files | {first: files[first][:-100]})
        with pytest.raises(DataError, match=f"{first} is damaged or incomplete"):
            load(f"cifar{classes}", tmp_path / "a")
        with pytest.raises(DataError, match=rf"cifar-{classes}-{version}\.tar\.gz is damaged or incomplete .*{first}:"):
            load(f"cifar{classes}", tmp_path / "b")


@pytest.mark.parametrize("version", ["python", "binary"])
def test_coarse_labels_are_the_other_ones(version: str, tmp_path: Path) -> None:
    as_folder(tmp_path, 100, version, cifar_files(100, version == "binary"))
    found = load("cifar100", tmp_path, {"coarse": True})
    assert found.train.y.tolist() == [fine // 5 for fine in range(100)]
    assert (found.classes, found.class_names[1]) == (20, "fish")


class TestPickles:
    def test_one_that_would_run_code_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        as_folder(tmp_path, 10, "python", cifar_files(10) | {"data_batch_1": pickle.dumps(Trap(), protocol=2)})
        with pytest.raises(DataError, match=r"data_batch_1 is damaged .*print has no place in an image file"):
            load("cifar10", tmp_path)
        assert "never" not in capsys.readouterr().out

    @pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
    def test_every_protocol_is_read(self, protocol: int, tmp_path: Path) -> None:
        """Files that somebody has written anew differ from the published ones, and hold the same."""
        x = pixels(10)
        batch = pickle.dumps({"data": x.reshape(10, -1), "labels": np.arange(10)}, protocol=protocol)
        as_folder(tmp_path, 10, "python", dict.fromkeys(cifar_files(10), batch))
        torch.testing.assert_close(load("cifar10", tmp_path).test.x, floats(x))

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            ({"data": pixels(2).reshape(2, -1)}, "it has no 'labels'"),
            ({"labels": [0, 1]}, "it has no 'data'"),
            ({"data": pixels(2).reshape(2, -1), "labels": [0]}, "2 images but labels of shape"),
            ({"data": pixels(2).reshape(2, -1), "labels": [0.5, 1.5]}, "kind float64"),
            ({"data": pixels(2).reshape(2, -1) / 255, "labels": [0, 1]}, "its data are float64"),
            ({"data": pixels(2), "labels": [0, 1]}, "instead of rows of 3072 bytes"),
            ([1, 2], "data_batch_1 is damaged"),
        ],
    )
    def test_what_is_not_a_batch(self, content: Any, why: str, tmp_path: Path) -> None:
        as_folder(tmp_path, 10, "python", cifar_files(10) | {"data_batch_1": pickle.dumps(content)})
        with pytest.raises(DataError, match=why):
            load("cifar10", tmp_path)


class TestCheckSums:
    """A file without a check-sum of its own, of the published length but with other bytes, is damaged."""

    def prepare(self, where: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        as_folder(where, 100, "binary", cifar_files(100, binary=True))
        path = where / "cifar100" / "cifar-100-binary" / "train.bin"
        right = PublishedFile(hashlib.md5(path.read_bytes()).hexdigest(), path.stat().st_size)
        known = published("cifar100")
        monkeypatch.setitem(cifar.PUBLISHED, "cifar100", replace(known, files={"train.bin": right, **known.files}))
        return path

    def test_the_right_file_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prepare(tmp_path, monkeypatch)
        assert len(load("cifar100", tmp_path)) == 100

    def test_a_changed_pixel_is_found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = self.prepare(tmp_path, monkeypatch)
        content = bytearray(path.read_bytes())
        right = hashlib.md5(content).hexdigest()
        content[5000] ^= 1
        path.write_bytes(content)
        wrong = hashlib.md5(content).hexdigest()
        with pytest.raises(
            DataError, match=rf"train\.bin is damaged .*its MD5 is {wrong}, that of the .* file {right}"
        ):
            load("cifar100", tmp_path)

    def test_a_part_of_the_set_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = self.prepare(tmp_path, monkeypatch)
        path.write_bytes(path.read_bytes()[: 3074 * 40])
        assert len(load("cifar100", tmp_path)) == 40

    def test_the_table_is_whole(self) -> None:
        for name in DATASETS:
            known = published(name)
            if not known.source:  # such as an embedded set
                continue
            assert known.source.startswith("http"), name
            assert set(known.get) <= set(known.files), name
            for file in known.files.values():
                assert len(file.digest) == {"MD5": 32, "SHA-256": 64}[file.kind]
                assert int(file.digest, 16) > 0


class TestSvhn:
    def test_pixels_and_the_digit_zero(self, tmp_path: Path) -> None:
        svhn(tmp_path / "svhn")
        found = load("svhn", tmp_path)
        torch.testing.assert_close(found.train.x, floats(pixels(20)))
        assert found.test.y.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
        assert found.class_names[0] == "0"

    def test_the_extra_digits_follow_those_for_training(self, tmp_path: Path) -> None:
        svhn(tmp_path / "svhn")
        svhn_extra(tmp_path / "svhn")
        both, alone = load("svhn", tmp_path, {"extra": True}), load("svhn_extra", tmp_path)
        torch.testing.assert_close(both.train.x, floats(np.concatenate([pixels(20), pixels(30)])))
        assert (len(alone), len(alone.test), both.name, alone.name) == (30, 10, "svhn", "svhn_extra")
        assert torch.equal(both.test.x, alone.test.x)

    def test_extra_is_not_silently_left_out(self, tmp_path: Path) -> None:
        svhn(tmp_path / "svhn")
        with pytest.raises(DataError, match=r"svhn_extra is not in the data directory.*extra_32x32\.mat"):
            load("svhn", tmp_path, {"extra": True})

    def test_one_part_packed_and_one_as_published(self, tmp_path: Path) -> None:
        svhn_extra(tmp_path / "svhn")
        y = np.arange(10)
        x = pixels(10).transpose(0, 2, 3, 1)
        np.savez(tmp_path / "svhn" / "svhn.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        found = load("svhn", tmp_path, {"extra": True})
        torch.testing.assert_close(found.train.x, floats(np.concatenate([pixels(10), pixels(30)])))
        torch.testing.assert_close(found.test.x, floats(pixels(10)))

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            ({"X": pixels(4).transpose(2, 3, 1, 0)}, "it has no X or no y"),
            ({"X": pixels(4), "y": [1, 2, 3, 4]}, r"instead of bytes of shape \(32, 32, 3, n\)"),
            ({"X": pixels(4).transpose(2, 3, 1, 0) / 255, "y": [1, 2, 3, 4]}, "its X is float64"),
            ({"X": pixels(4).transpose(2, 3, 1, 0), "y": [1, 2, 3]}, "4 images but 3 labels"),
            ({"X": pixels(4).transpose(2, 3, 1, 0), "y": [0, 1, 2, 3]}, "not all from 1 to 10"),
        ],
    )
    def test_what_is_not_svhn(self, content: dict[str, Any], why: str, tmp_path: Path) -> None:
        buffer = io.BytesIO()
        savemat(buffer, content)
        put(tmp_path / "svhn", {"train_32x32.mat": buffer.getvalue(), "test_32x32.mat": mat(10)})
        with pytest.raises(DataError, match=rf"train_32x32\.mat is damaged or incomplete \({why}|{why}"):
            load("svhn", tmp_path)


class TestStl10:
    def test_columns_become_rows_and_nine_pixels_one(self, tmp_path: Path) -> None:
        put(tmp_path / "stl10" / "stl10_binary", stl_files())
        found = load("stl10", tmp_path)
        means = np.rint(pixels(10, 96).reshape(10, 3, 32, 3, 32, 3).mean(axis=(3, 5)))
        torch.testing.assert_close(found.train.x, floats(means))
        assert found.test.y.tolist() == list(range(10))
        assert found.class_names[7] == "monkey"

    def test_images_without_labels(self, tmp_path: Path) -> None:
        """They need neither the labelled images nor their labels."""
        files = {name: content for name, content in stl_files().items() if not name.startswith("train")}
        put(tmp_path / "stl10" / "stl10_binary", files)
        found = load("stl10_unlabelled", tmp_path)
        assert (len(found), len(found.test)) == (10, 10)
        with pytest.raises(DataError, match=r"it lacks train_X\.bin"):
            load("stl10", tmp_path)

    def test_cut_short_inside_an_image(self, tmp_path: Path) -> None:
        files = stl_files()
        put(tmp_path / "stl10" / "stl10_binary", files | {"test_X.bin": files["test_X.bin"][:-5]})
        with pytest.raises(DataError, match=r"test_X\.bin is damaged .*not a whole number of images"):
            load("stl10", tmp_path)

    def test_cut_short_between_images(self, tmp_path: Path) -> None:
        files = stl_files()
        put(tmp_path / "stl10" / "stl10_binary", files | {"train_X.bin": files["train_X.bin"][: 3 * 96 * 96 * 9]})
        with pytest.raises(DataError, match=r"stl10_binary is damaged .*10 labels for 9 samples"):
            load("stl10", tmp_path)

    def test_a_label_that_there_is_not(self, tmp_path: Path) -> None:
        put(tmp_path / "stl10" / "stl10_binary", stl_files() | {"test_y.bin": bytes([0] * 10)})
        with pytest.raises(DataError, match=r"test_y\.bin is damaged .*not all from 1 to 10"):
            load("stl10", tmp_path)


class TestImagenet32:
    @pytest.mark.parametrize("npz", [False, True])
    @pytest.mark.parametrize("form", ["flat", "folders", "archives"])
    def test_pickles_and_arrays_in_every_place(self, npz: bool, form: str, tmp_path: Path) -> None:
        files, end = imagenet_files(npz), "_npz" if npz else ""
        parts = {part: {n: c for n, c in files.items() if n.startswith(part)} for part in ("train", "val")}
        for part, held in parts.items():
            if form == "archives":
                zipped(tmp_path / "imagenet32" / f"Imagenet32_{part}{end}.zip", held)
            else:
                put(tmp_path / "imagenet32" / (f"Imagenet32_{part}{end}" if form == "folders" else ""), held)
        found = load("imagenet32", tmp_path)
        torch.testing.assert_close(found.train.x, floats(np.concatenate([pixels(2)] * 10)))
        assert found.train.y[:4].tolist() == [0, 999, 1, 998]
        assert found.test.y.tolist() == [10, 989]
        assert (found.classes, found.class_names[0], found.class_names[999]) == (1000, "1", "1000")

    def test_a_few_batches(self, tmp_path: Path) -> None:
        put(tmp_path / "imagenet32", imagenet_files())
        assert load("imagenet32", tmp_path, {"batches": 3}).train.y.tolist() == [0, 999, 1, 998, 2, 997]

    @pytest.mark.parametrize("label", [0, 1001])
    def test_a_label_that_there_is_not(self, label: int, tmp_path: Path) -> None:
        odd = pickle.dumps({"data": pixels(2).reshape(2, -1), "labels": [label, 5]})
        put(tmp_path / "imagenet32", imagenet_files() | {"train_data_batch_4": odd})
        with pytest.raises(DataError, match=r"train_data_batch_4 is damaged .*instead of from 1 to 1000"):
            load("imagenet32", tmp_path)

    def test_names_from_the_list_of_the_challenge(self, tmp_path: Path) -> None:
        """Where two classes have the same word, their numbers in WordNet tell them apart."""
        lines = [f"n{n:08} {n} {'crane' if n in (7, 9) else f'thing_{n}'}" for n in range(1, 1001)]
        put(tmp_path / "imagenet32", imagenet_files() | {"map_clsloc.txt": "\n".join(lines).encode()})
        found = load("imagenet32", tmp_path)
        assert found.class_names[5:9] == ("thing_6", "crane (n00000007)", "thing_8", "crane (n00000009)")
        put(tmp_path / "imagenet32", {"map_clsloc.txt": "\n".join(lines[:-1]).encode()})
        with pytest.raises(DataError, match=r"map_clsloc\.txt is damaged .*does not number 1000 classes"):
            load("imagenet32", tmp_path)


class TestIdx:
    @pytest.mark.parametrize("pack", [True, False])
    @pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
    def test_reads_all_four(self, name: str, pack: bool, tmp_path: Path) -> None:
        put(tmp_path / name, idx_files(10, pack=pack))
        found = load(name, tmp_path)
        torch.testing.assert_close(found.train.x, floats(pixels(20, 28, 1)))
        assert found.test.y.tolist() == list(range(10))
        assert found.class_names[1] == {"mnist": "1", "fashion_mnist": "Trouser"}[name]

    @pytest.mark.parametrize("cut", [1, 10_000_000])
    def test_a_length_that_does_not_fit_is_named(self, cut: int, tmp_path: Path) -> None:
        files = idx_files(10, pack=False)
        images = files["train-images-idx3-ubyte"]
        put(tmp_path / "mnist", files | {"train-images-idx3-ubyte": images[: max(0, len(images) - cut)]})
        with pytest.raises(DataError, match="train-images-idx3-ubyte is damaged or incomplete"):
            load("mnist", tmp_path)

    def test_letters_stand_upright_and_count_from_nought(self, tmp_path: Path) -> None:
        letters(tmp_path / "emnist_letters")
        found = load("emnist_letters", tmp_path)
        torch.testing.assert_close(found.train.x, floats(pixels(52, 28, 1)).transpose(2, 3))
        assert found.test.y.tolist() == list(range(26))
        assert (found.class_names[0], found.class_names[25]) == ("A", "Z")

    @pytest.mark.parametrize("place", ["", "gzip"])
    def test_letters_out_of_their_archive(self, place: str, tmp_path: Path) -> None:
        put(tmp_path / "emnist_letters" / place, idx_files(26, 1, "emnist-letters-{}", "test", pack=not place))
        assert len(load("emnist_letters", tmp_path)) == 52

    def test_a_letter_that_there_is_not(self, tmp_path: Path) -> None:
        files = idx_files(26, 1, "emnist-letters-{}", "test")
        odd = {"emnist-letters-test-labels-idx1-ubyte.gz": idx(np.arange(26))}
        put(tmp_path / "emnist_letters", files | odd)
        with pytest.raises(DataError, match=r"emnist_letters is damaged .*go from 0 to 25 instead of from 1 to 26"):
            load("emnist_letters", tmp_path)


class TestTinyImagenet:
    @pytest.mark.parametrize("form", ["archive", "folder"])
    def test_classes_are_sorted_and_interleaved(self, form: str, tmp_path: Path) -> None:
        folder = tmp_path / "tiny_imagenet32"
        if form == "archive":
            path = zipped(folder / "tiny-imagenet-200.zip", tiny_files())
        else:
            put(folder, tiny_files())
            path = folder / "tiny-imagenet-200"
        x, y, names = read_tiny(path)
        assert x.shape == (100, 32, 32, 3)
        assert names == ["goldfish", "newt"]
        assert y[:4].tolist() == [0, 1, 0, 1]
        assert [int(image.mean()) for image in x[:2]] == [40, 200]
        found = load("tiny_imagenet32", tmp_path)
        assert (len(found), len(found.test)) == (80, 20)

    def test_a_missing_image_is_named(self, tmp_path: Path) -> None:
        files = tiny_files()
        del files["tiny-imagenet-200/train/n02/images/n02_7.JPEG"]
        zipped(tmp_path / "a" / "tiny_imagenet32" / "tiny-imagenet-200.zip", files)
        put(tmp_path / "b" / "tiny_imagenet32", files)
        with pytest.raises(DataError, match=r"tiny-imagenet-200\.zip is damaged or incomplete .*n02_7\.JPEG"):
            load("tiny_imagenet32", tmp_path / "a")
        with pytest.raises(DataError, match=r"n02_7\.JPEG is damaged or incomplete"):
            load("tiny_imagenet32", tmp_path / "b")
