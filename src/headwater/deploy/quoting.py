"""Text that parties send each other: how text of another party is quoted here, and what others get of an exception.

Text of another party is quoted, attributed and cut, so that it can neither pass as a line of this party's own log nor
flood it. An exception is reported by its kind: its text may hold paths and values of the machine it happened on,
and stays in the log there.
"""

from __future__ import annotations

from collections.abc import Iterable

from headwater.deploy.transport import Unanswered
from headwater.errors import Diverged, TaskError

LONGEST = 300  # characters of a quoted sentence
MOST = 50  # sentences of one party that are quoted in a round
OWN_LOG = "its own log says why"


def quoted(words: object, longest: int = LONGEST) -> str:
    """Another party's text as it is shown here: on one line, printable, in double quotes, and cut."""
    text = " ".join(str(words)[: 4 * longest].split())
    text = "".join(char if char.isprintable() else "?" for char in text).replace('"', "'")
    return f'"{text[:longest]}{"…" if len(text) > longest else ""}"'


def attributed(party: str, sentences: Iterable[object], before: int = 0) -> list[str]:
    """Sentences of another party as they are shown here: quoted, with its name.

    Args:
        party: the party.
        sentences: what it reported.
        before: number of its sentences that were quoted in this round already.
    """
    reported = list(sentences)
    left = max(0, MOST - before)
    lines = [f"{party} says {quoted(sentence)}" for sentence in reported[:left]]
    if len(reported) > left and before <= MOST:
        lines.append(f"{party} says more than {MOST} things in one round; the others are left out here")
    return lines


def public(error: BaseException) -> str:
    """The sentence about an exception that other parties get."""
    if isinstance(error, Unanswered | Diverged):
        return str(error)
    if isinstance(error, TaskError) and error.__cause__ is not None:
        what = str(error).partition(" failed: ")[0]
        return f"{what} failed with {type(error.__cause__).__name__}; {OWN_LOG}"
    return str(error) if isinstance(error, TaskError) else f"{type(error).__name__}; {OWN_LOG}"
