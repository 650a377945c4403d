"""The extras go together: what one of them brings must not break what another, or the core, asks for."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.thorough
def test_core_ray_and_flower_agree_on_what_they_need() -> None:
    """`pip check` complains of none of them. What the other extras bring may complain of each other."""
    for name in ("ray", "flwr"):
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            pytest.skip(f"{name} is not installed; pip install -e '.[test]' brings it")
    found = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False, timeout=600
    )
    ours = {"headwater", "ray", "flwr", "torch", "typer", "rich", "pydantic", "cryptography", "protobuf"}
    assert [line for line in found.stdout.splitlines() if line.split()[:1] and line.split()[0] in ours] == []


def test_flower_is_held_to_the_version_that_it_was_tried_with() -> None:
    """Its insides are used, so another minor version is another matter."""
    from headwater.deploy.flower.link_ends import VERSION

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    major, minor = VERSION.split(".")
    assert f"flwr>={VERSION},<{major}.{int(minor) + 1}" in extras["flower"]
