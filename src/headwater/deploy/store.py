"""The values that a party holds, each a file on its own disk, so that whoever restarts finds them again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from headwater.core import serialization
from headwater.engines.base import LOST

SUFFIX = ".value"


class Store:
    """Of one run. Those of other runs in the same place go when this one first says what it keeps."""

    def __init__(self, place: Path, run: str) -> None:
        self._folder = place / quote(run, safe="")
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for draft in self._folder.glob("*.draft"):  # of who was killed while it wrote
            draft.unlink()
        self._held = {unquote(path.name.removesuffix(SUFFIX)) for path in self._folder.glob(f"*{SUFFIX}")}
        self._lost: set[str] = set()  # known to be; not worth a file
        self._unsynced: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._held or name in self._lost

    def __getitem__(self, name: str) -> Any:
        """LOST for what is not here."""
        return serialization.read(self._path(name)) if name in self._held else LOST

    def __setitem__(self, name: str, value: Any) -> None:
        self.discard(name)
        if value is LOST:
            self._lost.add(name)
            return
        path = self._path(name)
        draft = path.with_suffix(".draft")
        with draft.open("wb") as file:
            serialization.write(value, file)
        os.replace(draft, path)
        self._held.add(name)
        self._unsynced.add(name)

    def link(self, name: str, source: str) -> None:
        """The same value under another name, without a copy."""
        self.discard(name)
        if source not in self._held:
            self._lost.add(name)
            return
        os.link(self._path(source), self._path(name))
        self._held.add(name)
        self._unsynced.add(name)

    def sync(self) -> None:
        """See that all that is held is really on the disk, before anybody is told of it."""
        new = [self._path(name) for name in self._unsynced & self._held]
        for path in [*new, self._folder] if new else ():  # the folder last: it has their names
            file = os.open(path, os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)
        self._unsynced.clear()

    def keep(self, names: Iterable[str]) -> None:
        """Let go of all others."""
        for other in self._folder.parent.iterdir():
            if other != self._folder:
                shutil.rmtree(other, ignore_errors=True)
        wanted = set(names)
        for name in (self._held | self._lost) - wanted:
            self.discard(name)

    def discard(self, name: str) -> None:
        self._lost.discard(name)
        if name in self._held:
            self._held.discard(name)
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{quote(name, safe='')}{SUFFIX}"
