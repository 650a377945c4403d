"""The error classes of Headwater.

HeadwaterError
├── UserError                 a mistake in the input: one sentence, exit status 2
│   ├── ConfigError           a key, a name or a value
│   ├── DataError             a data set or a file
│   ├── OutputError           a directory that cannot be written or holds another run
│   ├── Diverged              training gave NaN or infinity, and faults.bad_update = "stop"
│   ├── CallbackError         a callback of the user's own raised; names it
│   └── MissingExtra          an optional dependency is not installed
├── PlaceError                a method used a value where it does not live
└── TaskError                 a task raised; names the task, the node and its home
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST_QUOTED = 500  # letters that are quoted of another library's error message
LONGEST_MESSAGE = 4000  # letters of an error message of Headwater


class HeadwaterError(Exception):
    """Base of all errors raised on purpose."""


class UserError(HeadwaterError):
    """A mistake that the caller can correct; the message says how.

    Args:
        message: one sentence. It may quote text of any length, so it is cut to `LONGEST_MESSAGE` letters.
        more: further `args` of the exception.
    """

    def __init__(self, message: object = "", *more: object) -> None:
        text = str(message)
        super().__init__(text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}…", *more)


class ConfigError(UserError):
    """A key, a name or a value that is not accepted."""


class DataError(UserError):
    """A data set that is absent, broken or does not fit."""


class AbsentData(DataError):  # noqa: N818
    """A data set whose files are absent."""


class OutputError(UserError):
    """A directory that cannot be used for results."""


class Diverged(UserError):  # noqa: N818
    """A task returned NaN or infinity; the message names the task, the likely cause and a remedy."""


class CallbackError(UserError):
    """A callback raised an exception; the message names the callback, the hook and the round."""


class MissingExtra(UserError):  # noqa: N818
    """An optional dependency is not installed; the message names the install command.

    Args:
        what: what needs the dependency.
        extra: name of the extra that installs it.
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part; install it with: pip install 'headwater[{extra}]'")


class PlaceError(HeadwaterError):
    """A value was used away from its home; the message names the move that is missing."""


class TaskError(HeadwaterError):
    """A task raised an exception; the message names task, node and home."""


def said(error: BaseException) -> str:
    """First line of another library's error message, cut to a readable length; without one, the name of its class."""
    line = str(error).strip().partition("\n")[0] or type(error).__name__
    return line if len(line) <= MOST_QUOTED else f"{line[:MOST_QUOTED]}…"


def nearest(word: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.5) -> str:
    """Sentence part with the closest known words ("; did you mean …?"), or an empty string.

    Args:
        word: what was given.
        known: what there is.
        most: how many words are named at most.
        cutoff: how similar a word must be, from 0 to 1. Case does not count.
    """
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=most, cutoff=cutoff)
    return f"; did you mean {' or '.join(repr(by_lower[each]) for each in close)}?" if close else ""
