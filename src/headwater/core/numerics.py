"""What is known of the arithmetic of this process: the processor, and what its libraries were asked to promise.

Intel's MKL computes a product in one of several ways, and by default it chooses by the shape of the call, the number of
threads and where operands lie. `MKL_CBWR=AUTO` (see `startup`) asks it to choose by the processor alone. It looks at
that variable when it computes its first product, and never again.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from headwater import startup


@lru_cache
def mkl_cbwr() -> str:
    """The setting of MKL_CBWR that is in force in this process; empty where products are not computed by MKL."""
    import torch

    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return ""
    asked = os.environ.get(startup.CBWR, "")
    if startup.early:
        return asked or "OFF"
    told = re.search(rb"CNR:(\w+)", _verbose())
    return told.group(1).decode() if told else asked or "OFF"


def _verbose() -> bytes:
    """What MKL says of a product. It writes to the file descriptor of standard output, which is another file
    meanwhile; asked only where torch was imported before this library."""
    import torch

    some = torch.ones(8, 8)
    flush = ctypes.CDLL(None).fflush
    sys.stdout.flush()
    flush(None)
    with tempfile.TemporaryFile() as file:
        usual = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            with torch.backends.mkl.verbose(torch.backends.mkl.VERBOSE_ON):  # type: ignore[no-untyped-call]
                torch.mm(some, some)
            flush(None)
        finally:
            os.dup2(usual, 1)
            os.close(usual)
        file.seek(0)
        return file.read()


def too_late() -> str:
    """A sentence where a product was computed before this library could ask MKL for its promise; else nothing."""
    if startup.early or mkl_cbwr() != "OFF":
        return ""
    return (
        f"a product was computed before headwater was imported, so {startup.CBWR}=AUTO came too late and MKL chooses "
        "its kernels by the shape of each call: results are the same on every engine of this machine, but their last "
        f"digits may differ from those of a process that imports headwater first; do that, or set {startup.CBWR}=AUTO"
    )


@lru_cache
def processor() -> str:
    """The processor's name, with family and model where the system tells them."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    found = dict(re.findall(r"^(model name|cpu family|model)\s*:\s*(.*)$", text, re.MULTILINE))
    if "model name" not in found:
        return platform.processor() or platform.machine()
    return f"{found['model name']}, family {found.get('cpu family', '?')} model {found.get('model', '?')}"


def about() -> dict[str, Any]:
    """What the last digits of results may depend on, for result.json."""
    import torch

    blas = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return {
        "processor": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "blas": blas.group(1) if blas else "",
        "mkl_cbwr": mkl_cbwr(),
    }
