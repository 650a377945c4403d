"""A party of a trial: as `headwater deploy ROLE DIR`, and it can halt before a task and keep all that it gets to see.

    python tools/trial_party.py [--halt TASK ROUND FILE] [--keep FOLDER] deploy ROLE DIR

With `--halt` it makes FILE and waits for ever when it is about to carry out a task of a round: all that it had sent
before was used, and nothing more will come, so that a test can kill it in that very step. With `--keep` it does what a
curious party can do: it stores every array that it receives, and every model that it makes, in FOLDER. `Federation`
starts it for the parties in its `programs`.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from federation import HEADWATER
from headwater.core.params import Params
from headwater.deploy import own_steps, placement, work_messages
from headwater.deploy.transport import Message

CLIENT: Any = work_messages  # modules that carry out tasks: of a client, and of a host and the server
OTHERS: Any = own_steps
RECEIVED, MADE = "received", "made"  # first word in the names of files that are kept


def halt(title: str, round: int, mark: Path) -> None:
    """Wait for ever before a task of a round, and say so by a file."""
    carry_out = CLIENT.execute

    def execute(job: Any, *rest: Any) -> Any:
        if (job.title, job.round) == (title, round):
            mark.touch()
            threading.Event().wait()
        return carry_out(job, *rest)

    CLIENT.execute = execute


def keep(folder: Path) -> None:
    """Store the arrays of every message, and every model that a task makes here."""
    folder.mkdir(parents=True, exist_ok=True)
    count = itertools.count()

    def write(first: str, what: str, arrays: Iterable[tuple[str, bytes]]) -> None:
        for dtype, data in arrays:
            (folder / f"{first}-{next(count):05}-{what}.{dtype}").write_bytes(data)

    answer, read_reply = work_messages.Worker.answer, placement.Request.read_reply

    def answering(self: Any, message: Message) -> Message:
        write(RECEIVED, "above", ((part.dtype, part.data) for part in message.parts))
        return answer(self, message)

    def reading(self: Any, party: Any, reply: Message) -> Any:
        write(RECEIVED, self.child, ((part.dtype, part.data) for part in reply.parts))
        return read_reply(self, party, reply)

    def noting(execute: Any) -> Any:
        def noted(job: Any, *rest: Any) -> Any:
            value, done = execute(job, *rest)
            if isinstance(value, Params):
                vector = value.vector.numpy()
                write(MADE, f"{job.round}-{job.title}", [(str(vector.dtype), vector.tobytes())])
            return value, done

        return noted

    work_messages.Worker.answer = answering  # type: ignore[method-assign]
    placement.Request.read_reply = reading  # type: ignore[method-assign]
    for module in (CLIENT, OTHERS):
        module.execute = noting(module.execute)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--halt", nargs=3, metavar=("TASK", "ROUND", "FILE"))
    asked.add_argument("--keep", type=Path, metavar="FOLDER")
    asked.add_argument("command", nargs=argparse.REMAINDER)
    words = asked.parse_args()
    if words.keep:
        keep(words.keep)
    if words.halt:
        title, round, mark = words.halt
        halt(title, int(round), Path(mark))
    sys.argv = ["headwater", *words.command]
    exec(compile(HEADWATER, "headwater", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main()
