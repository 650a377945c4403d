"""CIFAR-10 and CIFAR-100: 32 x 32 photographs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from headwater.data import DatasetInfo
from headwater.data.base import FOUR, Data
from headwater.data.datasets.images import Batch, Found, batch_of, image_set, joined, read_members, read_pickle
from headwater.data.files import Archive, HubLayout, Parse, Published, PublishedFile

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""
_CIFAR100_COARSE = """
aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices household_furniture
insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores
medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1 vehicles_2
"""
CIFAR100 = tuple(_CIFAR100.split())
CIFAR100_COARSE = tuple(_CIFAR100_COARSE.split())
BATCHES_10 = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]  # the last one is the test part
BATCHES_100 = ["train", "test"]
SOURCE = "https://www.cs.toronto.edu/~kriz/cifar.html"
PUBLISHED = {
    "cifar10": Published(
        SOURCE,
        ("cifar-10-python.tar.gz",),
        {
            "cifar-10-python.tar.gz": PublishedFile("c58f30108f718f92721af3b95e74349a", 170_498_071),
            "cifar-10-binary.tar.gz": PublishedFile("c32a1d4ab5d03f1284b67883e8d87530", 170_052_171),
            "data_batch_1": PublishedFile("c99cafc152244af753f735de768cd75f", 31_035_704),
            "data_batch_2": PublishedFile("d4bba439e000b95fd0a9bffe97cbabec", 31_035_320),
            "data_batch_3": PublishedFile("54ebc095f3ab1f0389bbae665268c751", 31_035_999),
            "data_batch_4": PublishedFile("634d18415352ddfa80567beed471001a", 31_035_696),
            "data_batch_5": PublishedFile("482c414d41f54cd18b22e5b47cb7c3cb", 31_035_623),
            "test_batch": PublishedFile("40351d587109b95175f43aff81a1287e", 31_035_526),
            "cifar10_lossless_webp.zip": PublishedFile(
                "3ca12a975e8326ce77ac4153aa9fbadaaea135f2045564b5b9b80a1aaabf3eed"
            ),
        },
        hub="uoft-cs/cifar10",
        layout=HubLayout(CIFAR10, 32, image="img"),
    ),
    "cifar100": Published(
        SOURCE,
        ("cifar-100-python.tar.gz",),
        {
            "cifar-100-python.tar.gz": PublishedFile("eb9058c3a382ffc7106e4002c42a8d85", 169_001_437),
            "cifar-100-binary.tar.gz": PublishedFile("03b5dce01913d631647c71ecec9e9cb8", 168_513_733),
            "train": PublishedFile("16019d7e3df5f24257cddd939b257f8d", 155_249_918),
            "test": PublishedFile("f0ef6b0ae62326f3e7ffdfab6717acfc", 31_049_977),
        },
        hub="uoft-cs/cifar100",
        layout=HubLayout(
            CIFAR100, 32, image="img", label="fine_label", coarse="coarse_label", coarse_classes=CIFAR100_COARSE
        ),
    ),
}


@DatasetInfo("cifar10", "60 000 photographs, 32 x 32 colour, 10 classes")
def cifar10(data_dir: Path | None = None) -> Data:
    """CIFAR-10, from lossless strips in a zip or from the python or binary version of its authors.

    Args:
        data_dir: the data directory; None for the default one.
    """

    def read(folder: Path) -> Found | None:
        return _read_strips(folder) or _read_cifar(folder, 10, "labels")

    return image_set("cifar10", data_dir, read, CIFAR10)


@DatasetInfo("cifar100", "60 000 photographs, 32 x 32 colour, 100 classes or 20 (coarse)")
def cifar100(data_dir: Path | None = None, *, coarse: bool = False) -> Data:
    """CIFAR-100, from the python or binary version of its authors: 100 classes, or 20 with `coarse`.

    Args:
        data_dir: the data directory; None for the default one.
        coarse: use the 20 coarse classes.
    """
    read = partial(_read_cifar, classes=100, label="coarse_labels" if coarse else "fine_labels")
    keys = ("x_train", "y_coarse_train", "x_test", "y_coarse_test") if coarse else FOUR
    return image_set("cifar100", data_dir, read, CIFAR100_COARSE if coarse else CIFAR100, keys=keys)


def _read_strips(folder: Path) -> Found | None:
    path = folder / "cifar10_lossless_webp.zip"
    if not path.is_file():
        return None
    with Archive(path) as archive:
        train = [archive.strips("train_", 32), archive.array("train_labels.npy")]
        return [*train, archive.strips("test_", 32), archive.array("test_labels.npy")], path


def _read_cifar(folder: Path, classes: int, label: str) -> Found | None:
    """Read the python or binary version, from a folder or the archive. `label` is the labels' name in the former."""
    stems = BATCHES_10 if classes == 10 else BATCHES_100
    before = ["labels"] if classes == 10 else ["coarse_labels", "fine_labels"]  # the bytes before a binary image
    python: Parse[Batch] = partial(_python, label=label)
    binary: Parse[Batch] = partial(_binary, before=before, label=label)
    folders = ("batches-py", "batches-bin") if classes == 10 else ("python", "binary")
    for inside, version, ending, parse in ((folders[0], "python", "", python), (folders[1], "binary", ".bin", binary)):
        names = [f"{stem}{ending}" for stem in stems]
        where = f"cifar-{classes}-{inside}", f"cifar-{classes}-{version}.tar.gz"
        members = read_members(folder, *where, dict.fromkeys(names, parse))
        if members is not None:
            batches, path = members
            return [*joined([batches[name] for name in names[:-1]]), *batches[names[-1]]], path
    return None


def _python(content: IO[bytes], label: str) -> Batch:
    return batch_of(read_pickle(content.read()), label)


def _binary(content: IO[bytes], before: Sequence[str], label: str) -> Batch:
    """For each image its label or labels, a byte each, then 1024 red, green and blue values."""
    raw = content.read()
    width = len(before) + 3072
    if not raw or len(raw) % width:
        raise ValueError("it is not a whole number of images long")
    rows = np.frombuffer(raw, dtype=np.uint8).reshape(-1, width)
    return rows[:, len(before) :].reshape(-1, 3, 32, 32), rows[:, before.index(label)]
