"""What a party remembers of the steps that it was asked for, so that a restart forgets nothing: where each of its
values comes from, which inputs it has used in which round, and what it has released with noise."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from headwater.core import serialization
from headwater.core.records import parse_json
from headwater.deploy.payload import CARGO
from headwater.deploy.permitted_steps import Origin
from headwater.deploy.transport import Message
from headwater.training.checkpoint import write_whole

USED, MARKS, RELEASED = "used.jsonl", "marks.json", "released"


class Mark(NamedTuple):
    """What a party knows of a value besides its content.

    Args:
        origin: where it comes from.
        round: in which round it came or was made.
        digest: of the content if it came from above, else of all that it was made from.
    """

    origin: Origin
    round: int
    digest: str


class StepRecord:
    """The memory of one party.

    Marks belong to a run. Used inputs and releases belong to the federation, so that a server that begins a new run
    cannot have a round's release drawn again.

    Args:
        place: directory of this party's record.
        run: name of the run.
    """

    def __init__(self, place: Path, run: str) -> None:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._place, self._run = place, run
        self.marks: dict[str, Mark] = self._read_marks()
        self._used: defaultdict[tuple[int, str], set[str]] = defaultdict(set)
        for line in _lines(place / USED):
            self._used[line["round"], line["shape"]].add(line["digest"])

    def _read_marks(self) -> dict[str, Mark]:
        try:
            written = parse_json((self._place / MARKS).read_text(encoding="utf-8"))
            if written["run"] != self._run:
                return {}
            return {name: Mark(Origin(*origin), *rest) for name, (origin, *rest) in written["marks"].items()}
        except (OSError, ValueError, KeyError, TypeError):  # without marks, values of earlier rounds are not used
            return {}

    def keep(self, names: Iterable[str]) -> None:
        """Forget the marks of all other values, and write the rest to disk."""
        wanted = set(names)
        self.marks = {name: mark for name, mark in self.marks.items() if name in wanted}
        write_whole(self._place / MARKS, json.dumps({"run": self._run, "marks": self.marks}))

    def used(self, round: int, shape: str) -> set[str]:
        """Digests of the inputs that steps of this shape had in this round, in all attempts and runs."""
        return self._used.get((round, shape), set())

    def use(self, round: int, shape: str, digest: str) -> None:
        """Record inputs before a step is carried out."""
        if digest in self._used[round, shape]:
            return
        self._used[round, shape].add(digest)
        with (self._place / USED).open("a", encoding="utf-8") as file:
            # The newline comes first, so that a line that a kill cut short does not spoil the next one.
            file.write("\n" + json.dumps({"round": round, "shape": shape, "digest": digest}))

    def released(self, which: str) -> Any:
        """What was released under this name; None if nothing was."""
        path = self._release(which)
        return serialization.read(path) if path.exists() else None

    def release(self, which: str, value: Any) -> None:
        """Keep a value before it leaves this party for the first time."""
        path = self._release(which)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        draft = path.with_suffix(".draft")
        with draft.open("wb") as file:
            serialization.write(value, file)
        draft.replace(path)

    def _release(self, which: str) -> Path:
        return self._place / RELEASED / f"{quote(which, safe='')}.value"


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; one that was cut short by a kill is skipped."""
    if not path.exists():
        return []
    found = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = parse_json(text)
            if isinstance(line["round"], int) and isinstance(line["shape"], str) and isinstance(line["digest"], str):
                found.append(line)
        except (ValueError, KeyError, TypeError):
            continue
    return found


def content_digests(message: Message) -> dict[str, str]:
    """Digest of each value of a message whose form was checked."""
    found: dict[str, str] = {}
    at = 0
    for name, content, count in message.head.get(CARGO, ()):
        if content is None:
            continue
        digest = hashlib.sha256(json.dumps(content).encode())
        for part in message.parts[at : at + count + 2]:
            digest.update(f"{part.dtype}{list(part.shape)}".encode())
            digest.update(part.data)
        at += count + 2
        found[name] = digest.hexdigest()
    return found
