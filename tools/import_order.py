"""Keep the layers apart: a package may import what stands below it, never what stands above.

`python tools/import_order.py` reads the imports of every module (those for type checking only do not count) and
names each that points upwards.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "headwater"

# From the ground up; the modules of one line may import each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "numerics", "records", "registry", "rng", "specs", "startup", "strict"),
    ("topology", "partition", "data", "models", "params", "theory"),
    ("codecs", "ledger", "metrics"),
    ("stages",),
    ("engines",),
    ("located", "fanout", "view", "federation"),
    ("algorithms",),
    ("config", "presets", "checkpoint"),
    ("experiment", "evaluation", "rundir"),
    ("report",),
    ("fallback", "outcome", "planning", "progress", "training"),
    ("api", "cells", "deploy"),
    ("papers",),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# `theory` says what should have happened, so it may not see what did; `report` reads files and never a live run.
MAY_ONLY = {
    "theory": {"theory", "topology", "errors", "rng"},
    "report": {"report", "errors", "metrics", "rng", "partition", "registry"},
}


def imports_of(path: Path) -> list[tuple[int, str]]:
    """(line, second part of the dotted name) of every import of this package that runs."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = {
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
        for node in ast.walk(branch)
    }
    found = []
    for node in ast.walk(tree):
        if node in hidden:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "headwater":
            parts = node.module.split(".")
            names = [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
            found += [(node.lineno, name) for name in names]
        elif isinstance(node, ast.Import):
            parts_of = [alias.name.split(".") for alias in node.names]
            found += [(node.lineno, parts[1]) for parts in parts_of if parts[0] == "headwater" and len(parts) > 1]
    return found


def main() -> int:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        own = path.relative_to(SOURCE).with_suffix("").parts[0]
        if own == "__init__":
            continue
        if own not in LEVEL and own not in MAY_ONLY:
            wrong.append(f"{path.name}: package {own!r} has no layer; give it one in tools/import_order.py")
            continue
        for line, other in imports_of(path):
            if other not in MAY_ONLY[own] if own in MAY_ONLY else LEVEL.get(other, -1) > LEVEL[own]:
                wrong.append(f"{path.relative_to(SOURCE)}:{line}: {own} must not import {other}")
    print("\n".join(wrong) if wrong else "import order: clean")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
