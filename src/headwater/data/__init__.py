"""The data sets there are. Listing them imports no torch."""

from __future__ import annotations

from pathlib import Path

from headwater.registry import Entry, Registry

PATHS = ("headwater.data.files:npz", "headwater.data.tables:table", "headwater.data.folders:folder")
TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")

DATASETS = Registry(
    "data set",
    {
        "digits": Entry("headwater.data.vision:digits", "1 797 handwritten digits, 8 x 8 grey, 10 classes; embedded"),
        "mnist": Entry("headwater.data.vision:mnist", "70 000 handwritten digits, 28 x 28 grey, 10 classes"),
        "fashion_mnist": Entry("headwater.data.vision:fashion_mnist", "70 000 garments, 28 x 28 grey, 10 classes"),
        "emnist_letters": Entry(
            "headwater.data.vision:emnist_letters", "145 600 handwritten letters, 28 x 28 grey, 26 classes"
        ),
        "cifar10": Entry("headwater.data.vision:cifar10", "60 000 photographs, 32 x 32 colour, 10 classes"),
        "cifar100": Entry(
            "headwater.data.vision:cifar100", "60 000 photographs, 32 x 32 colour, 100 classes or 20 (coarse)"
        ),
        "svhn": Entry("headwater.data.vision:svhn", "99 289 house numbers, 32 x 32 colour, 10 classes (extra)"),
        "svhn_extra": Entry(
            "headwater.data.vision:svhn_extra", "531 131 easier house numbers; a reference set for svhn"
        ),
        "stl10": Entry("headwater.data.vision:stl10", "13 000 photographs brought to 32 x 32 colour, 10 classes"),
        "stl10_unlabelled": Entry(
            "headwater.data.vision:stl10_unlabelled", "100 000 photographs without labels; a reference set only"
        ),
        "tiny_imagenet32": Entry(
            "headwater.data.vision:tiny_imagenet32",
            "10 000 photographs, 32 x 32 colour, 200 classes; a reference set for cifar10",
        ),
        "imagenet32": Entry(
            "headwater.data.vision:imagenet32", "1 331 167 photographs, 32 x 32 colour, 1000 classes (batches)"
        ),
        "ag_news": Entry("headwater.data.text:ag_news", "news in a few lines, 4 classes (vocabulary, words, length)"),
        "sst2": Entry(
            "headwater.data.text:sst2", "sentences about films, liked or not (part, vocabulary, words, length)"
        ),
        "iscx_vpn2016": Entry(
            "headwater.data.traffic:iscx_vpn2016", "18 758 traffic flows, 23 features, 14 classes (classes, cap)"
        ),
        "unicauca75": Entry("headwater.data.traffic:unicauca75", "traffic flows by application, 75 classes (cap)"),
        "unicauca141": Entry("headwater.data.traffic:unicauca141", "traffic flows by web service, 141 classes (cap)"),
        "nsl_kdd": Entry(
            "headwater.data.traffic:nsl_kdd", "connections, 41 features, 5 kinds of attack or none (classes)"
        ),
        "toy2d": Entry("headwater.data.toy:toy2d", "2 400 points of the plane, 3 classes, drawn by itself; embedded"),
    },
    extendable=True,
)
UNLABELLED = ("stl10_unlabelled",)  # sets that can be a reference, but not what clients hold


def kind_of_path(name: str) -> str | None:
    """What reads a path of the user's own, as "package.module:function"; none for anything but a path."""
    if name in DATASETS:
        return None
    npz, table, folder = PATHS
    if name.lower().endswith(".npz"):
        return npz
    if name.lower().endswith(TABLES):
        return table
    return folder if Path(name).expanduser().is_dir() else None


def columns(name: str) -> tuple[str, ...]:
    """Which of the keys label, client and sector say something about this data."""
    target = kind_of_path(name)
    return () if target in (None, PATHS[0]) else ("label", "client", "sector")
