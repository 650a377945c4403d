"""ImageNet at 32 px, from the batches of its authors: pickles or .npz files, in folders or in their archives."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from headwater.data.members import read_file
from headwater.data.official import Batch, Found, batch_of, joined
from headwater.data.pickles import read_pickle
from headwater.data.store import Archive, broken
from headwater.errors import DataError

CLASSES = 1000
BATCHES = 10


def imagenet32(folder: Path, batches: int = BATCHES) -> Found | None:
    """The first so many of the ten training batches, and the validation part for tests."""
    for ending in ("", ".npz"):
        train = _place(folder, "train", f"train_data_batch_1{ending}")
        test = _place(folder, "val", f"val_data{ending}")
        if train is not None and test is not None:
            parts = [train(f"train_data_batch_{number}{ending}") for number in range(1, batches + 1)]
            return [*joined(parts), *test(f"val_data{ending}")], folder
    return None


def class_names(folder: Path) -> list[str]:
    """The names in map_clsloc.txt of the challenge, if it is beside the batches, else numbers from 1 on."""
    path = folder / "map_clsloc.txt"
    if not path.is_file():
        return [str(number) for number in range(1, CLASSES + 1)]
    try:
        rows = [line.split() for line in path.read_text("utf-8").splitlines() if line.strip()]
        words = {int(number) - 1: (word, kind) for kind, number, word in rows}
        if sorted(words) != list(range(CLASSES)):
            raise ValueError(f"it does not number {CLASSES} classes")
    except (OSError, ValueError) as error:
        raise broken(path, error) from error
    often = Counter(word for word, _ in words.values())  # two kinds of crane are among them
    return [word if often[word] == 1 else f"{word} ({kind})" for word, kind in (words[n] for n in range(CLASSES))]


def _place(folder: Path, part: str, first: str) -> Callable[[str], Batch] | None:
    """What reads a batch by its name, from where the first of them was found."""
    packed = f"Imagenet32_{part}{'_npz' if first.endswith('.npz') else ''}"
    for where in (folder, folder / packed):
        if (where / first).is_file():
            return partial(_from_folder, where)
    archive = folder / f"{packed}.zip"
    return partial(_from_zip, archive) if archive.is_file() else None


def _from_folder(folder: Path, name: str) -> Batch:
    return read_file(folder / name, partial(_parse, name))


def _from_zip(path: Path, name: str) -> Batch:
    with Archive(path) as archive:
        member = next((found for found in archive.names("", name) if found.split("/")[-1] == name), name)
        content = io.BytesIO(archive.read(member))
    try:
        return _parse(name, content)
    except DataError:
        raise
    except Exception as error:  # unpickling damaged bytes can raise anything at all
        raise broken(path, f"{name}: {error}") from error


def _parse(name: str, content: IO[bytes]) -> Batch:
    if name.endswith(".npz"):
        with np.load(content, allow_pickle=False) as arrays:
            x, y = batch_of({key: arrays[key] for key in arrays.files if key in ("data", "labels")}, "labels")
    else:
        x, y = batch_of(read_pickle(content.read()), "labels")
    if not 1 <= y.min() <= y.max() <= CLASSES:
        raise ValueError(f"its labels go from {y.min()} to {y.max()} instead of from 1 to {CLASSES}")
    return x, y - 1
