"""Columns of tables: reading them from files, and encoding them as numbers.

Clients exchange sums by column, and the words that occur, before the first round to agree on the encoding.
"""

from __future__ import annotations

import csv
import gzip
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headwater.data.files import reading
from headwater.data.preparation import Array, Arrays, Standardise, pack, unpack
from headwater.errors import DataError, MissingExtra

if TYPE_CHECKING:
    from pandas import DataFrame, Series


ENDS, LONGEST = 20, 60  # columns at either end that a message names, and characters of each
FEW_WORDS = 20  # a column of no more different words is never warned about
MOST_WORDS = 200  # different words of one column that are encoded as columns of 0 and 1


@dataclass(frozen=True)
class Columns:
    """The feature columns of a table.

    Args:
        names: by column.
        words: by column, the different words of a column of words, or None for a column of numbers. Words are stored
            by number until the clients have agreed on the words that occur.
    """

    names: tuple[str, ...]
    words: tuple[tuple[str, ...] | None, ...]

    @classmethod
    def of(cls, frame: DataFrame, name: str) -> Columns:
        """The columns of a table; `name` is that of the data, for messages."""
        return cls(tuple(frame.columns), tuple(_words(frame[column], name) for column in frame.columns))

    def encode(self, frame: DataFrame, name: str) -> Array:
        """One row per sample, in float64 so that large numbers keep their digits; NaN for a missing value.

        Args:
            frame: the table.
            name: of the data, for messages.
        """
        encoded = [
            _numbers(frame[column], name) if words is None else _codes(frame[column], words)
            for column, words in zip(self.names, self.words, strict=True)
        ]
        return np.stack(encoded, axis=1)

    @property
    def numeric(self) -> tuple[int, ...]:
        """Positions of the columns of numbers."""
        return tuple(at for at, words in enumerate(self.words) if words is None)

    @property
    def worded(self) -> tuple[int, ...]:
        """Positions of the columns of words."""
        return tuple(at for at, words in enumerate(self.words) if words is not None)


class Encoded:
    """Preparation of a table: numbers with mean 0 and deviation 1, and one column of 0 and 1 per word of some client.

    A word of no client, and a missing word, is 0 in all of these columns.
    """

    name = "columns"

    def __init__(self, columns: Columns) -> None:
        self.columns, self._scale = columns, Standardise()

    def measure(self, x: Tensor) -> Arrays:
        return (*self._scale.measure(self._numeric(x)), *(self._have(x, at) for at in self.columns.worded))

    def settle(self, reports: Sequence[Arrays]) -> Arrays:
        scale = self._scale.settle([part[:3] for part in reports])
        vocabularies = []
        for at in range(3, 3 + len(self.columns.worded)):
            words = {word for part in reports for word in unpack(part[at])}
            vocabularies.append(pack(sorted(words)))
        return (*scale, *vocabularies)

    def apply(self, x: Tensor, settled: Arrays) -> Tensor:
        parts = [self._scale.apply(self._numeric(x), settled[:2])]
        for at, packed in zip(self.columns.worded, settled[2:], strict=True):
            known = self.columns.words[at] or ()
            codes = np.rint(np.nan_to_num(x[:, at].numpy().astype(np.float64), nan=-1)).astype(np.int64)
            places = [known.index(word) if word in known else -2 for word in unpack(packed)]
            parts.append(torch.from_numpy((codes[:, None] == np.array(places, dtype=np.int64)).astype(np.float32)))
        return torch.cat(parts, dim=1)

    def cautions(self, rows: int) -> tuple[str, ...]:
        """What there is to say of the columns before a run begins.

        Args:
            rows: of the training set.
        """
        columns = [(self.columns.names[at], len(self.columns.words[at] or ())) for at in self.columns.worded]
        return tuple(
            f"column {name!r} holds {words} different words for {rows} rows to train on, and each becomes a column of "
            "0 and 1; if it names rows, or is a date or text, leave it out with data.drop (data.text learns from texts)"
            for name, words in columns
            if words > max(FEW_WORDS, rows // 2)
        )

    def _numeric(self, x: Tensor) -> Tensor:
        return x[:, list(self.columns.numeric)]

    def _have(self, x: Tensor, at: int) -> Array:
        """The words of a column that occur in a client's rows."""
        codes = x[:, at].numpy()
        words = self.columns.words[at] or ()
        return pack([words[int(code)] for code in np.unique(codes[~np.isnan(codes)])])


def _words(column: Series[Any], name: str) -> tuple[str, ...] | None:
    if column.dtype.kind in "biuf":
        return None
    if column.dtype.kind in "mM":
        raise DataError(
            f"{name}: column {column.name!r} holds times; turn them into numbers, or leave it out with data.drop"
        )
    try:
        present = column.dropna().astype(str).str.replace("\0", " ")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: column {column.name!r} holds bytes that are no text; write texts or numbers, or leave it out "
            "with data.drop"
        ) from error
    different = sorted(set(present) - {""})
    if len(different) > MOST_WORDS:
        import pandas as pd

        odd = present[pd.to_numeric(present, errors="coerce").isna()]
        number = len(odd) < len(present) // 10
        hint = (
            f"most are numbers, but not {odd.iloc[0]!r}; correct these, or leave the column out with data.drop"
            if number
            else "if it names rows, or is a date or text, leave it out with data.drop (data.text learns from texts)"
        )
        raise DataError(
            f"{name}: column {column.name!r} holds {len(different)} different words, more than {MOST_WORDS}; {hint}"
        )
    return tuple(different)


def _numbers(column: Series[Any], name: str) -> Array:
    if column.dtype.kind not in "biuf":
        raise DataError(
            f"{name}: column {column.name!r} holds words, but numbers in the training table; give both alike"
        )
    values = column.to_numpy(dtype=np.float64)
    if np.isinf(values).any():
        row = int(column.index[np.flatnonzero(np.isinf(values))[0]]) + 1
        raise DataError(f"{name}: row {row} is infinite in column {column.name!r}; replace it or leave the row out")
    return values


def _codes(column: Series[Any], words: tuple[str, ...]) -> Array:
    numbers = {word: float(number) for number, word in enumerate(words)}
    rows = zip(column, column.isna(), strict=True)
    return np.array(
        [np.nan if missing else numbers.get(str(v).replace("\0", " "), np.nan) for v, missing in rows],
        dtype=np.float64,
    )


def parse(
    path: Path, columns: Sequence[str] | None = None, *, text: bool = False, words: Collection[str] = ()
) -> DataFrame:
    """Read a .csv, .tsv or .parquet file. Separator, decimal sign and encoding are detected.

    Args:
        path: of the file.
        columns: the names of the columns, if the file has no header.
        text: whether cells are texts, so that none counts as missing.
        words: columns that are read as words, even if they look like numbers.

    Raises:
        DataError: the file is damaged, not in UTF-8, or has two columns of one name.
    """
    import pandas as pd

    with reading(path), warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # rows that are longer than the header
        if path.suffix.lower() == ".parquet":
            try:
                frame = pd.read_parquet(path)
            except ImportError as error:
                raise MissingExtra(f"{path} is a .parquet file, which", "tables") from error
            frame = frame.astype({column: str for column in words if column in frame.columns})
        else:
            frame = pd.read_csv(path, **_as_written(path, columns, text), dtype=dict.fromkeys(words, str))
    frame.columns = pd.Index([str(column).strip() for column in frame.columns])
    return frame


def read(path: Path, words: Collection[str] = ()) -> DataFrame:
    """Read a file as a table, without a first column of row numbers.

    Args:
        path: of the file.
        words: columns that are read as words, even if they look like numbers.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}; check data.name")
    frame = parse(path, words=words)
    if frame.empty:
        raise DataError(f"{path} has no rows")
    first, numbers = frame.columns[0], np.arange(len(frame))
    if first in ("", "Unnamed: 0") and len(frame.columns) > 1 and np.array_equal(frame[first].to_numpy(), numbers):
        frame = frame.drop(columns=first)  # row numbers, which some programs write as the first column
    return frame


def parse_in_pieces(path: Path, rows: int = 200_000) -> Iterator[DataFrame]:
    """Read a .csv file in pieces of `rows` rows, for files that do not fit into memory.

    Args:
        path: of the file.
        rows: of one piece.
    """
    import pandas as pd

    with reading(path), pd.read_csv(path, **_as_written(path, None, text=False), chunksize=rows) as pieces:
        for piece in pieces:
            piece.columns = pd.Index([str(column).strip() for column in piece.columns])
            yield piece


def _as_written(path: Path, columns: Sequence[str] | None, text: bool) -> dict[str, Any]:
    """Arguments for pandas: found by the name, the first line and, for the decimal sign, the second line."""
    first, second = _first_lines(path)
    tabs = ".tsv" in path.name.lower()
    sep = "\t" if tabs else max(",;\t", key=first.count)
    how: dict[str, Any] = {"sep": sep, "skipinitialspace": True, "index_col": False, "encoding": "utf-8-sig"}
    if tabs and text:
        how["quoting"] = csv.QUOTE_NONE  # a quotation mark in a text is a sign like any other
    if sep == ";" and re.search(r"\d,\d", second) and not re.search(r"\d\.\d", second):
        how["decimal"] = ","
    if columns is not None:
        return how | {"header": None, "names": list(columns)} | ({"keep_default_na": False} if text else {})
    header = [name.strip() for name in next(csv.reader([first], delimiter=sep), [])]
    if twice := next((name for name in header if name and header.count(name) > 1), None):
        raise DataError(f"{path} has two columns called {twice!r}; name them apart")
    return how | ({"keep_default_na": False} if text else {})


def _first_lines(path: Path) -> tuple[str, str]:
    with reading(path), gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as file:
        lines = [file.readline(1 << 20) for _ in range(2)]
    try:
        return lines[0].decode("utf-8-sig"), lines[1].decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not written in UTF-8; save it in UTF-8") from None


def listed(frame: DataFrame) -> str:
    """The names of the columns, for messages; of very many the first and the last, where labels usually are."""
    # A file with a broken first line may have all of its text in one name.
    names = [" ".join(str(column).split())[:LONGEST] for column in frame.columns]
    if len(names) <= 2 * ENDS:
        return ", ".join(names)
    return f"{', '.join(names[:ENDS])}, … {len(names) - 2 * ENDS} more …, {', '.join(names[-ENDS:])}"
