"""What the authors of the listed data sets publish: addresses, and checksums that tell damaged files."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headwater.data import DATASETS


@dataclass(frozen=True)
class PublishedFile:
    """A published file.

    Args:
        digest: its MD5 (32 digits) or SHA-256 (64 digits).
        size: its length in bytes; 0 if it is not known.
    """

    digest: str
    size: int = 0

    @property
    def kind(self) -> str:
        return "MD5" if len(self.digest) == 32 else "SHA-256"


@dataclass(frozen=True)
class HubLayout:
    """The form that an image set has at the Hugging Face hub.

    Args:
        classes: class names in our order.
        side: width and height of the images in px.
        image: the column of images.
        label: the column of labels.
        coarse: a second column of labels, if there is one.
        coarse_classes: the class names of that column.
        config: the configuration's name at the hub.
        train: the name of the training part.
        test: the name of the test part.
        grey: whether images have one channel.
        shrink: images are averaged over squares of this many px.
    """

    classes: Sequence[str]
    side: int
    image: str = "image"
    label: str = "label"
    coarse: str = ""
    coarse_classes: Sequence[str] = ()
    config: str | None = None
    train: str = "train"
    test: str = "test"
    grey: bool = False
    shrink: int = 1


@dataclass(frozen=True)
class Published:
    """Where a set is published, and the checksums of its files. The module of a set lists it in `PUBLISHED` by name.

    Args:
        source: address of the set.
        get: the files to download; other forms of them may be read as well.
        files: checksums by file name, also of other forms.
        hub: the set's name at the Hugging Face hub, if its content there is the same.
        layout: its form there.
    """

    source: str
    get: tuple[str, ...] = ()
    files: Mapping[str, PublishedFile] = field(default_factory=dict)
    hub: str = ""
    layout: HubLayout | None = None

    def digests(self) -> str:
        """The checksums of the files to download, as a phrase; empty if none is known."""
        known = [f"{name} has {self.files[name].kind} {self.files[name].digest}" for name in self.get]
        return ", ".join(known)


def published(name: str) -> Published:
    """What is published of a listed data set: `PUBLISHED[name]` of the module that defines it, else nothing."""
    if name not in DATASETS:
        return Published("")
    module = importlib.import_module(DATASETS[name].target.partition(":")[0])
    known: Mapping[str, Published] = getattr(module, "PUBLISHED", {})
    return known.get(name, Published(""))


def _official(path: Path) -> PublishedFile | None:
    """The published file of this name, of the set that the nearest enclosing folder is named after."""
    owner = next((folder.name for folder in path.parents if folder.name in DATASETS), "")
    return published(owner).files.get(path.name)


def _digest(path: Path, file: PublishedFile) -> str:
    """The checksum of a file, of the kind that is known of the published one."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "md5" if file.kind == "MD5" else "sha256").hexdigest()


def differs(path: Path) -> str:
    """A phrase with both checksums if a file differs from the published one of its name; else an empty string."""
    file = _official(path)
    try:
        found = _digest(path, file) if file is not None and path.is_file() else ""
    except OSError:
        return ""
    if file is None or not found or found == file.digest:
        return ""
    return f"its {file.kind} is {found}, that of the published file {file.digest}"


def altered(path: Path) -> bool:
    """Whether a file is the published one with wrong bytes: it has the same length and another checksum.

    A file of another length may be one that the user made, such as a part of the set, and is judged by its content.
    """
    file = _official(path)
    return file is not None and bool(file.size) and path.stat().st_size == file.size and bool(differs(path))
