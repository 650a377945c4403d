"""Tables of the user's own: a label column, feature columns, and perhaps a client and a sector column.

Numbers are standardised, and words are encoded as one column each. Both need statistics of all clients' rows, which are
exchanged before the first round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headwater.data.base import Array, Data, held_for_tests
from headwater.data.table_columns import Columns, Encoded, listed, read
from headwater.data.text import Length, Vocabulary, Words, encode
from headwater.data.tokenizer import token_count
from headwater.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from pandas import DataFrame, Series

TEST_WORDS = dict.fromkeys(("test", "true", "1", "yes"), True) | dict.fromkeys(("train", "false", "0", "no"), False)


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
    tokenizer: str = "",
) -> Data:
    """Read a .csv, .tsv or .parquet file.

    Args:
        path: of the file.
        label: the column of class labels.
        client: the column that names the client of each row, for data that is already split.
        sector: the column that names that client's sector.
        test: a second file, or a column that marks the rows for tests; if empty, a fifth of each client's rows.
        columns: the feature columns; by default all that have no other role.
        drop: columns that are not used.
        text: a column of texts, which replaces the feature columns.
        vocabulary: "hashed" or "counted", for texts.
        words: how many token numbers there are.
        length: tokens per text.
        tokenizer: folder of a pretrained model, whose tokens replace `vocabulary` and `words`.
    """
    options = TableOptions(label, client, sector, test, columns, drop, text, vocabulary, words, length, tokenizer)
    return assemble([Sheet(read(path))], str(path), options)


@dataclass(frozen=True)
class TableOptions:
    """The roles of a table's columns; see `table`."""

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
    tokenizer: str = ""


@dataclass(frozen=True)
class Sheet:
    """A table and, if it is the file of one client, the names of that client and of its sector."""

    frame: DataFrame
    client: str | None = None
    sector: str | None = None


def assemble(sheets: Sequence[Sheet], name: str, options: TableOptions) -> Data:
    """One data set from one table or from one table per client.

    Args:
        sheets: the tables.
        name: of the data set, for messages.
        options: the roles of the columns.
    """
    frame = _together(sheets, name)
    _check_roles(options, name)
    owner, place = _owners(sheets, frame, options, name)
    marked = options.test in frame.columns
    other = None if marked or not options.test else read(Path(options.test).expanduser())
    y, names = _classes(_column(frame, options.label, "label", name), name)
    if other is None:
        marks, at = (frame[options.test] if marked else None), (options.test, name)
        for_tests = held_for_tests(owner, len(frame), name) if marks is None else marked_for_tests(marks, *at)
        parts, y_test = (frame[~for_tests], frame[for_tests]), y[for_tests]
        y, owner, place = y[~for_tests], _part(owner, ~for_tests), _part(place, ~for_tests)
    else:
        parts, y_test = (frame, other), _known(_column(other, options.label, "test", options.test), names, options.test)
    if not len(parts[0]) or not len(parts[1]):
        raise DataError(f"{name} has {len(parts[0])} rows to train on and {len(parts[1])} to test with; both need some")
    where = (name, options.test if other is not None else name)
    about: dict[str, Any] = {"name": name, "class_names": names, "client": owner, "sector": place}
    if options.text:
        written = [_column(part, options.text, "text", at) for part, at in zip(parts, where, strict=True)]
        texts = [_texts(column, options.text, at) for column, at in zip(written, where, strict=True)]
        how = (options.vocabulary, options.words, options.length, options.tokenizer)
        x, x_test, preparation = encode(texts[0], texts[1], *how)
        about |= {"tokens": True, "words": token_count(options.tokenizer) if options.tokenizer else options.words}
        return Data(x, y, x_test, y_test, preparation=preparation, **about)
    features = _features(frame, options, marked, name)
    for wanted in features if other is not None else ():
        _column(parts[1], wanted, "test", options.test)
    kinds = Columns.of(parts[0][features], name)
    x, x_test = (kinds.encode(part[features], at) for part, at in zip(parts, where, strict=True))
    return Data(x, y, x_test, y_test, preparation=Encoded(kinds), **about)


def _owners(
    sheets: Sequence[Sheet], frame: DataFrame, options: TableOptions, name: str
) -> tuple[Array | None, Array | None]:
    """The client and the sector of each row, from columns or from the files' names; None where there is none."""
    if sheets[0].client is not None:
        lengths = [len(sheet.frame) for sheet in sheets]
        owner = np.repeat([str(sheet.client) for sheet in sheets], lengths)
        if any((sheet.sector is None) != (sheets[0].sector is None) for sheet in sheets):
            raise DataError(
                f"{name} has some files in folders and some not; put each client's file in its sector's folder"
            )
        return owner, None if sheets[0].sector is None else np.repeat([str(sheet.sector) for sheet in sheets], lengths)
    named, place = (_owner(frame, key, getattr(options, key), name) for key in ("client", "sector"))
    if place is not None and named is None:
        raise ConfigError(
            f"data.sector = {options.sector!r} says where clients are, so data.client must name the column that says "
            f"who they are; {name} has the columns {listed(frame)}"
        )
    return named, place


def _check_roles(options: TableOptions, name: str) -> None:
    roles: dict[str, str] = {}
    for key in ("label", "client", "sector", "test", "text"):
        column = getattr(options, key)
        if column and column in roles:
            raise ConfigError(f"{name}: data.{roles[column]} and data.{key} both name the column {column!r}; name two")
        roles[column] = key


def _part(given: Array | None, at: Array) -> Array | None:
    return None if given is None else given[at]


def sheets_of(files: Sequence[Path], owners: Sequence[tuple[str, str | None]]) -> list[Sheet]:
    """Read one table per client. A column that holds numbers in some and words in others is read as words in all.

    Args:
        files: one per client.
        owners: the client and the sector of each file.
    """
    frames = [read(file) for file in files]
    kinds: dict[str, set[str]] = {}
    for frame in frames:
        for column in frame.columns:
            if not frame[column].isna().all():
                kinds.setdefault(column, set()).add("number" if frame[column].dtype.kind in "iuf" else "word")
    mixed = {column for column, present in kinds.items() if len(present) > 1}
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
    names = _column(frame, column, key, name)
    if (row := _first(names, names.isna())) is not None:
        raise DataError(
            f"{name}: row {row} names no {key} (column {column!r} is empty there); fill it in or leave it out"
        )
    return names.to_numpy()


def _column(frame: DataFrame, column: str, key: str, name: str) -> Series[Any]:
    if column not in frame.columns:
        unset = key == "label" and column == TableOptions.label
        what = "set data.label to the column to learn" if unset else f"data.{key} must name one"
        close = "" if unset else nearest(column, map(str, frame.columns), cutoff=0.75)
        raise ConfigError(
            f"{name} has no column {column!r} for data.{key}{close or f'; {what}'} (its columns: {listed(frame)})"
        )
    return frame[column]


def _texts(column: Series[Any], label: str, name: str) -> list[str]:
    try:
        return column.fillna("").astype(str).tolist()
    except UnicodeDecodeError:
        raise DataError(f"{name}: column {label!r} holds bytes that are not text in UTF-8; save it as text") from None


def _features(frame: DataFrame, options: TableOptions, marked: bool, name: str) -> list[str]:
    for key in ("columns", "drop"):
        for column in getattr(options, key):
            _column(frame, column, key, name)
    away = {options.label, options.client, options.sector, *options.drop, *((options.test,) if marked else ())}
    columns = options.columns
    features = [column for column in (columns or frame.columns) if column not in away]
    if not features:
        raise DataError(f"{name} has no column left for features; its columns are {listed(frame)}")
    return features


def _classes(column: Series[Any], name: str) -> tuple[Array, list[str]]:
    """Labels as class numbers, and the class names in sorted order (numbers by size)."""
    words = names_of(column, name)
    classes, y = np.unique(words, return_inverse=True)
    if len(classes) < 2:
        raise DataError(f"{name}: all rows have the label {str(classes[0])!r}; a classifier needs at least two classes")
    if len(classes) > len(words) // 2 and len(classes) > 20:
        raise DataError(
            f"{name}: column {column.name!r} has {len(classes)} different values in {len(words)} rows, which are no "
            "classes; name another with data.label"
        )
    return y.astype(np.int64), [str(one) for one in classes]


def names_of(column: Series[Any], name: str) -> Array:
    """Labels as whole numbers or words."""
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
    """The number, counted from 1, of the first row where `where` is true; None if there is none."""
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
    """Which rows are for tests, by a column of words such as test and train, true and false, 1 and 0.

    Args:
        column: the values.
        test: the column's name.
        name: of the data, for messages.
    """
    if (row := _first(column, column.isna())) is not None:
        raise DataError(f"{name}: row {row} does not say whether it is for tests (column {test!r}); fill it in")
    whole = [str(int(v)) if isinstance(v, float) and v.is_integer() else str(v).strip().lower() for v in column]
    odd = next((word for word in whole if word not in TEST_WORDS), None)
    if odd is not None:
        raise DataError(f"{name}: column {test!r} says {odd!r}; write 'test' or 'train', true or false, 1 or 0")
    return np.array([TEST_WORDS[word] for word in whole], dtype=bool)
