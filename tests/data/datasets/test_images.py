"""The image sets by name, on the embedded set and on small files of each layout."""

from __future__ import annotations

import gzip
import io
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from headwater.config import Config
from headwater.config.sections import DataConfig
from headwater.core.rng import stream
from headwater.data.loading import load, open_data
from headwater.data.split import carve
from headwater.errors import ConfigError, DataError
from miniatures import imagenet_files, put, stl_files


def webp(images: Any) -> bytes:
    """A strip whose rows are images one after the other, as in the packed sets."""
    buffer = io.BytesIO()
    Image.fromarray(images.reshape(32, -1, 3)).save(buffer, "WEBP", lossless=True)
    return buffer.getvalue()


def npy(values: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def pictures(count: int, seed: int = 0) -> Any:
    return stream(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def packed_cifar10(folder: Path, **changes: bytes) -> Path:
    """Two training strips of 10 images and a test strip, all small; `changes` replace members."""
    x = pictures(30)
    members = {
        "train_000.webp": webp(x[:10]),
        "train_001.webp": webp(x[10:20]),
        "test_000.webp": webp(x[20:]),
        "train_labels.npy": npy(np.arange(20, dtype=np.uint8) % 10),
        "test_labels.npy": npy(np.arange(10, dtype=np.uint8)),
    }
    (folder / "cifar10").mkdir()
    path = folder / "cifar10" / "cifar10_lossless_webp.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (members | {key.replace("__", "."): value for key, value in changes.items()}).items():
            archive.writestr(name, content)
    return path


class TestDigits:
    def test_every_image_is_in_one_part_only(self) -> None:
        found = load("digits")
        rows = [tuple(x.flatten().tolist()) for part in (found.train, found.test) for x in part.x]
        assert len(rows) == len(set(rows)) == 1797

    def test_is_the_same_every_time(self) -> None:
        assert torch.equal(load("digits").test.x, load("digits").test.x)

    def test_are_those_that_scikit_learn_gives(self) -> None:
        from sklearn.datasets import load_digits

        bunch, found = load_digits(), load("digits")
        x, y = torch.cat([found.train.x, found.test.x]), torch.cat([found.train.y, found.test.y])
        ours = {(*row, label) for row, label in zip(x.flatten(1).tolist(), y.tolist(), strict=True)}
        theirs = zip((bunch.data / 8 - 1).tolist(), bunch.target.tolist(), strict=True)
        assert ours == {(*row, label) for row, label in theirs}

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            (None, r"digits\.csv\.gz is not there; install scikit-learn again"),
            (b"not packed", r"digits\.csv\.gz is damaged or incomplete"),
            (gzip.compress(b"0,1,2\n" * 99)[:-9], r"digits\.csv\.gz is damaged or incomplete"),
            (gzip.compress(b"0,1,2\n"), r"digits\.csv\.gz is damaged or incomplete"),
            (gzip.compress(b",".join([b"0"] * 64) + b"\n"), r"a line has 64 values instead of 65"),
            (gzip.compress(b"one,two\n"), r"digits\.csv\.gz is damaged or incomplete"),
        ],
        ids=["absent", "not packed", "cut short", "three values", "64 values", "words"],
    )
    def test_another_scikit_learn(
        self, content: bytes | None, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "sklearn" / "datasets" / "data"
        folder.mkdir(parents=True)
        (tmp_path / "sklearn" / "__init__.py").touch()
        if content is not None:
            (folder / "digits.csv.gz").write_bytes(content)
        monkeypatch.delitem(sys.modules, "sklearn", raising=False)
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(DataError, match=sentence):
            load("digits")

    def test_without_scikit_learn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "sklearn", raising=False)
        load("digits")  # so that all that is needed but the data has been imported
        monkeypatch.setattr(sys, "path", [])
        with pytest.raises(DataError, match="scikit-learn, which is not installed; install it"):
            load("digits")

    def test_a_line_separates_the_classes_well(self) -> None:
        """A mix-up of labels or images would show: nearest class mean reaches 85 % on this set."""
        found = load("digits")
        means = torch.stack([found.train.x[found.train.y == label].mean(0).flatten() for label in range(10)])
        guess = torch.cdist(found.test.x.flatten(1), means).argmin(1)
        assert float((guess == found.test.y).float().mean()) > 0.85


class TestPacked:
    def test_cifar10_keeps_pixels_and_order(self, tmp_path: Path) -> None:
        packed_cifar10(tmp_path)
        found = load("cifar10", tmp_path)
        x = torch.from_numpy(pictures(30)).permute(0, 3, 1, 2).float() / 127.5 - 1
        torch.testing.assert_close(found.train.x, x[:20])
        torch.testing.assert_close(found.test.x, x[20:])
        assert found.train.y.tolist() == [i % 10 for i in range(20)]
        assert found.class_names[3] == "cat"

    def test_environment_names_the_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        packed_cifar10(tmp_path)
        monkeypatch.setenv("HEADWATER_DATA", str(tmp_path))
        assert len(load("cifar10")) == 20

    def test_fashion_mnist(self, tmp_path: Path) -> None:
        (tmp_path / "fashion_mnist").mkdir()
        x, y = pictures(20)[:, :28, :28, :1], np.arange(20, dtype=np.uint8) % 10
        np.savez(tmp_path / "fashion_mnist" / "fashion_mnist.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
        found = load("fashion_mnist", tmp_path)
        assert found.shape == (1, 28, 28)
        assert float(found.train.x[3, 0, 4, 5]) == pytest.approx(x[3, 4, 5, 0] / 127.5 - 1)

    def test_tiny_imagenet32_keeps_its_last_fifth_for_tests(self, tmp_path: Path) -> None:
        (tmp_path / "tiny_imagenet32").mkdir()
        with zipfile.ZipFile(tmp_path / "tiny_imagenet32" / "tiny_imagenet32_lossless_webp.zip", "w") as archive:
            archive.writestr("ref_000.webp", webp(pictures(10)))
            archive.writestr("ref_labels.npy", npy(np.arange(10) % 2))
            archive.writestr("classes.tsv", "0\tn01\tgoldfish, Carassius\n1\tn02\tnewt\n")
        found = load("tiny_imagenet32", tmp_path)
        assert (len(found), len(found.test), found.class_names) == (8, 2, ("goldfish, Carassius", "newt"))

    @pytest.mark.parametrize("name", ["mnist", "emnist_letters", "cifar10", "cifar100", "svhn", "stl10", "imagenet32"])
    def test_four_arrays_named_after_the_set(self, name: str, tmp_path: Path) -> None:
        """The form in which sets from the hub are kept."""
        x = pictures(10)[:, :28, :28, :1] if "mnist" in name else pictures(10)
        y = np.arange(10)
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / f"{name}.npz", x_train=x, y_train=y, x_test=x[::-1], y_test=y[::-1])
        found = load(name, tmp_path)
        torch.testing.assert_close(found.train.x, torch.from_numpy(x).permute(0, 3, 1, 2).float() / 127.5 - 1)
        assert found.test.y.tolist() == list(reversed(range(10)))

    def test_arrays_of_another_shape_are_another_set(self, tmp_path: Path) -> None:
        (tmp_path / "mnist").mkdir()
        x, y = pictures(10)[..., :1], np.arange(10)
        np.savez(tmp_path / "mnist" / "mnist.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        with pytest.raises(DataError, match=r"mnist\.npz is damaged .*shape \(1, 32, 32\) instead of \(1, 28, 28\)"):
            load("mnist", tmp_path)

    def test_coarse_labels_that_were_not_kept(self, tmp_path: Path) -> None:
        (tmp_path / "cifar100").mkdir()
        x, y = pictures(10), np.arange(10)
        np.savez(tmp_path / "cifar100" / "cifar100.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        with pytest.raises(DataError, match=r"cifar100\.npz is damaged .*it lacks y_coarse_train, y_coarse_test"):
            load("cifar100", tmp_path, {"coarse": True})


class TestWithoutLabels:
    def test_is_a_reference_set(self, tmp_path: Path) -> None:
        packed_cifar10(tmp_path)
        put(tmp_path / "stl10" / "stl10_binary", stl_files())
        split = carve(load("cifar10", tmp_path), reference="stl10_unlabelled", data_dir=tmp_path)
        ours = load("stl10_unlabelled", tmp_path)
        assert torch.equal(split.reference, ours.take(range(10)).x)  # all of them: it takes nothing from the clients

    def test_is_not_what_clients_hold(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"'stl10_unlabelled', which has no labels .*name it as data\.reference"):
            open_data(DataConfig(name="stl10_unlabelled", dir=str(tmp_path)))


class TestOptions:
    """What a loader takes by name only is a key of the configuration."""

    def test_are_keys(self, tmp_path: Path) -> None:
        put(tmp_path / "imagenet32", imagenet_files())
        config = Config.load(data__name="imagenet32", sets=["data.batches=2", f"data.dir={str(tmp_path)!r}"])
        assert len(open_data(config.data)) == 4

    @pytest.mark.parametrize(
        ("name", "pair", "sentence"),
        [
            ("cifar100", "data.coarse=yes", r"data\.coarse must be true or false"),
            ("imagenet32", "data.batches=11", r"data\.batches must be a whole number .*of at most 10, got 11"),
            ("cifar10", "data.coarse=true", r"coarse"),
        ],
    )
    def test_are_checked(self, name: str, pair: str, sentence: str) -> None:
        with pytest.raises(ConfigError, match=sentence):
            Config.load(sets=[f"data.name={name}", pair])


@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10", "tiny_imagenet32"])
class TestAbsentAndBroken:
    def test_absent_says_where_from_and_where_to(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(
            DataError, match=f"{name} is not in the data directory: .*{name} has neither .* get it from http"
        ):
            load(name, tmp_path)

    def test_a_file_of_the_wrong_kind_is_named(self, name: str, tmp_path: Path) -> None:
        file = "fashion_mnist.npz" if name == "fashion_mnist" else f"{name}_lossless_webp.zip"
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_bytes(b"<html>404</html>")
        with pytest.raises(DataError, match=re.escape(f"{file} is damaged or incomplete")):
            load(name, tmp_path)


class TestBroken:
    @pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9, 0.999])
    def test_truncated(self, share: float, tmp_path: Path) -> None:
        path = packed_cifar10(tmp_path)
        raw = path.read_bytes()
        path.write_bytes(raw[: int(len(raw) * share)])
        with pytest.raises(DataError, match=r"cifar10_lossless_webp\.zip is damaged or incomplete"):
            load("cifar10", tmp_path)

    @pytest.mark.parametrize("place", [0.1, 0.35, 0.6])
    def test_a_flipped_byte(self, place: float, tmp_path: Path) -> None:
        path = packed_cifar10(tmp_path)
        raw = bytearray(path.read_bytes())
        raw[int(len(raw) * place)] ^= 0xFF
        path.write_bytes(raw)
        with pytest.raises(DataError, match="damaged or incomplete"):
            load("cifar10", tmp_path)

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"train_labels__npy": npy(np.arange(19))}, "19 labels for 20 samples"),
            ({"train_labels__npy": npy(np.arange(20))}, "10 class names but the label 19"),
            ({"train_labels__npy": b"nothing"}, "train_labels.npy"),
            ({"train_001__webp": b"nothing"}, "train_001.webp"),
            ({"train_001__webp": webp(pictures(10))[:900]}, "train_001.webp"),
            ({"train_001__webp": webp(pictures(10).reshape(-1)[: 32 * 33 * 3])}, "train_001.webp"),
        ],
    )
    def test_members_that_do_not_fit(self, changes: dict[str, bytes], why: str, tmp_path: Path) -> None:
        packed_cifar10(tmp_path, **changes)
        with pytest.raises(DataError, match=rf"cifar10_lossless_webp\.zip is damaged or incomplete \(.*{why}"):
            load("cifar10", tmp_path)

    def test_fashion_mnist_without_its_test_part(self, tmp_path: Path) -> None:
        (tmp_path / "fashion_mnist").mkdir()
        np.savez(tmp_path / "fashion_mnist" / "fashion_mnist.npz", x_train=np.zeros((2, 28, 28)), y_train=[0, 1])
        with pytest.raises(DataError, match="it lacks x_test, y_test"):
            load("fashion_mnist", tmp_path)
