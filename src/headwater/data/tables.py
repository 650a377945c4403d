"""Tables of one's own: a label column, features in the others, and perhaps a client and a sector column.

Numbers are standardised and words become one column each. Both need something of every client's rows (sums, and which
words there are), which is found by an exchange before the first round.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headwater.data.base import Data
from headwater.data.encoding import Columns, Encoded
from headwater.data.files import held_for_tests
from headwater.data.parsing import parse
from headwater.data.store import Array
from headwater.data.words import Length, Vocabulary, Words, encode
from headwater.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from pandas import DataFrame, Series

TEST_WORDS = {
    "test": True,
    "train": False,
    "true": True,
    "false": False,
    "1": True,
    "0": False,
    "yes": True,
    "no": False,
}


def table(
    path: Path,
    *,
    label: str = "label",
    client: str = "",
    sector: str = "",
    test: str = "",
    columns: tuple[str, ...] = (),
    drop: tuple[str, ...] = (),
    text: str = "",
    vocabulary: Vocabulary = "hashed",
    words: Words = 10_000,
    length: Length = 128,
) -> Data:
    """A .csv, .tsv or .parquet file. `test` is a second file or a column that says which rows are for tests; without
    it a fifth of each client's rows is. `columns` are the features, if not all others; `drop` are not features. `text`
    is a column of texts that takes the place of features, and the last three say how its words become numbers."""
    asked = Asked(label, client, sector, test, columns, drop, text, vocabulary, words, length)
    return assemble([Sheet(read(path))], str(path), asked)


@dataclass(frozen=True)
class Asked:
    """What a table's columns are."""

    label: str = "label"
    client: str = ""
    sector: str = ""
    test: str = ""
    columns: Sequence[str] = ()
    drop: Sequence[str] = ()
    text: str = ""
    vocabulary: Vocabulary = "hashed"
    words: int = 10_000
    length: int = 128


@dataclass(frozen=True)
class Sheet:
    """A table, and whose it is where a file or folder says so."""

    frame: DataFrame
    client: str | None = None
    sector: str | None = None


def assemble(sheets: Sequence[Sheet], name: str, asked: Asked) -> Data:
    """One data set from the tables of one or several owners."""
    frame = _together(sheets, name)
    _check_roles(asked, name)
    owner, place = _owners(sheets, frame, asked, name)
    marked = asked.test in frame.columns
    other = None if marked or not asked.test else read(Path(asked.test).expanduser())
    y, names = _classes(_column(frame, asked.label, "label", name), name)
    if other is None:
        held = (
            marked_for_tests(frame[asked.test], asked.test, name) if marked else held_for_tests(owner, len(frame), name)
        )
        parts, y_test = (frame[~held], frame[held]), y[held]
        y, owner, place = y[~held], _part(owner, ~held), _part(place, ~held)
    else:
        parts, y_test = (frame, other), _known(_column(other, asked.label, "test", asked.test), names, asked.test)
    if not len(parts[0]) or not len(parts[1]):
        raise DataError(f"{name} has {len(parts[0])} rows to train on and {len(parts[1])} to test with; both need some")
    where = (name, asked.test if other is not None else name)
    about: dict[str, Any] = {"name": name, "class_names": names, "client": owner, "sector": place}
    if asked.text:
        texts = [
            _column(part, asked.text, "text", at).fillna("").astype(str).tolist()
            for part, at in zip(parts, where, strict=True)
        ]
        x, x_test, preparation = encode(texts[0], texts[1], asked.vocabulary, asked.words, asked.length)
        about |= {"tokens": True, "words": asked.words}
        return Data(x, y, x_test, y_test, preparation=preparation, **about)
    features = _features(frame, asked, marked, name)
    for wanted in features if other is not None else ():
        _column(parts[1], wanted, "test", asked.test)
    kinds = Columns.of(parts[0][features], name)
    x, x_test = (kinds.encode(part[features], at) for part, at in zip(parts, where, strict=True))
    return Data(x, y, x_test, y_test, preparation=Encoded(kinds), **about)


def _owners(sheets: Sequence[Sheet], frame: DataFrame, asked: Asked, name: str) -> tuple[Array | None, Array | None]:
    """Whose each row is and where they are, from columns or from the files' names."""
    if sheets[0].client is not None:
        lengths = [len(sheet.frame) for sheet in sheets]
        owner = np.repeat([str(sheet.client) for sheet in sheets], lengths)
        if any((sheet.sector is None) != (sheets[0].sector is None) for sheet in sheets):
            raise DataError(
                f"{name} has some files in folders and some not; put each client's file in its sector's folder"
            )
        return owner, None if sheets[0].sector is None else np.repeat([str(sheet.sector) for sheet in sheets], lengths)
    named, place = (_owner(frame, key, getattr(asked, key), name) for key in ("client", "sector"))
    if place is not None and named is None:
        raise ConfigError(
            f"data.sector = {asked.sector!r} says where clients are, so data.client must name the column that says who "
            f"they are; {name} has the columns {listed(frame)}"
        )
    return named, place


def _check_roles(asked: Asked, name: str) -> None:
    roles: dict[str, str] = {}
    for key in ("label", "client", "sector", "test", "text"):
        column = getattr(asked, key)
        if column and column in roles:
            raise ConfigError(f"{name}: data.{roles[column]} and data.{key} both name the column {column!r}; name two")
        roles[column] = key


def _part(given: Array | None, at: Array) -> Array | None:
    return None if given is None else given[at]


def read(path: Path, words: Collection[str] = ()) -> DataFrame:
    """A file of the user's own as a table; `words` are columns that hold no numbers, even where they look so."""
    if not path.is_file():
        raise DataError(f"there is no file {path}; check data.name")
    frame = parse(path, words=words)
    if frame.empty:
        raise DataError(f"{path} has no rows")
    first, numbers = frame.columns[0], np.arange(len(frame))
    if first in ("", "Unnamed: 0") and len(frame.columns) > 1 and np.array_equal(frame[first].to_numpy(), numbers):
        frame = frame.drop(columns=first)  # row numbers, which some programs write before the columns
    return frame


def sheets_of(files: Sequence[Path], owners: Sequence[tuple[str, str | None]]) -> list[Sheet]:
    """The tables of several owners. A column that holds numbers in some and words in others holds words in all."""
    frames = [read(file) for file in files]
    kinds: dict[str, set[str]] = {}
    for frame in frames:
        for column in frame.columns:
            if not frame[column].isna().all():
                kinds.setdefault(column, set()).add("number" if frame[column].dtype.kind in "iuf" else "word")
    mixed = {column for column, found in kinds.items() if len(found) > 1}
    if mixed:
        frames = [read(file, mixed) for file in files]
    return [Sheet(frame, *owner) for frame, owner in zip(frames, owners, strict=True)]


def _together(sheets: Sequence[Sheet], name: str) -> DataFrame:
    import pandas as pd

    first = list(sheets[0].frame.columns)
    for sheet in sheets[1:]:
        if set(sheet.frame.columns) != set(first):
            odd = sorted(set(sheet.frame.columns) ^ set(first))
            raise DataError(
                f"{name}: the table of client {sheet.client!r} and that of {sheets[0].client!r} differ in the columns "
                f"{', '.join(odd[:5])}; give all the same columns"
            )
    return (
        sheets[0].frame if len(sheets) == 1 else pd.concat([sheet.frame[first] for sheet in sheets], ignore_index=True)
    )


def _owner(frame: DataFrame, key: str, column: str, name: str) -> Array | None:
    if not column:
        return None
    found = _column(frame, column, key, name)
    if found.isna().any():
        row = int(np.flatnonzero(found.isna())[0]) + 1
        raise DataError(
            f"{name}: row {row} names no {key} (column {column!r} is empty there); fill it in or leave it out"
        )
    return found.to_numpy()


def _column(frame: DataFrame, column: str, key: str, name: str) -> Series[Any]:
    if column not in frame.columns:
        raise ConfigError(
            f"{name} has no column {column!r}{nearest(column, list(frame.columns))} for data.{key}; "
            f"its columns are {listed(frame)}"
        )
    return frame[column]


def _features(frame: DataFrame, asked: Asked, marked: bool, name: str) -> list[str]:
    for key in ("columns", "drop"):
        for column in getattr(asked, key):
            _column(frame, column, key, name)
    away = {asked.label, asked.client, asked.sector, *asked.drop, *((asked.test,) if marked else ())}
    columns = asked.columns
    found = [column for column in (columns or frame.columns) if column not in away]
    if not found:
        raise DataError(f"{name} has no column left for features; its columns are {listed(frame)}")
    return found


def _classes(column: Series[Any], name: str) -> tuple[Array, list[str]]:
    """Labels as numbers, in the order of the classes' names (numbers by size)."""
    words = names_of(column, name)
    found, y = np.unique(words, return_inverse=True)
    if len(found) < 2:
        raise DataError(f"{name}: all rows have the label {str(found[0])!r}; a classifier needs at least two classes")
    if len(found) > len(words) // 2 and len(found) > 20:
        raise DataError(
            f"{name}: column {column.name!r} has {len(found)} different values in {len(words)} rows, which are no "
            "classes; name another with data.label"
        )
    return y.astype(np.int64), [str(one) for one in found]


def names_of(column: Series[Any], name: str) -> Array:
    """Labels as whole numbers or words, which is how they are sorted."""
    if (row := _first(column, column.isna())) is not None:
        raise DataError(f"{name}: row {row} has no label (column {column.name!r}); fill it in or leave the row out")
    values = column.to_numpy()
    if values.dtype.kind not in "iuf":
        return np.array([str(value) for value in values])
    odd = values[~np.isfinite(values) | (values != np.round(values))]
    if len(odd):
        raise DataError(
            f"{name}: the labels in column {column.name!r} are not whole numbers, such as {odd[0]}; Headwater learns "
            "classes, so give one name or number a class"
        )
    return values.astype(np.int64)


def _first(column: Series[Any], where: Series[Any]) -> int | None:
    """The number, from 1 on, of the first row that is marked."""
    at = np.flatnonzero(where.to_numpy())
    return int(column.index[at[0]]) + 1 if len(at) else None


def _known(column: Series[Any], names: Sequence[str], test: str) -> Array:
    numbers = {name: number for number, name in enumerate(names)}
    words = names_of(column, test).astype(str)
    for row, word in enumerate(words.tolist()):
        if word not in numbers:
            raise DataError(f"{test}: row {row + 1} has the label {word!r}, which no training row has")
    return np.array([numbers[word] for word in words.tolist()], dtype=np.int64)


def marked_for_tests(column: Series[Any], test: str, name: str) -> Array:
    if (row := _first(column, column.isna())) is not None:
        raise DataError(f"{name}: row {row} does not say whether it is for tests (column {test!r}); fill it in")
    whole = [str(int(v)) if isinstance(v, float) and v.is_integer() else str(v).strip().lower() for v in column]
    odd = next((word for word in whole if word not in TEST_WORDS), None)
    if odd is not None:
        raise DataError(f"{name}: column {test!r} says {odd!r}; write 'test' or 'train', true or false, 1 or 0")
    return np.array([TEST_WORDS[word] for word in whole], dtype=bool)


def listed(frame: DataFrame) -> str:
    names = [str(column) for column in frame.columns]
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
