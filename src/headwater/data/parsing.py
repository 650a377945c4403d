"""Tables as they are written: separators, signs in numbers and encodings found out, damage told."""

from __future__ import annotations

import csv
import gzip
import re
import warnings
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.data.store import broken
from headwater.errors import DataError, MissingExtra, said

if TYPE_CHECKING:
    from pandas import DataFrame


def parse(
    path: Path, columns: Sequence[str] | None = None, *, text: bool = False, words: Collection[str] = ()
) -> DataFrame:
    """The file as it is. `columns` names them where the file has no header; with `text`, no cell counts as missing."""
    import pandas as pd

    try:
        if path.suffix.lower() == ".parquet":
            frame = pd.read_parquet(path)
            frame = frame.astype({column: str for column in words if column in frame.columns})
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)  # rows that are longer than the header
                frame = pd.read_csv(path, **_as_written(path, columns, text), dtype=dict.fromkeys(words, str))
    except DataError:
        raise
    except ImportError as error:
        raise MissingExtra(f"{path} is a .parquet file, which", "tables") from error
    except Exception as error:  # a damaged file can raise anything at all
        raise broken(path, _why(error)) from error
    frame.columns = pd.Index([str(column).strip() for column in frame.columns])
    return frame


def parse_in_pieces(path: Path, rows: int = 200_000) -> Iterator[DataFrame]:
    """The same of a file that may be larger than the memory."""
    import pandas as pd

    try:
        with pd.read_csv(path, **_as_written(path, None, text=False), chunksize=rows) as pieces:
            for piece in pieces:
                piece.columns = pd.Index([str(column).strip() for column in piece.columns])
                yield piece
    except DataError:
        raise
    except Exception as error:  # a damaged file can raise anything at all
        raise broken(path, _why(error)) from error


def _as_written(path: Path, columns: Sequence[str] | None, text: bool) -> dict[str, Any]:
    """How a file is written: by its name, its first line and, for the sign in numbers, its second."""
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
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as file:
            lines = [file.readline(1 << 20).decode("utf-8-sig") for _ in range(2)]
    except UnicodeDecodeError:
        raise DataError(f"{path} is not written in UTF-8; save it in UTF-8") from None
    except (OSError, EOFError, zlib.error) as error:
        raise broken(path, _why(error)) from error
    return lines[0], lines[1]


def _why(error: BaseException) -> str:
    return "it is not all in UTF-8; save it in UTF-8" if isinstance(error, UnicodeDecodeError) else said(error)
