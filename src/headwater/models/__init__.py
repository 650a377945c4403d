"""The models there are. Listing them imports no torch."""

from __future__ import annotations

from headwater.registry import Entry, Registry

_RESIDUAL = "(shortcut, norm, groups, width)"
MODELS = Registry(
    "model",
    {
        "linear": Entry("headwater.models.tabular:linear", "softmax regression on the flattened input"),
        "mlp": Entry("headwater.models.tabular:mlp", "perceptron with ReLU layers (hidden)"),
        "cnn": Entry(
            "headwater.models.cnn:cnn", "small convolutional net for 8 to 32 px (widths, hidden, norm, groups)"
        ),
        "resnet8": Entry("headwater.models.resnet:resnet8", f"residual net of 8 layers {_RESIDUAL}"),
        "resnet20": Entry("headwater.models.resnet:resnet20", f"residual net of 20 layers {_RESIDUAL}"),
        "resnet32": Entry("headwater.models.resnet:resnet32", f"residual net of 32 layers {_RESIDUAL}"),
        "resnet56": Entry("headwater.models.resnet:resnet56", f"residual net of 56 layers {_RESIDUAL}"),
        "wrn16_2": Entry("headwater.models.wrn:wrn16_2", "wide residual net of 16 layers (norm, groups)"),
        "resnet18": Entry(
            "headwater.models.resnet18:resnet18", "residual net of 11 million numbers (stem, features, norm, groups)"
        ),
        "shufflenetv2": Entry(
            "headwater.models.shufflenet:shufflenetv2", "net with few multiplications, width 1.0 (stem, features)"
        ),
        "vgg9": Entry("headwater.models.vgg:vgg9", "net of 9 layers without normalisation, for 8 px and more"),
        "mtgc_cnn": Entry("headwater.models.cnn:mtgc_cnn", "two 5 x 5 convolutions and two ReLU layers, as in MTGC"),
        "bilstm": Entry(
            "headwater.models.bilstm:bilstm",
            "recurrent net for token numbers (words, embedding, widths, hidden, activation)",
        ),
        "distilbert": Entry(
            "headwater.models.distilbert:distilbert", "transformer for token numbers, needs headwater[text] (path)"
        ),
    },
    extendable=True,
)
TOKENS = ("bilstm", "distilbert")  # these take token numbers, all others values


def auto(shape: tuple[int, ...], classes: int, tokens: bool = False) -> str:
    """The listed model that suits inputs of this shape.

    Token numbers get the recurrent net, flat features a perceptron. Images get a net with batch norm, where
    distillation has most to give: colour from 32 px on the residual net of the papers, anything smaller the small
    convolutional one.
    """
    if tokens:
        return "bilstm"
    if len(shape) != 3:
        return "mlp"
    channels, height, width = shape
    if min(height, width) < 4:
        return "mlp"
    return "resnet8" if channels >= 3 and min(height, width) >= 32 else "cnn"
