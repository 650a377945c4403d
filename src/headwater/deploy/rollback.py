"""`headwater deploy rollback`: the server goes back to an earlier checkpoint and trains on from there.

A checkpoint names values at the server and at other parties. Other parties keep a value until two newer checkpoints
have been written (see `deployed_engine`), so exactly the checkpoints that are still at the server can be gone back to.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from headwater.core.records import parse_json
from headwater.deploy.folder import PartyFolder
from headwater.deploy.status import Status
from headwater.errors import ConfigError
from headwater.training.checkpoint import write_whole

RUN = "run"
FINAL = ("result.json", "model.safetensors", "report.html")  # of a finished run, which is not finished any more
FILE = "rollbacks.jsonl"


def rounds(folder: PartyFolder) -> list[int]:
    """The rounds whose state is kept, oldest first."""
    heads = (folder.state / RUN / "checkpoints").glob("round-*.json")
    return sorted(int(head.stem.removeprefix("round-")) for head in heads if _values_are_there(head))


def rollback(folder: PartyFolder, to: int) -> int:
    """Go back to the state after round `to`. The server must not be running.

    Args:
        folder: of the server.
        to: a round of `rounds`.

    Returns:
        The round that the run was at.

    Raises:
        ConfigError: if the folder is not the server's, the server is running, or that round is not kept.
    """
    if folder.role != "server":
        raise ConfigError(f"{folder.path} is the folder of {folder.role} {folder.name}; only the server goes back")
    lock = Status(folder)  # refuses while the server runs
    try:
        kept = rounds(folder)
        known = ", ".join(map(str, kept))
        if not kept:
            raise ConfigError(f"no checkpoint is in {folder.state / RUN}; the server has not finished a round yet")
        if to not in kept:
            raise ConfigError(f"round {to} is not kept; there are checkpoints of round {known}: name one with --to")
        if to == kept[-1] and not (folder.state / RUN / FINAL[0]).exists():
            raise ConfigError(f"the run is at round {to} already; there are checkpoints of round {known}")
        _note(folder.state / FILE, kept[-1], to)
        for name in FINAL:
            (folder.state / RUN / name).unlink(missing_ok=True)
        for later in (number for number in kept if number > to):
            (folder.state / RUN / "checkpoints" / f"round-{later:06d}.json").unlink(missing_ok=True)
    finally:
        lock.close()
    return kept[-1]


def _values_are_there(head: Path) -> bool:
    try:
        files = parse_json(head.read_text(encoding="utf-8"))["files"].values()
        own = [file for file in files if file and not file.startswith("@")]
        return all((head.parent / "values" / file).is_file() for file in own)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _note(path: Path, at: int, to: int) -> None:
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    write_whole(path, before + json.dumps({"time": time.time(), "from": at, "to": to}) + "\n")
