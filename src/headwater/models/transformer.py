"""Any transformer that `AutoModel` of the library `transformers` reads, with weights from a folder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headwater.errors import ConfigError
from headwater.models import ModelInfo
from headwater.models.base import Net, Shape, choose, token_length
from headwater.models.pretrained import bare, check_length, library, quiet, read

READOUT = ("mean", "first")


@ModelInfo("transformer", "any AutoModel for token numbers, needs headwater[text] (path, readout)", tokens=True)
def transformer(
    shape: Shape, classes: int, *, path: str = "sentence-transformers/all-MiniLM-L6-v2", readout: str = "mean"
) -> Net:
    """Token numbers (0 is padding) → transformer → states of the tokens, pooled → linear classifier.

    Args:
        shape: (tokens per text,).
        classes: number of logits.
        path: a directory as `save_pretrained` writes it, or a name on the Hugging Face hub. A directory with only
            `config.json` gives a net of that shape with random weights.
        readout: what stands for the text: the "mean" of all states, or the state of the "first" token.
    """
    choose("transformer", "readout", readout, READOUT)
    transformers = library("transformer")
    length = token_length("transformer", shape)
    with quiet(transformers.utils.logging):
        config = read(transformers.AutoConfig.from_pretrained, path, "transformer")
        check_length("transformer", path, length, config)
        width, words = (getattr(config, name, None) for name in ("hidden_size", "vocab_size"))
        if not isinstance(width, int) or not isinstance(words, int) or getattr(config, "is_encoder_decoder", False):
            raise ConfigError(
                f"model.path {path!r} holds a {config.model_type!r}, which does not give a state for each token of a "
                "text; use an encoder such as BERT"
            )
        kind = transformers.AutoModel
        body = kind.from_config(config) if bare(path) else read(kind.from_pretrained, path, "transformer")
    if getattr(body, "pooler", None) is not None:
        body.pooler = None  # a layer behind the states, which are pooled here
    return Net(TextEncoder(body.float(), words, readout), nn.Linear(width, classes))


class TextEncoder(nn.Module):
    """A transformer's states of the tokens that are not padding, pooled.

    Args:
        body: the transformer.
        words: token numbers that it knows.
        readout: "mean" or "first".
    """

    def __init__(self, body: Any, words: int, readout: str) -> None:
        super().__init__()
        self.body, self.words, self._readout = body, words, readout

    def forward(self, x: Tensor) -> Tensor:
        seen = x != 0
        seen[:, 0] |= ~seen.any(dim=1)  # a text without words is read as its first padding
        states: Tensor = self.body(input_ids=x, attention_mask=seen.long()).last_hidden_state
        if self._readout == "first":
            return states[torch.arange(len(x)), seen.long().argmax(dim=1)]
        shares = seen.to(states.dtype) / seen.sum(dim=1, keepdim=True)
        return (states * shares.unsqueeze(2)).sum(dim=1)
