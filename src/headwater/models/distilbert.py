"""DistilBERT from the library `transformers`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headwater.errors import ConfigError
from headwater.models import ModelInfo
from headwater.models.base import Net, Shape, token_length
from headwater.models.pretrained import bare, check_length, library, quiet, read


@ModelInfo("distilbert", "transformer for token numbers, needs headwater[text] (path)", tokens=True)
def distilbert(shape: Shape, classes: int, *, path: str = "distilbert-base-uncased") -> Net:
    """Token numbers (0 is padding) → transformer → state of the first token → ReLU layer and dropout → classifier.

    Args:
        shape: (tokens per text,).
        classes: number of logits.
        path: a directory as `save_pretrained` writes it, or a name on the Hugging Face hub. A directory with only
            `config.json` gives a net of that shape with random weights.
    """
    transformers = library("distilbert")
    length = token_length("distilbert", shape)
    with quiet(transformers.utils.logging):
        config = read(transformers.AutoConfig.from_pretrained, path, "distilbert")
        if config.model_type != "distilbert":
            raise ConfigError(f"model.path {path!r} holds a {config.model_type!r}, not a 'distilbert'; give another")
        check_length("distilbert", path, length, config)
        kind = transformers.DistilBertModel
        body = kind(config) if bare(path) else read(kind.from_pretrained, path, "distilbert")
    features = nn.Sequential(
        DistilBertEncoder(body), nn.Linear(config.dim, config.dim), nn.ReLU(), nn.Dropout(config.seq_classif_dropout)
    )
    return Net(features, nn.Linear(config.dim, classes))


class DistilBertEncoder(nn.Module):
    """The transformer's state of the first token that is not padding, which stands for the whole text."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body
        self.words: int = body.config.vocab_size

    def forward(self, x: Tensor) -> Tensor:
        seen = x != 0
        seen[:, 0] |= ~seen.any(dim=1)  # a text without words is read as its first padding
        states: Tensor = self.body(input_ids=x, attention_mask=seen.long()).last_hidden_state
        return states[torch.arange(len(x)), seen.long().argmax(dim=1)]
