"""A party's log: one line for each thing that somebody may want to know, on the terminal and in state/logs."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater.deploy.folder import PartyFolder


class Log:
    def __init__(self, folder: PartyFolder, quiet: bool) -> None:
        place = folder.state / "logs"
        place.mkdir(mode=0o700, exist_ok=True)
        self._file, self._quiet, self._name = (place / "party.log").open("a", encoding="utf-8"), quiet, folder.name

    def __call__(self, sentence: str) -> None:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self._name}: {' '.join(sentence.split())}"
        line = "".join(letter if letter.isprintable() else "?" for letter in line)  # some of it others have said
        self._file.write(line + "\n")
        self._file.flush()
        if not self._quiet:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        self._file.close()
