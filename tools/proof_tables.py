"""Tables of docs/trust.md from the result files in proof/, and that of the costs in docs/secure.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PROOF = Path(__file__).parent.parent / "proof"
BENCHMARKS = PROOF.parent / "benchmarks"
BAD = ("foreign", "sentence", "hang", "memory", "died")


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    head = [*headings]
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |".replace("  |", " |") for line in lines)


def _read(name: str, folder: Path = PROOF) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return found


def _number(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ")


def fuzz() -> str:
    """A row for each kind of input."""
    head = (
        "what is read",
        "cases",
        "taken",
        "refused",
        "other errors",
        "hangs",
        "too much memory",
        "crashes",
        "commit",
    )
    rows = []
    for name, found in _read("fuzz.json")["targets"].items():
        counts = [found["cases"], found["accepted"], found["refused"], found["foreign"] + found["sentence"]]
        counts += [found["hang"], found["memory"], found["died"]]
        rows.append((f"{found['what']} (`{name}`)", *map(_number, counts), found["commit"]))
    return table(head, rows)


def kills() -> str:
    """A row for each command, and their sum."""
    found = _read("kills.json")
    works = {f"`{name}`": told for name, told in found["works"].items()} | {"together": found["total"]}
    rows = ((name, *(_number(told[key]) for key in ("kills", "began", "same"))) for name, told in works.items())
    return table(("command", "kills", "times begun", "ended with the undisturbed result"), rows)


def endurance() -> str:
    """A row for each engine and round that was measured."""
    rows = []
    for engine, told in _read("endurance.json")["engines"].items():
        for row in told["rows"]:
            rows.append((f"`{engine}`", _number(row["round"]), f"{row['mib']:.1f}", str(row["files"])))
    return table(("engine", "after round", "memory of all processes (MiB)", "open files"), rows)


def stateful() -> str:
    """A row for each state machine: what was done to messages, and whether all held."""
    kinds = ("lost", "doubled", "reordered", "damaged", "false reports", "deadlines passed", "clients restarted")
    rows = []
    for told in _read("stateful.json")["machines"].values():
        done = [_number(told["done"][kind]) if kind in told["done"] else "" for kind in kinds]
        counts = _number(told["cases"]), _number(told["steps"])
        rows.append((told["what"], *counts, *done, str(len(told["findings"])), told["commit"]))
    return table(("what is tried", "cases", "steps", *kinds, "did not hold", "commit"), rows)


def secure_costs() -> str:
    """A row for each method and number of clients: multiples of what a round takes without secure sums."""
    rows = []
    for row in _read("secure_costs.json", BENCHMARKS)["rows"]:
        none, both = (row["bytes"][mode] for mode in ("none", "both"))
        links = [(tier, way) for tier in ("sector_client", "server_sector") for way in ("up", "down")]
        sent = [f"{both[tier][way] / none[tier][way]:.2f}" for tier, way in links]
        rows.append((f"`{row['method']}`", str(row["clients"]), *sent, f"{row['cpu_ratio']:.1f}"))
    return table(("method", "clients", "client up", "client down", "server up", "server down", "CPU time"), rows)
