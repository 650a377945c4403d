"""Networks by name: one file per network, found by scanning for `ModelInfo`. Listing them imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.registry import Info, Registry


@dataclass(frozen=True)
class ModelInfo(Info):
    """Describes a builder: a function of input shape, number of classes and keyword-only options that returns a `Net`.

    Args:
        name: the name of the network.
        summary: one line for `headwater list models`.
        tokens: whether inputs are token numbers instead of values.
    """

    tokens: bool = False


MODELS = Registry("model", "headwater.models", info=ModelInfo)


def auto(shape: tuple[int, ...], classes: int, tokens: bool = False) -> str:
    """The listed network for `model.name = "auto"`.

    Token numbers get the mean of word embeddings, which learns from few texts and in seconds where a recurrent net
    takes minutes; flat features get a perceptron. Images get a net with batch norm, for which
    distillation gains most: colour images from 32 px on the residual net of the papers, smaller ones the small CNN.

    Args:
        shape: of one input.
        classes: not used.
        tokens: whether inputs are token numbers.
    """
    if tokens:
        return "bag_of_words"
    if len(shape) != 3:
        return "mlp"
    channels, height, width = shape
    if min(height, width) < 4:
        return "mlp"
    return "resnet8" if channels >= 3 and min(height, width) >= 32 else "cnn"
