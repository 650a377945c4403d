"""Image sets in the form in which their authors publish them."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headwater.data.store import Archive, Array, broken

Read = Callable[[str], bytes]  # a member's name to its content


def idx_images(folder: Path) -> list[Array] | None:
    """x_train, y_train, x_test, y_test from the four idx files of the MNIST family, packed or not."""
    parts = []
    for stem, magic in (("images-idx3-ubyte", 2051), ("labels-idx1-ubyte", 2049)):
        for part in ("train", "t10k"):
            path = next((p for p in (folder / f"{part}-{stem}.gz", folder / f"{part}-{stem}") if p.is_file()), None)
            if path is None:
                return None
            parts.append(_idx(path, magic))
    return [parts[0], parts[2], parts[1], parts[3]]


def cifar10_batches(folder: Path) -> tuple[list[Array], Path] | None:
    """CIFAR-10's python or binary version, as a folder or as the archive it comes in, and where it was found."""
    for version, batch in (("py", "data_batch_{}"), ("bin", "data_batch_{}.bin")):
        inside = f"cifar-10-batches-{version}"
        archive = folder / ("cifar-10-python.tar.gz" if version == "py" else "cifar-10-binary.tar.gz")
        found = folder / inside
        if found.is_dir():
            read = _from_folder(found)
        elif archive.is_file():
            read, found = _from_tar(archive, inside), archive
        else:
            continue
        parse = _python_batch if version == "py" else _binary_batch
        trains = [parse(read(batch.format(number)), found) for number in range(1, 6)]
        test = parse(read("test_batch" if version == "py" else "test_batch.bin"), found)
        return [np.concatenate([t[0] for t in trains]), np.concatenate([t[1] for t in trains]), *test], found
    return None


def tiny_imagenet(path: Path, each: int = 50) -> tuple[Array, Array, list[str]]:
    """The first images of each of the 200 classes, averaged from 64 to 32 px, classes interleaved; and class names."""
    from PIL import Image, UnidentifiedImageError

    with Archive(path) as archive:
        top = "tiny-imagenet-200"
        words = dict(line.split("\t", 1) for line in archive.text(f"{top}/words.txt").splitlines() if "\t" in line)
        kinds = sorted(archive.text(f"{top}/wnids.txt").split())
        images: list[Array] = []
        for number in range(each):
            for kind in kinds:
                name = f"{top}/train/{kind}/images/{kind}_{number}.JPEG"
                try:
                    with Image.open(io.BytesIO(archive.read(name))) as picture:
                        pixels = np.asarray(picture.convert("RGB"), dtype=np.float32)
                    means = pixels.reshape(32, 2, 32, 2, 3).mean(axis=(1, 3))
                except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
                    raise broken(path, f"{name}: {error}") from error
                images.append(np.round(means).astype(np.uint8))
    return np.stack(images), np.tile(np.arange(len(kinds)), each), [words.get(kind, kind) for kind in kinds]


def _idx(path: Path, magic: int) -> Array:
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise broken(path, error) from error
    axes = magic & 0xFF
    header = np.frombuffer(raw[: 4 + 4 * axes], dtype=">i4") if len(raw) >= 4 + 4 * axes else np.zeros(1)
    if header[0] != magic:
        raise broken(path, "its first bytes are not those of an idx file of this kind")
    shape = tuple(int(size) for size in header[1:])
    if len(raw) != 4 + 4 * axes + int(np.prod(shape)):
        raise broken(path, f"its length does not fit the {shape} values that it announces")
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)


def _from_folder(folder: Path) -> Read:
    def read(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except OSError as error:
            raise broken(folder, f"{name} cannot be read: {error.strerror}") from error

    return read


def _from_tar(path: Path, inside: str) -> Read:
    try:
        with tarfile.open(path) as archive:
            content = {m.name: f.read() for m in archive.getmembers() if (f := archive.extractfile(m)) is not None}
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise broken(path, error) from error

    def read(name: str) -> bytes:
        try:
            return content[f"{inside}/{name}"]
        except KeyError as error:
            raise broken(path, f"it lacks {inside}/{name}") from error

    return read


def _binary_batch(raw: bytes, path: Path) -> tuple[Array, Array]:
    """A label byte, then 1024 red, green and blue values, for each image."""
    if not raw or len(raw) % 3073:
        raise broken(path, "a batch is not a whole number of images long")
    rows = np.frombuffer(raw, dtype=np.uint8).reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _python_batch(raw: bytes, path: Path) -> tuple[Array, Array]:
    try:
        batch = _ArraysOnly(io.BytesIO(raw), encoding="bytes").load()
        x, y = np.asarray(batch[b"data"], dtype=np.uint8), np.asarray(batch[b"labels"])
        x = x.reshape(-1, 3, 32, 32)
    except Exception as error:  # unpickling damaged bytes can raise anything at all
        raise broken(path, f"a batch cannot be read: {error}") from error
    if len(x) != len(y):
        raise broken(path, f"a batch has {len(x)} images but {len(y)} labels")
    return x, y


class _ArraysOnly(pickle.Unpickler):
    """Unpickles arrays and plain values; anything else could run code and is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np.empty(0).__reduce__()[0]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            return lambda text, encoding: text.encode(encoding)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in an image file")
