"""A virtual environment for each contestant from the package registry, made on first use and then kept."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / ".environments"
TORCH = "torch==2.13.0"
PACKAGES = {
    "flower": ("flwr[simulation]==1.41.0", TORCH, "numpy"),
    "pfl": ("pfl[pytorch]==0.6.0", TORCH),
    "jax": ("jax==0.10.2", "jaxlib==0.10.2", TORCH, "numpy"),  # torch judges the model, as it does everybody's
    # The last jax.tree_map that FedJAX needs, and a Haiku that goes with it.
    "fedjax": ("fedjax==0.0.17", "jax==0.4.33", "jaxlib==0.4.33", "dm-haiku==0.0.13", TORCH, "numpy<2.3"),
}


class Refused(Exception):  # noqa: N818 (an outcome, not a fault)
    """The sentence why a contestant is left out."""


def python_of(name: str) -> str:
    """The interpreter of an environment, which is made if it is not there."""
    folder = FOLDER / name
    python, made = folder / "bin" / "python", folder / ".made"
    wanted = " ".join(PACKAGES[name])
    if made.is_file() and made.read_text() == wanted:
        return str(python)
    print(f"making the environment of {name} ({wanted}); this takes a few minutes once", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES[name]]
    for command in ([sys.executable, "-m", "venv", str(folder)], install):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
            why = lines[-1].removeprefix("ERROR: ") if lines else f"exit status {done.returncode}"
            raise Refused(f"{name} is left out because it cannot be installed here: {why}")
    made.write_text(wanted)
    return str(python)


def isolated() -> list[str]:
    """What to put before a command so that it sees no network but its own loopback, and so that ending it ends all
    that it started."""
    enter = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    up = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    why = "there is no unshare(1) or ip(8)"
    for before in (enter, [*enter, "--map-root-user"]):
        try:
            tried = subprocess.run([*before, *up, "true"], capture_output=True, text=True)
        except OSError:
            break
        if tried.returncode == 0:
            return [*before, *up]
        why = tried.stderr.strip().splitlines()[-1] if tried.stderr.strip() else f"exit status {tried.returncode}"
    raise Refused(f"frameworks are left out because they cannot be given a network of their own here: {why}")
