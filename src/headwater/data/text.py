"""Texts as token numbers.

The vocabulary "hashed" numbers words by their hash: it needs no client's text, and different words may share a number.
The vocabulary "counted" has the most frequent words of all clients, which report their word counts before round 1.
A pretrained model has a tokenizer of its own, which replaces the vocabulary.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from headwater.data.preparation import Array, Arrays, Preparation, pack, unpack
from headwater.data.tokenizer import tokenized

Vocabulary = Literal["hashed", "counted"]
Words = Annotated[int, Ge(3)]  # how many token numbers there are, including padding and unknown words
Length = Annotated[int, Ge(1)]  # how many tokens of a text are used
PADDING, UNKNOWN = 0, 1
FIRST = 2  # the smallest number of a word
_WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


def tokens(text: str) -> list[str]:
    """Words in lower case; each punctuation mark is a token."""
    return _WORD.findall(text.lower().replace("\0", " "))  # NUL separates words in `pack`


def hashed(texts: Iterable[str], *, words: int, length: int) -> Array:
    """Token numbers by hash, of shape (samples, length).

    Args:
        texts: one string per sample.
        words: how many token numbers there are.
        length: the last tokens of a longer text are used; a shorter one is padded in front.
    """
    return _filled(([_number(word, words) for word in tokens(text)[-length:]] for text in texts), length)


@lru_cache(maxsize=1 << 18)
def _number(word: str, words: int) -> int:
    digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
    return FIRST + int.from_bytes(digest, "little") % (words - FIRST)


class Lexicon:
    """All words that occur in a set of tokenised texts, numbered. Only a simulation knows them for all clients."""

    def __init__(self, texts: Iterable[Sequence[str]]) -> None:
        self.words = sorted({word for text in texts for word in text})
        self.numbers = {word: number for number, word in enumerate(self.words, FIRST)}

    def encode(self, texts: Iterable[Sequence[str]], length: int) -> Array:
        """Token numbers of shape (samples, length).

        Args:
            texts: tokens by text.
            length: tokens per text.
        """
        return _filled(([self.numbers[word] for word in text[-length:]] for text in texts), length)


class Counted:
    """Preparation of texts: the most frequent words of all clients are numbered, all others share one number."""

    name = "word counts"

    def __init__(self, lexicon: Lexicon, words: int) -> None:
        self.lexicon, self.kept = lexicon, words - FIRST

    def measure(self, x: Tensor) -> Arrays:
        numbers, counts = np.unique(x.numpy(), return_counts=True)
        own = numbers >= FIRST
        return pack([self.lexicon.words[number - FIRST] for number in numbers[own]]), counts[own].astype(np.int64)

    def settle(self, reports: Sequence[Arrays]) -> Arrays:
        total: Counter[str] = Counter()
        for packed, counts in reports:
            for word, count in zip(unpack(packed), counts.tolist(), strict=True):
                total[word] += count
        ranked = sorted(total, key=lambda word: (-total[word], word))
        return (pack(ranked[: self.kept]),)

    def apply(self, x: Tensor, settled: Arrays) -> Tensor:
        table = np.full(FIRST + len(self.lexicon.words), UNKNOWN, dtype=np.int64)
        table[PADDING] = PADDING
        for number, word in enumerate(unpack(settled[0]), FIRST):
            if word in self.lexicon.numbers:
                table[self.lexicon.numbers[word]] = number
        return torch.from_numpy(table[x.numpy()])


def encode(
    train: Sequence[str], test: Sequence[str], vocabulary: Vocabulary, words: int, length: int, tokenizer: str = ""
) -> tuple[Array, Array, Preparation | None]:
    """Encode the texts of the training and the test part.

    Args:
        train: training texts.
        test: test texts.
        vocabulary: "hashed" or "counted".
        words: how many token numbers there are.
        length: tokens per text.
        tokenizer: folder of a pretrained model, whose tokens replace `vocabulary` and `words`; empty for none.

    Returns:
        Token numbers of both parts, and the preparation that a "counted" vocabulary needs.
    """
    if tokenizer:
        return tokenized(train, tokenizer, length), tokenized(test, tokenizer, length), None
    if vocabulary == "hashed":
        encoded = [hashed(texts, words=words, length=length) for texts in (train, test)]
        return encoded[0], encoded[1], None
    parts = [[tokens(text) for text in texts] for texts in (train, test)]
    lexicon = Lexicon([*parts[0], *parts[1]])
    return lexicon.encode(parts[0], length), lexicon.encode(parts[1], length), Counted(lexicon, words)


def _filled(rows: Iterable[Sequence[int]], length: int) -> Array:
    listed = list(rows)
    filled = np.full((len(listed), length), PADDING, dtype=np.int64)
    for at, row in enumerate(listed):
        if row:
            filled[at, -len(row) :] = row
    return filled
