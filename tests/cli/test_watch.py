"""`headwater watch`: the report as a live page."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

Call = Callable[..., Any]
PATIENCE = 120
# A background job inherits that SIGINT is ignored; a command at a terminal does not.
HEED = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
CODE = f"{HEED}; from headwater.cli.app import main; sys.exit(main())"


def test_it_serves_the_report_until_ctrl_c(call: Call, small: tuple[str, ...], tmp_path: Path) -> None:
    call("run", "fedavg", *small, "--rounds", 1, "--out", tmp_path / "run")
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, "watch", str(tmp_path), "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=PATIENCE) as reply:
            text = reply.read().decode()
        assert "reached an accuracy of" in text
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, err) == (130, "")
    finally:
        process.kill()
        process.wait()


def test_it_refuses_with_a_sentence(call: Call, tmp_path: Path) -> None:
    told = call("watch", tmp_path / "nowhere")
    assert (told.status, "there is no directory" in told.err) == (2, True)
    told = call("watch", tmp_path)
    assert (told.status, "no run was found" in told.err) == (2, True)
    told = call("watch", tmp_path, "--target", "80")
    assert (told.status, "accuracy between 0 and 1" in told.err) == (2, True)
