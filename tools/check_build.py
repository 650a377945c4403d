"""Check the archives in dist/: their contents, and that the wheel works where the repository is not.

`make build` runs this after building. It compares the archives with the files of the repository, installs the wheel
into a fresh virtual environment under build/ and trains two rounds there, from an empty directory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
ENVIRONMENT = ROOT / "build" / "wheel-check"
NOT_PACKAGED = {".pyc", ".pyo"}


def archives() -> tuple[Path, Path]:
    """The one wheel and the one source archive in dist/."""
    wheels, sources = list((ROOT / "dist").glob("*.whl")), list((ROOT / "dist").glob("*.tar.gz"))
    if len(wheels) != 1 or len(sources) != 1:
        sys.exit(f"dist/ holds {len(wheels)} wheels and {len(sources)} source archives instead of one each")
    return wheels[0], sources[0]


def package_files() -> set[str]:
    """Every file of the package, code and data (presets, page templates), as the wheel names it."""
    paths = (SOURCE / "headwater").rglob("*")
    return {p.relative_to(SOURCE).as_posix() for p in paths if p.is_file() and p.suffix not in NOT_PACKAGED}


def check_contents(wheel: Path, source: Path) -> None:
    expected = package_files()
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    with tarfile.open(source) as archive:
        members = {name.partition("/")[2] for name in archive.getnames()}
    missing = sorted(expected - inside) + sorted({f"src/{name}" for name in expected} - members)
    missing += sorted({"LICENSE", "README.md", "pyproject.toml"} - members)
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in inside):
        missing.append("LICENSE (wheel)")
    if missing:
        sys.exit(f"the archives lack {', '.join(missing)}")
    kinds = Counter(Path(name).suffix for name in expected)
    print(f"in the package: {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}")
    print(f"{len(inside)} files in {wheel.name}, {len(members)} in {source.name}, LICENSE in both")


def check_installed(wheel: Path) -> None:
    """Install the wheel and train with it. The environment has no path to the repository's sources."""
    venv.create(ENVIRONMENT, with_pip=True, clear=True)
    programs = ENVIRONMENT / "bin"
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)]
    subprocess.run([programs / "python", *install], check=True)
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        for words in (
            ["run", "demo", "--rounds", "2", "--out", "trained"],  # a preset, on the embedded digits
            ["report", "trained"],
        ):
            print("$ headwater", *words, flush=True)
            subprocess.run([programs / "headwater", *words], check=True, cwd=folder, env=clean)
        result = json.loads((Path(folder) / "trained" / "result.json").read_text(encoding="utf-8"))
        if result["rounds"] != 2:
            sys.exit(f"the run from the wheel has {result['rounds']} rounds instead of 2")


def main() -> None:
    wheel, source = archives()
    check_contents(wheel, source)
    check_installed(wheel)
    print(f"dist/{wheel.name} and dist/{source.name} are complete and work")


if __name__ == "__main__":
    main()
