"""Texts as token numbers, with a vocabulary that a federation may share.

`hashed` gives every word a number by its hash: nobody's text is needed to make it, and different words may share one.
`counted` keeps the most frequent words of all clients, who tell how often each of their words occurs before round 1.
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

Vocabulary = Literal["hashed", "counted"]
Words = Annotated[int, Ge(3)]  # numbers there are, with those for padding and for unknown words
Length = Annotated[int, Ge(1)]  # tokens of a text that are used
PADDING, UNKNOWN = 0, 1
FIRST = 2  # the least number that a word of its own can have
_WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


def tokens(text: str) -> list[str]:
    """Words in small letters, and signs by themselves."""
    return _WORD.findall(text.lower().replace("\0", " "))  # that character parts words when they travel


def hashed(texts: Iterable[str], *, words: int, length: int) -> Array:
    """Token numbers (samples, length). The last tokens of a long text are kept, a short one is filled up in front."""
    return _filled(([_number(word, words) for word in tokens(text)[-length:]] for text in texts), length)


@lru_cache(maxsize=1 << 18)
def _number(word: str, words: int) -> int:
    digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
    return FIRST + int.from_bytes(digest, "little") % (words - FIRST)


class Lexicon:
    """All words that occur in a set of texts, which only whoever simulates a whole federation knows."""

    def __init__(self, texts: Iterable[Sequence[str]]) -> None:
        self.words = sorted({word for text in texts for word in text})
        self.numbers = {word: number for number, word in enumerate(self.words, FIRST)}

    def encode(self, texts: Iterable[Sequence[str]], length: int) -> Array:
        return _filled(([self.numbers[word] for word in text[-length:]] for text in texts), length)


class Counted:
    """The `words` most frequent words of all clients get a number, all others share one."""

    name = "word counts"

    def __init__(self, lexicon: Lexicon, words: int) -> None:
        self.lexicon, self.kept = lexicon, words - FIRST

    def measure(self, x: Tensor) -> Arrays:
        found, counts = np.unique(x.numpy(), return_counts=True)
        own = found >= FIRST
        return pack([self.lexicon.words[number - FIRST] for number in found[own]]), counts[own].astype(np.int64)

    def settle(self, told: Sequence[Arrays]) -> Arrays:
        total: Counter[str] = Counter()
        for packed, counts in told:
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
    train: Sequence[str], test: Sequence[str], vocabulary: Vocabulary, words: int, length: int
) -> tuple[Array, Array, Preparation | None]:
    """Both parts as numbers, and the exchange that is still to come, if the vocabulary needs one."""
    if vocabulary == "hashed":
        made = [hashed(texts, words=words, length=length) for texts in (train, test)]
        return made[0], made[1], None
    parts = [[tokens(text) for text in texts] for texts in (train, test)]
    lexicon = Lexicon([*parts[0], *parts[1]])
    return lexicon.encode(parts[0], length), lexicon.encode(parts[1], length), Counted(lexicon, words)


def _filled(rows: Iterable[Sequence[int]], length: int) -> Array:
    listed = list(rows)
    made = np.full((len(listed), length), PADDING, dtype=np.int64)
    for at, row in enumerate(listed):
        if row:
            made[at, -len(row) :] = row
    return made
