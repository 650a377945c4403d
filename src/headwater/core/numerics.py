"""Facts about this process's floating-point arithmetic: the processor and the MKL reproducibility setting.

Intel's MKL has several kernels for a matrix product. By default it selects one by operand shapes, number of threads and
memory alignment. With `MKL_CBWR=AUTO` (see `startup`) it selects by the processor alone. MKL reads this variable once,
at its first product.
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
    """The setting of MKL_CBWR in force in this process; empty where torch has no MKL."""
    import torch

    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return ""
    requested = os.environ.get(startup.CBWR, "")
    if startup.early:
        return requested or "OFF"
    reported = re.search(rb"CNR:(\w+)", _verbose())
    return reported.group(1).decode() if reported else requested or "OFF"


def _verbose() -> bytes:
    """MKL's verbose output for one product. MKL writes to the descriptor of standard output, which is redirected
    meanwhile. Needed only where torch was imported before this library."""
    import torch

    matrix = torch.ones(8, 8)
    flush = ctypes.CDLL(None).fflush
    sys.stdout.flush()
    flush(None)
    with tempfile.TemporaryFile() as file:
        saved_stdout = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            with torch.backends.mkl.verbose(torch.backends.mkl.VERBOSE_ON):  # type: ignore[no-untyped-call]
                torch.mm(matrix, matrix)
            flush(None)
        finally:
            os.dup2(saved_stdout, 1)
            os.close(saved_stdout)
        file.seek(0)
        return file.read()


def too_late() -> str:
    """A warning if a product was computed before this library could set MKL_CBWR; else an empty string."""
    if startup.early or mkl_cbwr() != "OFF":
        return ""
    return (
        f"a product was computed before headwater was imported, so {startup.CBWR}=AUTO came too late and MKL chooses "
        "its kernels by the shape of each call: results are the same on every engine of this machine, but their last "
        f"digits may differ from those of a process that imports headwater first; do that, or set {startup.CBWR}=AUTO"
    )


@lru_cache
def processor() -> str:
    """Name of the processor, with family and model where the system provides them."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    facts = dict(re.findall(r"^(model name|cpu family|model)\s*:\s*(.*)$", text, re.MULTILINE))
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    return f"{facts['model name']}, family {facts.get('cpu family', '?')} model {facts.get('model', '?')}"


def about() -> dict[str, Any]:
    """What the last digits of results may depend on: processor and library settings, for result.json."""
    import torch

    blas = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return {
        "processor": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "blas": blas.group(1) if blas else "",
        "mkl_cbwr": mkl_cbwr(),
    }
