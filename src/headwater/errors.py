"""Everything Headwater raises on purpose, as one family.

HeadwaterError
├── UserError                 a mistake in what was asked: one sentence, exit status 2
│   ├── ConfigError           a key, a name or a value
│   ├── DataError             a data set or a file
│   ├── OutputError           a directory that cannot be written or holds another run
│   ├── Diverged              training gave numbers that are not finite, and faults.bad_update = "stop"
│   └── MissingExtra          an optional dependency is not installed
├── PlaceError                a method used a value where it does not live
└── TaskError                 a task raised; names the task, the node and its home
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HeadwaterError(Exception):
    """Base of all errors raised on purpose."""


class UserError(HeadwaterError):
    """Something the caller can put right; the message says how."""


class ConfigError(UserError):
    """A key, a name or a value that is not accepted."""


class DataError(UserError):
    """A data set that is absent, broken or does not fit."""


class AbsentData(DataError):  # noqa: N818
    """A data set whose files are not there at all, so that another may take its place."""


class OutputError(UserError):
    """A directory that cannot be used for results."""


class Diverged(UserError):  # noqa: N818
    """A task gave numbers that are not finite; the message names it, the likely cause and what helps."""


class MissingExtra(UserError):  # noqa: N818
    """An optional dependency is needed; the message names the install command."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part; install it with: pip install 'headwater[{extra}]'")


class PlaceError(HeadwaterError):
    """A value was used away from its home; the message names the move that is missing."""


class TaskError(HeadwaterError):
    """A task raised an exception; the message names task, node and home."""


def said(error: BaseException) -> str:
    """The first line of an error of somebody else's, or its kind where it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def nearest(word: str, known: Iterable[str]) -> str:
    """A ready sentence part for the closest known word, or an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
