"""The data sets there are. Listing them imports no torch."""

from __future__ import annotations

from headwater.registry import Entry, Registry

DATASETS = Registry(
    "data set",
    {
        "digits": Entry("headwater.data.vision:digits", "1 797 handwritten digits, 8 x 8 grey, 10 classes; embedded"),
        "fashion_mnist": Entry("headwater.data.vision:fashion_mnist", "70 000 garments, 28 x 28 grey, 10 classes"),
        "cifar10": Entry("headwater.data.vision:cifar10", "60 000 photographs, 32 x 32 colour, 10 classes"),
        "tiny_imagenet32": Entry(
            "headwater.data.vision:tiny_imagenet32",
            "10 000 photographs, 32 x 32 colour, 200 classes; a reference set for cifar10",
        ),
    },
    extendable=True,
)
