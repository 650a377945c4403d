"""Checkpoints of a run.

`values/` holds values in files named by a hash of their content, so a value that did not change is not written again.
`round-N.json` holds the handles of the state and the ledger, and a hash of itself. It is written last and atomically.
All hashes are compared when a checkpoint is read; a damaged one is skipped. Checkpoint frequency adapts to their cost
(at most 3 % of the run).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.core import records
from headwater.core.ledger import Ledger
from headwater.core.records import parse_json
from headwater.core.sealed import Damaged
from headwater.core.tree import Place
from headwater.core.values import Located, names_in
from headwater.engines.base import Engine
from headwater.engines.jobs import Bundle, Ref
from headwater.errors import OutputError, said

VERSION = 2
UNCHECKED = 1  # the version before heads had a hash
KEPT = 2  # checkpoints on disk
PAUSE = 33  # time between checkpoints, in multiples of what the last one took: at most 3 % of a run


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read: the state after `round`, the ledger and the names of its values.

    `skipped` has a sentence for each newer checkpoint that cannot be used.
    """

    round: int
    state: Any
    ledger: Ledger
    names: frozenset[str]
    seconds: float  # run time up to this round
    skipped: tuple[str, ...] = ()


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file atomically."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        with draft.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:  # on a full disk the draft only takes up room
        draft.unlink(missing_ok=True)
        raise


class Keeper:
    """Holds the state of the last finished round and writes it when a checkpoint is due.

    The first checkpoint is written at once, later ones after rounds that end at least `PAUSE` times the duration of
    the last checkpoint after it. As a context manager it also writes the last state when a run is interrupted.

    Args:
        directory: directory of the checkpoints.
        engine: holds the values.
        before: called before a checkpoint is written; its time counts as part of the checkpoint.
        clock: seconds, increasing.
    """

    def __init__(
        self,
        directory: Path,
        engine: Engine,
        before: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory, self._engine, self._before, self._clock = directory, engine, before, clock
        self._unwritten: tuple[int, Any, Ledger, float] | None = None
        self._next = -math.inf  # earliest time of the next checkpoint

    @property
    def state(self) -> Any:
        """The state that has not been written yet, or None."""
        return self._unwritten[1] if self._unwritten else None

    def keep(self, round: int, state: Any, ledger: Ledger, seconds: float) -> None:
        """Hold the state of a finished round, and write it if a checkpoint is due."""
        self._unwritten = (round, state, ledger.copy(), seconds)
        if self._clock() >= self._next:
            self.write()

    def write(self) -> None:
        """Write the last state, unless it was written already."""
        if self._unwritten is None:
            return
        begun = self._clock()
        self._before()
        round, state, ledger, seconds = self._unwritten
        save(self._directory, round, state, self._engine, ledger, seconds)
        self._unwritten = None
        self._next = self._clock() + PAUSE * (self._clock() - begun)

    def __enter__(self) -> None:
        """Treat SIGTERM like Ctrl-C, unless another handler is installed."""
        self._handles_sigterm = (
            threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        )
        if self._handles_sigterm:
            signal.signal(signal.SIGTERM, _stop)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write the last state of an interrupted run. An error here never hides the one that ended the run."""
        try:
            if kind is not None:
                with suppress(Exception):
                    self.write()
        finally:
            if self._handles_sigterm:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def save(directory: Path, round: int, state: Any, engine: Engine, ledger: Ledger, seconds: float) -> None:
    """Write a checkpoint, and remove the oldest beyond `KEPT`."""
    names = sorted(names_in(state))
    files = engine.save(names, directory / "values")
    row = {"version": VERSION, "round": round, "seconds": seconds, "files": files}
    row |= {"state": encode(state), "ledger": ledger.state()}
    write_whole(directory / f"round-{round:06d}.json", json.dumps(row | {"sha256": _sha256(row)}))
    _tidy(directory)


def load(directory: Path, engine: Engine, own: Iterable[str] = ()) -> Checkpoint | None:
    """Read the newest complete checkpoint and load its values into the engine.

    Args:
        directory: directory of the checkpoints.
        engine: gets the values. Each is compared with its hash.
        own: names of the user's own parts in the configuration; classes of their packages may be in a state.

    Returns:
        The checkpoint, or None if there is none.

    Raises:
        OutputError: if there are checkpoints and none can be read.
    """
    heads, skipped = _heads(directory), list[str]()
    trusted = records.trust(*own)
    for path in reversed(heads):
        try:
            row = _read_head(path)
            # A module is never imported because a file names it: beyond the configured ones, it must be loaded already.
            state = decode(row["state"], lambda module: module in sys.modules or trusted(module))
            ledger, names, seconds = Ledger.restore(row["ledger"]), frozenset(row["files"]), float(row["seconds"])
            engine.load(row["files"], directory / "values")
            return Checkpoint(int(row["round"]), state, ledger, names, seconds, tuple(skipped))
        except (
            OSError,
            ValueError,
            OverflowError,
            ImportError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            why = said(error) if isinstance(error, Damaged | OSError) else f"{path} cannot be used ({said(error)})"
            skipped.append(f"{why}; the run carries on from an older checkpoint")
    if heads:
        reason = skipped[0].rpartition(";")[0]
        raise OutputError(f"no checkpoint in {directory} can be read ({reason}); start the run anew with --force")
    return None


def _read_head(path: Path) -> dict[str, Any]:
    """The content of `round-N.json`, compared with its hash. Raises ValueError if it cannot be used."""
    try:
        row = parse_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"it is not valid JSON: {error}") from None
    if not isinstance(row, dict) or row.get("version") not in (VERSION, UNCHECKED):
        raise ValueError("it is not a checkpoint of this version")
    if row["version"] != UNCHECKED and row.pop("sha256", None) != _sha256(row):
        raise Damaged(path)
    return row


def _sha256(row: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(row).encode()).hexdigest()


def _heads(directory: Path) -> list[Path]:
    return sorted(directory.glob("round-*.json"))


def _tidy(directory: Path) -> None:
    """Remove all but the newest checkpoints, and values that none of them uses."""
    heads = _heads(directory)
    for old in heads[:-KEPT]:
        old.unlink(missing_ok=True)
    used: set[str] = set()
    for head in heads[-KEPT:]:
        try:
            for file in parse_json(head.read_text(encoding="utf-8"))["files"].values():
                used.update([file] if isinstance(file, str) else file.values())
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # not one of ours: remove no value
    for value in (directory / "values").iterdir():
        if value.name not in used:
            value.unlink(missing_ok=True)


def encode(state: Any) -> Any:
    """A state of handles and plain values as JSON."""
    try:
        return records.encode(state, _located)
    except TypeError as error:
        raise TypeError(
            f"{error}: a state may hold handles, numbers, strings, tuples, dicts and dataclasses; keep arrays as "
            "located values"
        ) from error


def decode(row: Any, trusted: Callable[[str], bool] = lambda module: True) -> Any:
    return records.decode(row, _handle, trusted)


def _located(thing: Any) -> Any:
    if not isinstance(thing, Located):
        return records.UNKNOWN
    return {"$": "located", "place": thing.place.value, "nodes": {n: _ref(r) for n, r in thing.nodes.items()}}


def _handle(row: Any) -> Any:
    if row["$"] != "located":
        return records.UNKNOWN
    return Located(Place(row["place"]), {node: _held(ref) for node, ref in row["nodes"].items()})


def _ref(handle: Ref | Bundle) -> Any:
    if isinstance(handle, Bundle):
        return {"children": {child: _ref(ref) for child, ref in handle.refs.items()}}
    row = {"name": handle.name, "home": handle.home, "part": encode(handle.part)}
    return row | ({"member": handle.member} if handle.member else {})


def _held(row: Any) -> Any:
    if "children" in row:
        return Bundle({child: _held(ref) for child, ref in row["children"].items()})
    return Ref(row["name"], row["home"], decode(row["part"]), row.get("member", ""))
