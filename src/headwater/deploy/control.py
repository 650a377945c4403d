"""`headwater deploy pause`, `resume` and `stop`: the server's operator steers the whole federation.

A command writes its request to `state/control.json` of the server, and the running server reads it before each round. A
paused server asks nobody for anything: all parties stay connected and wait. A stopped one writes a checkpoint and has
all parties end. Their folders keep what they have, so that a later start of everybody carries on to the same bits.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from headwater.core.records import parse_json
from headwater.deploy.folder import PartyFolder, find
from headwater.deploy.status import read
from headwater.errors import ConfigError, HeadwaterError
from headwater.training.checkpoint import write_whole

FILE = "control.json"
PAUSE, STOP = "pause", "stop"
LARGEST = 4096  # bytes of the file
OFTEN = 0.5  # seconds between two looks at it
RESUME = "`headwater deploy resume` at the server's folder carries on"


class Stopped(HeadwaterError):  # noqa: N818
    """The operator has stopped the federation.

    Args:
        round: the round that was not begun.
    """

    def __init__(self, round: int) -> None:
        self.round = max(1, round)  # what comes before round 1 is repeated
        super().__init__(f"the operator of the server has stopped the federation before round {self.round}")


def request(directory: Path, wanted: str) -> tuple[PartyFolder, bool]:
    """Ask the server to pause or to stop, after the round that it is at.

    Args:
        directory: folder of the server, or a directory that holds this folder among others.
        wanted: PAUSE or STOP.

    Returns:
        The folder of the server, and whether the server is running.

    Raises:
        ConfigError: if there is no server's folder, it belongs to another user, the federation has finished, or it
            is asked to stop and does not run.
    """
    folder = _server(directory)
    up = bool(read(folder.state)["up"])
    if (folder.state / "run" / "result.json").exists():
        raise ConfigError(f"this federation has finished; there is nothing to {wanted}. See {folder.state / 'run'}")
    if wanted == STOP and not up:
        raise ConfigError(
            "the server is not running, so it cannot tell the others to end; start it and give this command again, or "
            "stop the processes of the other parties by hand"
        )
    write_whole(folder.state / FILE, json.dumps({"do": wanted, "time": time.time()}))
    return folder, up


def withdraw(directory: Path) -> PartyFolder:
    """Withdraw the last request, so that the server carries on.

    Args:
        directory: as for `request`.

    Returns:
        The folder of the server.

    Raises:
        ConfigError: if there is no server's folder, it belongs to another user, or nothing is requested.
    """
    folder = _server(directory)
    if not _requested(folder.state / FILE):
        raise ConfigError("the federation is neither paused nor about to stop; see `headwater deploy status`")
    (folder.state / FILE).unlink(missing_ok=True)
    return folder


class Control:
    """What the operator wants of a running server.

    Args:
        folder: of the server.
        log: takes a sentence for each change.
    """

    def __init__(self, folder: PartyFolder, log: Callable[[str], None]) -> None:
        self._path, self._log = folder.state / FILE, log
        self._wanted, self._looked = "", -OFTEN

    def look(self) -> str:
        """PAUSE, STOP or "". Call it often: a request is logged once, as soon as it is seen."""
        if time.monotonic() - self._looked >= OFTEN:
            self._looked = time.monotonic()
            before, self._wanted = self._wanted, _requested(self._path)
            if self._wanted != before:
                self._log(
                    {
                        PAUSE: f"asked to pause, which takes effect before the next round; {RESUME}",
                        STOP: "asked to stop, which takes effect before the next round",
                        "": f"asked to carry on: the request to {before} was withdrawn",
                    }.get(self._wanted, f"{self._path} is ignored: it {self._wanted}; remove it, and ask again")
                )
        return self._wanted if self._wanted in (PAUSE, STOP) else ""

    def hold(self, round: int, on_pause: Callable[[], None] = lambda: None) -> None:
        """Wait here while the federation is paused.

        Args:
            round: that is about to begin.
            on_pause: called repeatedly meanwhile.

        Raises:
            Stopped: the federation is to stop.
        """
        self._looked = -OFTEN  # what was asked in this very moment counts
        held = False
        while (wanted := self.look()) == PAUSE:
            if not held:
                held = True
                self._log(f"paused before round {max(1, round)}; {RESUME}")
            on_pause()
            time.sleep(OFTEN)
        if wanted == STOP:
            raise Stopped(round)
        if held:
            self._log(f"carries on with round {max(1, round)}")

    def clear(self, *wanted: str) -> None:
        """Remove a request that was carried out, or that came too late."""
        if _requested(self._path) in wanted:
            self._path.unlink(missing_ok=True)


def _server(directory: Path) -> PartyFolder:
    found = next((party for party in find(directory) if party.role == "server"), None)
    if found is None:
        raise ConfigError(f"{directory} has no folder of a server, and only the server's operator steers a federation")
    folder = PartyFolder.open(found.path)
    owner = folder.state.stat().st_uid
    if os.name == "posix" and owner != os.geteuid():  # the server could not read the request, or would not believe it
        raise ConfigError(f"{folder.path} belongs to user {owner}; give this command as that user (sudo -u '#{owner}')")
    return folder


def _requested(path: Path) -> str:
    """PAUSE, STOP, "" without a file, or the end of a sentence about why the file is ignored."""
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or (os.name == "posix" and about.st_uid != os.geteuid()):
            return "is not a file of the user that runs the server"
        wanted = parse_json(os.read(file, LARGEST))["do"]
        return wanted if wanted in (PAUSE, STOP) else "asks for nothing that is known here"
    except (OSError, ValueError, KeyError, TypeError):
        return "is damaged"
    finally:
        os.close(file)
