"""The recurrent network of FedHEAD for texts: bidirectional LSTM layers, maximum over time, dense layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headwater.errors import ConfigError
from headwater.models import ModelInfo
from headwater.models.base import Net, Shape, at_least_one, choose, token_length, widths_of


@ModelInfo("bilstm", "recurrent net for token numbers (words, embedding, widths, hidden, activation)", tokens=True)
def bilstm(
    shape: Shape,
    classes: int,
    *,
    words: int = 10_000,
    embedding: int = 32,
    widths: Sequence[int] = (128, 64),
    hidden: Sequence[int] = (1024, 512, 256, 128, 64),
    activation: str = "relu",
) -> Net:
    """Token numbers (0 is padding) → embedding → bidirectional LSTM layers → maximum over the text → dense layers.

    Args:
        shape: (tokens per text,).
        classes: number of logits.
        words: how many token numbers there are.
        embedding: width of the embedding.
        widths: units per direction, by LSTM layer.
        hidden: widths of the dense layers.
        activation: "relu" after the dense layers, as in the paper, or "linear", as in the authors' code.
    """
    token_length("bilstm", shape)
    choose("bilstm", "activation", activation, ("relu", "linear"))
    at_least_one("bilstm", words=words, embedding=embedding)
    sizes = widths_of("bilstm", "widths", widths)
    if not sizes:
        raise ConfigError("bilstm needs at least one width of a recurrent layer, got an empty list")
    reader = BiLstmEncoder(words, embedding, sizes)
    layers: list[nn.Module] = [reader]
    before = 2 * sizes[-1]
    for size in widths_of("bilstm", "hidden", hidden):
        layers += [nn.Linear(before, size), *([nn.ReLU()] if activation == "relu" else [])]
        before = size
    net = Net(nn.Sequential(*layers), nn.Linear(before, classes))
    _draw(net)
    return net


class BiLstmEncoder(nn.Module):
    """A text as one row of features. The embedding of padding is 0 and is not trained."""

    def __init__(self, words: int, embedding: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.words = words
        self.embedding = nn.Embedding(words, embedding, padding_idx=0)
        before = (embedding, *(2 * width for width in widths))
        self.layers = nn.ModuleList(
            nn.LSTM(size, width, batch_first=True, bidirectional=True)
            for size, width in zip(before, widths, strict=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        read: Tensor = self.embedding(x)
        for layer in self.layers:
            read = layer(read)[0]
        return read.amax(dim=1)


@torch.no_grad()
def _draw(net: nn.Module) -> None:
    """Initial weights as in the authors' framework: Glorot, orthogonal recurrent weights, forget-gate bias 1."""
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.Embedding):
            nn.init.uniform_(layer.weight, -0.05, 0.05)
            nn.init.zeros_(layer.weight[0])
        elif isinstance(layer, nn.LSTM):
            for name, weight in layer.named_parameters():
                if name.startswith("weight_ih"):
                    nn.init.xavier_uniform_(weight)
                elif name.startswith("weight_hh"):
                    nn.init.orthogonal_(weight)
                else:
                    nn.init.zeros_(weight)
                if name.startswith("bias_ih"):  # gates: input, forget, cell, output
                    nn.init.ones_(weight[layer.hidden_size : 2 * layer.hidden_size])
