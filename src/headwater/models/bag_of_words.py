"""A small network for texts that ignores the order of words: the mean of word embeddings, then dense layers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from headwater.models import ModelInfo
from headwater.models.base import Net, Shape, at_least_one, token_length, widths_of


@ModelInfo("bag_of_words", "mean of word embeddings, for token numbers (words, embedding, hidden)", tokens=True)
def bag_of_words(
    shape: Shape, classes: int, *, words: int = 10_000, embedding: int = 64, hidden: Sequence[int] = (64,)
) -> Net:
    """Token numbers (0 is padding) → mean of their embeddings → layer norm → ReLU layers → linear classifier.

    Args:
        shape: (tokens per text,).
        classes: number of logits.
        words: how many token numbers there are.
        embedding: width of the embedding.
        hidden: widths of the ReLU layers.
    """
    token_length("bag_of_words", shape)
    at_least_one("bag_of_words", words=words, embedding=embedding)
    # A mean of small embeddings is small. Normalised, it trains as fast as the inputs of other networks do.
    layers: list[nn.Module] = [MeanEmbedding(words, embedding), nn.LayerNorm(embedding)]
    before = embedding
    for width in widths_of("bag_of_words", "hidden", hidden):
        layers += [nn.Linear(before, width), nn.ReLU()]
        before = width
    return Net(nn.Sequential(*layers), nn.Linear(before, classes))


class MeanEmbedding(nn.Module):
    """A text as the mean of its words' embeddings, without padding; zeros for a text that is all padding."""

    def __init__(self, words: int, embedding: int) -> None:
        super().__init__()
        self.words = words
        self.embedding = nn.EmbeddingBag(words, embedding, mode="mean", padding_idx=0)
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)

    def forward(self, x: Tensor) -> Tensor:
        mean: Tensor = self.embedding(x)
        return mean
