"""A client's own file in a deployed federation, encoded as the federation's data was.

Columns, words and classes are matched by name, so that a number means the same at every client. The statistics over all
clients were exchanged before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headwater.data.arrays import as_float
from headwater.data.base import Examples
from headwater.data.files import Array
from headwater.data.folders import IMAGES, common, files_below, image_bytes, survey
from headwater.data.preparation import Arrays, unpack
from headwater.data.table_columns import Columns, Encoded, listed, parse
from headwater.data.tables import marked_for_tests, names_of
from headwater.data.text import Counted, Lexicon, hashed, tokens
from headwater.data.tokenizer import tokenized
from headwater.errors import DataError, nearest

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Say = Callable[[str], None]
ANEW = "have `headwater deploy init` run on data that has it"


class ClientTable:
    """A client's table, read twice: as pandas does, and with the columns of words as they are written.

    The second reading is for a client whose words all look like numbers.

    Args:
        name: of the table, for messages.
        natural: the table as pandas reads it.
        written: the same with words as they are written.
        reader: who reads it, for messages.
    """

    def __init__(self, name: str, natural: DataFrame, written: DataFrame, reader: str = "this federation") -> None:
        if natural.empty:
            raise DataError(f"{name} has no rows; name a file that has some")
        self.reader = reader
        # Messages name rows by number.
        self.name, self.natural, self.written = name, natural.reset_index(drop=True), written.reset_index(drop=True)

    @staticmethod
    def read(path: Path, words: Collection[str], reader: str = "this federation") -> ClientTable:
        """The table of a file; `words` are the federation's columns of words."""
        natural = parse(path)
        found = [column for column in words if column in natural.columns]
        return ClientTable(str(path), natural, parse(path, words=found) if found else natural, reader)

    @staticmethod
    def of(frame: DataFrame, words: Collection[str], reader: str) -> ClientTable:
        """A table in memory; `words` are the federation's columns of words."""
        frame = frame.set_axis([str(column).strip() for column in frame.columns], axis=1)
        written = frame.astype({column: str for column in words if column in frame.columns})
        return ClientTable("the table", frame, written.where(frame.notna()), reader)

    def need(self, column: str, what: str, hint: str = "") -> None:
        """Refuse a table without this column.

        Args:
            column: its name.
            what: what the column is for.
            hint: a remark on how to add it.
        """
        if column not in self.natural.columns:
            raise DataError(
                f"{self.name} has no column {column!r}, {what} in {self.reader}; add it{hint}, or rename one of "
                f"{listed(self.natural)}{nearest(column, list(self.natural.columns))}"
            )

    def classes(self, label: str, names: Sequence[str]) -> Tensor:
        """Class numbers of the rows. A label is matched as written or, if that is no class, as pandas reads it.

        Args:
            label: the column of labels.
            names: the federation's class names.
        """
        self.need(label, "which holds the label")
        numbers = {name: number for number, name in enumerate(names)}
        words = [str(word) for word in self.written[label]]
        if self.natural[label].isna().any() or not numbers.keys() >= set(words):
            words = names_of(self.natural[label], self.name).astype(str).tolist()
        for row, word in enumerate(words, 1):
            if word not in numbers:
                raise DataError(
                    f"{self.name}: row {row} has the label {word!r}, which is no class of this federation "
                    f"({some(names)}); correct it, leave such rows out, or {ANEW}{nearest(word, names)}"
                )
        return torch.tensor([numbers[word] for word in words], dtype=torch.int64)

    def texts(self, column: str) -> list[str]:
        """The texts of a column; a missing one is empty."""
        self.need(column, "which holds the texts")
        found: list[str] = self.written[column].fillna("").astype(str).tolist()
        return found

    def none_for_tests(self, column: str) -> None:
        """Refuse a table with rows that are marked for tests."""
        natural = self.natural
        marks = marked_for_tests(natural[column], column, self.name) if column in natural.columns else np.zeros(0)
        if marks.any():
            raise DataError(
                f"{self.name}: row {int(np.flatnonzero(marks)[0]) + 1} is for tests (column {column!r}), and a client "
                "trains on all rows of its file; leave these out of it"
            )

    def features(self, columns: Sequence[str], words: Mapping[str, tuple[str, ...]], say: Say) -> tuple[Columns, Array]:
        """The feature columns and their encoded values.

        Args:
            columns: names of the federation's features.
            words: the words that the federation knows, by column of words.
            say: called with a sentence about words that it does not know.
        """
        import pandas as pd

        encodable = {}
        for column in columns:
            self.need(column, "which is learnt from", " (left empty, its values count as missing)")
            encodable[column] = self._words(column, words[column], say) if column in words else self._numbers(column)
        kinds = Columns(tuple(columns), tuple(words.get(column) for column in columns))
        return kinds, kinds.encode(pd.DataFrame(encodable), self.name)

    def _words(self, column: str, known: tuple[str, ...], say: Say) -> Series[Any]:
        rows = self.written[column]
        odd = _unknown(rows, known)
        if odd and not _unknown(self.natural[column], {"True", "False"} & {*known}):
            return self.natural[column]  # true and false are written in several ways
        if odd:
            count = int(rows.astype(str).isin(odd).sum())
            say(
                f"{self.name}: {count} of {len(rows)} rows have words in column {column!r} that {self.reader} does "
                f"not know ({some(odd)}); each counts as none of those it knows ({some(known)}). Where one of these is "
                "meant, write it so"
            )
        return rows

    def _numbers(self, column: str) -> Series[Any]:
        import pandas as pd

        values = self.natural[column]
        if values.dtype.kind in "biuf":
            return values
        present = values.dropna()
        if all(isinstance(value, (bool, np.bool_)) for value in present):
            return values.astype(np.float64)
        times = values.dtype.kind in "mM"
        odd = present if times else present[pd.to_numeric(present, errors="coerce").isna()]
        first = odd.index[0] if len(odd) else present.index[0]
        raise DataError(
            f"{self.name}: row {int(first) + 1} has {str(present[first])!r} in column {column!r}, which holds numbers "
            f"in {self.reader}; correct it, or leave the cell empty, which counts as the mean"
        )


def table(
    path: Path,
    *,
    label: str,
    columns: Sequence[str],
    worded: Sequence[str],
    test: str,
    classes: Sequence[str],
    settled: Arrays,
    say: Say,
) -> Examples:
    """Read a client's table, which has the federation's columns in any order and perhaps others.

    Args:
        path: of the file.
        label: the column of labels.
        columns: the federation's feature columns, in its order.
        worded: those that hold words.
        test: the column that marks rows for tests, if there is one.
        classes: the federation's class names.
        settled: the result of the exchange before round 1.
        say: called with a sentence about words that the federation does not know.
    """
    rows = ClientTable.read(path, [*worded, label])
    rows.none_for_tests(test)
    return Examples(table_inputs(rows, columns, worded, settled, say), rows.classes(label, classes))


def table_inputs(rows: ClientTable, columns: Sequence[str], worded: Sequence[str], settled: Arrays, say: Say) -> Tensor:
    """The rows of a table as the model takes them; see `table`."""
    known = {column: tuple(unpack(packed)) for column, packed in zip(worded, settled[2:], strict=True)}
    kinds, x = rows.features(columns, known, say)
    return Encoded(kinds).apply(torch.from_numpy(x), settled)


def texts(
    path: Path,
    *,
    label: str,
    text: str,
    test: str,
    words: int,
    length: int,
    classes: Sequence[str],
    settled: Arrays,
    tokenizer: str = "",
) -> Examples:
    """Read a client's table with a column of texts. The vocabulary is hashed if `settled` is empty.

    Args:
        path: of the file.
        label: the column of labels.
        text: the column of texts.
        test: the column that marks rows for tests, if there is one.
        words: how many token numbers there are.
        length: tokens per text.
        classes: the federation's class names.
        settled: the result of the exchange before round 1.
        tokenizer: folder of a pretrained model, whose tokens are used instead.
    """
    rows = ClientTable.read(path, [text, label])
    rows.none_for_tests(test)
    return Examples(text_inputs(rows.texts(text), words, length, settled, tokenizer), rows.classes(label, classes))


def text_inputs(written: Sequence[str], words: int, length: int, settled: Arrays, tokenizer: str = "") -> Tensor:
    """Texts as token numbers; see `texts`."""
    if tokenizer:
        return torch.from_numpy(tokenized(written, tokenizer, length))
    if not settled:
        return torch.from_numpy(hashed(written, words=words, length=length))
    parts = [tokens(one) for one in written]
    lexicon = Lexicon(parts)
    x = torch.from_numpy(lexicon.encode(parts, length))
    return Counted(lexicon, words).apply(x, settled)


def images(top: Path, *, classes: Sequence[str], shape: Sequence[int], resize: bool) -> Examples:
    """Read a client's images, which lie as class/file. Grey ones get three channels if the federation's have colour.

    Args:
        top: the folder.
        classes: the federation's class names.
        shape: (channels, height, width) of its images.
        resize: whether images of another size are resized instead of refused.
    """
    files = [file for file in files_below(top) if file.suffix.lower() in IMAGES]
    if not files:
        raise DataError(f"the folder {top} holds no images (.png, .jpg, …); a client's images lie in it as class/file")
    numbers = {name: number for number, name in enumerate(classes)}
    for file in files:
        where = file.relative_to(top).parts[:-1]
        if len(where) != 1:
            raise DataError(f"{file} does not lie as a client's images must: class/file below {top}")
        if where[0] not in numbers:
            raise DataError(
                f"{file} lies in {where[0]}/, which is no class of this federation ({some(classes)}); rename that "
                f"folder, move it out of {top}, or {ANEW}{nearest(where[0], classes)}"
            )
    x = image_inputs(files, shape, resize, str(top))
    y = torch.tensor([numbers[file.parent.name] for file in files], dtype=torch.int64)
    return Examples(x, y)


def image_inputs(files: Sequence[Path], shape: Sequence[int], resize: bool, where: str) -> Tensor:
    """Image files as the model takes them; `where` names them in messages. See `images`."""
    channels, height, width = shape
    sizes, coloured = survey(files)
    if channels == 1 and coloured is not None:
        raise DataError(f"{coloured} is in colour, and this federation learns from grey images; turn all into grey")
    if not resize and common(sizes) != (width, height):
        wide, high = common(sizes)
        raise DataError(
            f"the images below {where} are of {wide} x {high} px, and this federation learns from {width} x {height} "
            f"px; bring them to that size, or have `headwater deploy init` run with data.pixels"
        )
    x = np.ascontiguousarray(image_bytes(files, (width, height), grey=channels == 1).transpose(0, 3, 1, 2))
    return as_float(torch.from_numpy(x))


def some(names: Collection[str]) -> str:
    """The first 8 names, for messages."""
    shown = [*names][:8]
    return ", ".join(repr(name) for name in shown) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _unknown(rows: Series[Any], known: Collection[str]) -> list[str]:
    """The words of a column that are not among the known ones, sorted."""
    return sorted({str(word).replace("\0", " ") for word in rows.dropna()} - {"", *known})
