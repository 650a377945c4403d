"""The models there are. Listing them imports no torch."""

from __future__ import annotations

from headwater.registry import Entry, Registry

MODELS = Registry(
    "model",
    {
        "linear": Entry("headwater.models.tabular:linear", "softmax regression on the flattened input"),
        "mlp": Entry("headwater.models.tabular:mlp", "perceptron with ReLU layers (hidden)"),
        "cnn": Entry(
            "headwater.models.cnn:cnn", "small convolutional net for 8 to 32 px (widths, hidden, norm, groups)"
        ),
        "resnet8": Entry("headwater.models.resnet:resnet8", "residual net of 8 layers (shortcut, norm, groups)"),
        "vgg9": Entry("headwater.models.vgg:vgg9", "net of 9 layers without normalisation, for 8 px and more"),
    },
    extendable=True,
)


def auto(shape: tuple[int, ...], classes: int) -> str:
    """The listed model that suits inputs of this shape.

    Flat features get a perceptron. Images get a net with batch norm, where distillation has most to give:
    colour from 32 px on the residual net of the papers, anything smaller the small convolutional one.
    """
    if len(shape) != 3:
        return "mlp"
    channels, height, width = shape
    if min(height, width) < 4:
        return "mlp"
    return "resnet8" if channels >= 3 and min(height, width) >= 32 else "cnn"
