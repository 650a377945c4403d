"""Texts as the token numbers of a pretrained model, by its own tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from headwater.data.preparation import Array
from headwater.errors import DataError, MissingExtra, said

FILE = "tokenizer.json"
PADS = ("[PAD]", "<pad>", "<|endoftext|>")  # names of the padding where a file does not say it


def tokenized(texts: Sequence[str], path: str, length: int) -> Array:
    """Token numbers of shape (samples, length): the first tokens of a text, padded with 0 behind.

    Args:
        texts: one string per sample.
        path: a directory with tokenizer.json, or that file.
        length: tokens per text, with those that mark beginning and end.

    Raises:
        DataError: there is no such file, or its padding is not 0.
    """
    found = _tokenizer(path)
    found.enable_truncation(length)
    found.enable_padding(pad_id=0, length=length)
    rows = [encoding.ids for encoding in found.encode_batch(list(texts))]
    return np.asarray(rows, dtype=np.int64).reshape(len(texts), length)


def token_count(path: str) -> int:
    """How many token numbers a tokenizer has.

    Args:
        path: as for `tokenized`.
    """
    return int(_tokenizer(path).get_vocab_size())


@lru_cache(maxsize=4)
def _tokenizer(path: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtra("data.tokenizer", "text") from error
    file = Path(path).expanduser()
    file = file / FILE if file.is_dir() else file
    if not file.is_file():
        raise DataError(f"data.tokenizer: there is no {file}; give the folder of a model that has {FILE}")
    try:
        found = Tokenizer.from_file(str(file))
    except Exception as error:  # the library has a single kind of error
        raise DataError(f"data.tokenizer: {file} cannot be read ({said(error)})") from error
    pads = [number for name in PADS if (number := found.token_to_id(name)) is not None]
    padding = found.padding["pad_id"] if found.padding else next(iter(pads), 0)
    if padding != 0:
        raise DataError(
            f"data.tokenizer: {file} pads texts with token {padding}, and models here take 0 for padding; use a "
            "tokenizer such as BERT's"
        )
    return found
