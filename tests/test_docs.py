"""Checks that what the documentation names exists: files, headings, modules, commands, configuration keys."""

from __future__ import annotations

import importlib
import re
from itertools import product
from pathlib import Path

import pytest

from headwater.partition import PARTITIONS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
SUFFIXES = ("py", "pyi", "toml", "md", "json", "jsonl", "csv", "npz", "png", "safetensors")
# A path has a slash, or is a file of the repository's top directory.
PATHS = re.compile(rf"(?<![\w./<*-])((?:[\w.{{}},<>*-]+/)+(?:[\w.{{}},<>*-]+\.(?:{'|'.join(SUFFIXES)}))?)(?![\w/<*])")
# Folders of runs and deployments, which are not in the repository.
RUNS = (
    "runs/",
    "cells/",
    "split/",
    "state/",
    "ca/",
    "keys/",
    "theory/bounds.png",
    "train/",
    "test/",
    "checkpoints/",
    "client/",
    "sector/",
)
each_page = pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])


def spelled_out(path: str) -> list[str]:
    """`a/{b,c}.py` as `a/b.py` and `a/c.py`."""
    pieces = [piece.strip("{}").split(",") if piece[:1] == "{" else [piece] for piece in re.split(r"(\{[^}]*\})", path)]
    return ["".join(chosen) for chosen in product(*pieces)]


def exists(path: str, page: Path) -> bool:
    """Whether there is such a file or folder in the repository, in the package, or beside the page."""
    bases = (ROOT, ROOT / "src" / "headwater", page.parent)
    pattern = re.sub(r"<[^>]*>", "*", path).rstrip("/")
    return any(any(base.glob(pattern)) for base in bases)


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://")):
            continue
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (heading and heading not in headings(target)):
            broken.append(link)
    assert broken == []


def headings(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ +(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@each_page
def test_files_that_are_mentioned_exist(page: Path) -> None:
    mentioned = re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))
    words = [word for span in mentioned for word in span.split()]
    paths = {path for word in words for path in PATHS.findall(word) if not path.startswith(RUNS)}
    paths = {path for path in paths if path.endswith(SUFFIXES) or path.startswith(("src/", "tests/", "docs/"))}
    assert sorted(one for path in paths for one in spelled_out(path) if not exists(one, page)) == []


@each_page
def test_modules_that_are_mentioned_exist(page: Path) -> None:
    dotted = set(re.findall(r"\bheadwater(?:\.\w+)+", page.read_text(encoding="utf-8")))
    assert sorted(name for name in dotted if not is_defined(name)) == []


def is_defined(name: str) -> bool:
    """Whether a dotted name is a module or something in one."""
    parts, length = name.split("."), 1
    while length < len(parts) and any((ROOT / "src").glob("/".join(parts[: length + 1]) + "*")):
        length += 1
    value: object = importlib.import_module(".".join(parts[:length]))
    for part in parts[length:]:
        value = getattr(value, part, None)
    return value is not None


@each_page
def test_make_targets_that_are_mentioned_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = page.read_text(encoding="utf-8")
    mentioned = set(re.findall(r"`make ([a-z-]+)`", text)) | set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE))
    assert sorted(mentioned - targets) == []


@each_page
def test_configuration_keys_that_are_mentioned_exist(page: Path) -> None:
    from headwater.config import catalog

    known = {key for keys in catalog.every_key().values() for key in keys}
    sections = {key.partition(".")[0] for key in known}
    text = page.read_text(encoding="utf-8")
    used = set(re.findall(r"--set ([a-z_]+\.[a-z_0-9]+)=", text))
    used |= set(re.findall(r"`([a-z_]+\.[a-z_0-9]+)(?: = [^`]*)?`", text))
    files = {key for key in used if key.rpartition(".")[2] in SUFFIXES}
    assert sorted(key for key in used - files if key.partition(".")[0] in sections and key not in known) == []


def test_every_partition_scheme_is_described_in_splits_md() -> None:
    page = (ROOT / "docs" / "splits.md").read_text(encoding="utf-8")
    missing = [name for name in PARTITIONS if f"`{name}`" not in page]
    assert not missing, f"add a row to the table of schemes in docs/splits.md for {', '.join(missing)}"
