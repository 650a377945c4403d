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
    (
        "callbacks",
        "errors",
        "registry",
        "secure",
        "specs",
        "startup",
        "core.links",
        "core.numerics",
        "core.records",
        "core.rng",
        "core.statistics",
    ),
    (
        "core.lazy_clients",
        "core.one_bit",
        "core.params",
        "core.sampling",
        "core.sectors",
        "core.tree",
        "data",
        "models",
        "partition",
        "theory",
    ),
    ("core.ledger", "core.sealed", "core.serialization"),
    ("tasks",),
    ("engines",),
    ("core",),
    ("algorithms",),
    ("config", "presets"),
    ("inference",),
    (
        "training.architectures",
        "training.checkpoint",
        "training.evaluation",
        "training.experiment",
        "training.run_directory",
        "training.run_lock",
        "training.warm_start",
    ),
    ("report",),
    ("planning", "training"),
    ("api", "audit", "deploy", "sweep"),
    ("papers", "starter"),
    ("cli", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# `theory` says what should have happened, so it may not see what did; `report` reads files and never a live run.
MAY_ONLY = {
    "theory": ("theory", "core.tree", "core.lazy_clients", "core.sampling", "errors", "core.rng"),
    "report": (
        "report",
        "errors",
        "core.links",
        "core.statistics",
        "core.records",
        "core.rng",
        "partition",
        "registry",
    ),
}


def entry_of(module: str) -> str | None:
    """The entry of `LAYERS` that a module belongs to: its own, else that of the nearest package."""
    parts = module.split(".")
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((name for name in names if name in LEVEL), None)


def imports_of(path: Path) -> list[tuple[int, str]]:
    """Line and module, without the package's own name, of every import of this package that runs."""
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
            package = SOURCE.joinpath(*node.module.split(".")[1:])
            for alias in node.names:  # `from headwater.core import rng` names a module, too
                inside = package / alias.name
                named = f"{node.module}.{alias.name}" if inside.with_suffix(".py").exists() else node.module
                found.append((node.lineno, named.partition(".")[2] or alias.name))
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("headwater.")]
            found += [(node.lineno, name.partition(".")[2]) for name in names]
    return found


def main() -> int:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if not module:
            continue
        own, allowed = entry_of(module), MAY_ONLY.get(parts[0])
        if own is None:
            wrong.append(f"{path.name}: {module!r} has no layer; give it one in tools/import_order.py")
            continue
        for line, other in imports_of(path):
            if allowed is not None:
                fine = any(other == name or other.startswith(f"{name}.") for name in allowed)
            else:
                fine = LEVEL.get(entry_of(other) or "", -1) <= LEVEL[own]
            if not fine:
                wrong.append(f"{path.relative_to(SOURCE)}:{line}: {module} must not import {other}")
    print("\n".join(wrong) if wrong else "import order: clean")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
