"""Processes of tests: bounded in time, ended as a whole, and where they listen, in a network of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ALONE = ["unshare", "--net", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def own_network() -> list[str]:
    """The words before a command that is to have a network of its own, with nothing but a loopback."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("a network of its own needs the commands unshare and ip")
    if subprocess.run([*ALONE, "true"], capture_output=True).returncode:
        pytest.skip("this user may not make a network of its own (unshare --net)")
    return ALONE


def output_of(
    command: Sequence[str], seconds: float, environment: Mapping[str, str], folder: Path | None = None
) -> str:
    """What a command that has to succeed writes. All that it started is ended if it takes too long."""
    process = subprocess.Popen(
        command,
        env=dict(environment),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert process.returncode == 0, output[-20_000:] + errors[-20_000:]
    return output
