"""The published layouts, on small generated files."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from headwater.data.base import load
from headwater.data.official import tiny_imagenet
from headwater.errors import DataError
from headwater.rng import stream

PIXELS = stream(0).integers(0, 256, (60, 3, 32, 32), dtype=np.uint8)
LABELS = np.arange(60) % 10
NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


class Trap:
    """Unpickling this would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("never",))


def batches(version: str) -> dict[str, bytes]:
    """Six batches of ten images."""
    made = {}
    for number, name in enumerate(NAMES):
        x, y = PIXELS[number * 10 : number * 10 + 10], LABELS[number * 10 : number * 10 + 10]
        if version == "py":
            made[name] = pickle.dumps({b"data": x.reshape(10, -1), b"labels": y.tolist()}, protocol=2)
        else:
            made[f"{name}.bin"] = np.concatenate([y[:, None].astype(np.uint8), x.reshape(10, -1)], axis=1).tobytes()
    return made


def as_folder(where: Path, version: str, files: dict[str, bytes]) -> None:
    folder = where / "cifar10" / f"cifar-10-batches-{version}"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def as_tar(where: Path, version: str, files: dict[str, bytes]) -> Path:
    (where / "cifar10").mkdir(parents=True)
    path = where / "cifar10" / ("cifar-10-python.tar.gz" if version == "py" else "cifar-10-binary.tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-{version}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("version", ["py", "bin"])
class TestCifar10:
    @pytest.mark.parametrize("form", [as_folder, as_tar])
    def test_both_versions_packed_or_not(self, version: str, form: Any, tmp_path: Path) -> None:
        form(tmp_path, version, batches(version))
        found = load("cifar10", tmp_path)
        assert (len(found), len(found.test), found.shape) == (50, 10, (3, 32, 32))
        assert np.allclose(found.train.x.numpy(), PIXELS[:50] / 127.5 - 1, atol=1e-6)
        assert found.test.y.tolist() == LABELS[50:].tolist()

    def test_a_missing_batch_is_named(self, version: str, tmp_path: Path) -> None:
        files = batches(version)
        lost = sorted(files)[2]
        del files[lost]
        as_folder(tmp_path / "a", version, files)
        as_tar(tmp_path / "b", version, files)
        for where in ("a", "b"):
            with pytest.raises(DataError, match=f"damaged or incomplete .*{lost}"):
                load("cifar10", tmp_path / where)

    def test_a_truncated_batch(self, version: str, tmp_path: Path) -> None:
        files = batches(version)
        first = sorted(files)[0]
        as_folder(tmp_path, version, files | {first: files[first][:-100]})
        with pytest.raises(DataError, match=f"cifar-10-batches-{version} is damaged or incomplete"):
            load("cifar10", tmp_path)

    def test_a_truncated_archive(self, version: str, tmp_path: Path) -> None:
        path = as_tar(tmp_path, version, batches(version))
        path.write_bytes(path.read_bytes()[:5000])
        with pytest.raises(DataError, match=r"tar\.gz is damaged or incomplete"):
            load("cifar10", tmp_path)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_folder(tmp_path, "py", batches("py") | {"data_batch_1": pickle.dumps(Trap(), protocol=2)})
    with pytest.raises(DataError, match="print has no place in an image file"):
        load("cifar10", tmp_path)
    assert "never" not in capsys.readouterr().out


class TestIdx:
    def write(self, where: Path, pack: bool, cut: int = 0) -> None:
        folder = where / "fashion_mnist"
        folder.mkdir()
        for part, images in (("train", PIXELS[:50, 0, :28, :28]), ("t10k", PIXELS[50:, 0, :28, :28])):
            labels = LABELS[: len(images)]
            for stem, magic, values in (("images-idx3", 2051, images), ("labels-idx1", 2049, labels)):
                header = np.array([magic, *values.shape], dtype=">i4").tobytes()
                content = header + values.astype(np.uint8).tobytes()
                content = content[: len(content) - cut]
                name = f"{part}-{stem}-ubyte"
                (folder / (f"{name}.gz" if pack else name)).write_bytes(gzip.compress(content) if pack else content)

    @pytest.mark.parametrize("pack", [True, False])
    def test_reads_all_four(self, pack: bool, tmp_path: Path) -> None:
        self.write(tmp_path, pack)
        found = load("fashion_mnist", tmp_path)
        assert (len(found), len(found.test), found.shape) == (50, 10, (1, 28, 28))
        assert np.allclose(found.train.x[:, 0].numpy(), PIXELS[:50, 0, :28, :28] / 127.5 - 1, atol=1e-6)

    @pytest.mark.parametrize("cut", [1, 10_000_000])
    def test_a_length_that_does_not_fit_is_named(self, cut: int, tmp_path: Path) -> None:
        self.write(tmp_path, pack=False, cut=cut)
        with pytest.raises(DataError, match="train-images-idx3-ubyte is damaged or incomplete"):
            load("fashion_mnist", tmp_path)

    def test_three_of_four_is_absent(self, tmp_path: Path) -> None:
        self.write(tmp_path, pack=True)
        (tmp_path / "fashion_mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
        with pytest.raises(DataError, match="not in the data directory"):
            load("fashion_mnist", tmp_path)

    def test_a_damaged_gzip_is_named(self, tmp_path: Path) -> None:
        self.write(tmp_path, pack=True)
        path = tmp_path / "fashion_mnist" / "train-labels-idx1-ubyte.gz"
        path.write_bytes(path.read_bytes()[:20])
        with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz is damaged or incomplete"):
            load("fashion_mnist", tmp_path)


class TestTinyImagenet:
    def write(self, where: Path, lost: str = "") -> Path:
        (where / "tiny_imagenet32").mkdir()
        path = where / "tiny_imagenet32" / "tiny-imagenet-200.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("tiny-imagenet-200/wnids.txt", "n02\nn01\n")
            archive.writestr("tiny-imagenet-200/words.txt", "n01\tgoldfish\nn02\tnewt\nn03\tcat\n")
            for kind, level in (("n01", 40), ("n02", 200)):
                for number in range(50):
                    buffer = io.BytesIO()
                    Image.new("RGB", (64, 64), (level, level, level)).save(buffer, "JPEG")
                    name = f"tiny-imagenet-200/train/{kind}/images/{kind}_{number}.JPEG"
                    if lost not in name or not lost:
                        archive.writestr(name, buffer.getvalue())
        return path

    def test_classes_are_sorted_and_interleaved(self, tmp_path: Path) -> None:
        x, y, names = tiny_imagenet(self.write(tmp_path))
        assert x.shape == (100, 32, 32, 3)
        assert names == ["goldfish", "newt"]
        assert y[:4].tolist() == [0, 1, 0, 1]
        assert [int(image.mean()) for image in x[:2]] == [40, 200]
        found = load("tiny_imagenet32", tmp_path)
        assert (len(found), len(found.test)) == (80, 20)

    def test_a_missing_image_is_named(self, tmp_path: Path) -> None:
        self.write(tmp_path, lost="n02_7.")
        with pytest.raises(DataError, match=r"tiny-imagenet-200\.zip is damaged or incomplete .*n02_7\.JPEG"):
            load("tiny_imagenet32", tmp_path)
