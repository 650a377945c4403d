"""Run directories as a run leaves them, written by hand: small, and close to what real runs look like."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w


@dataclass
class Fake:
    """A made-up run; `write` leaves its directory."""

    method: str = "fedavg"
    label: str = "FedAvg"
    seed: int = 0
    rounds: int = 8
    stop: int | None = None  # killed after so many rounds
    every: int = 1
    clients: int = 10
    sectors: int = 2
    classes: Sequence[str] = tuple("0123456789")
    top: float = 0.9
    pace: float = 0.5
    model_bytes: int = 44_426 * 4
    trips: int = 1  # a round and sector
    distils: bool = False
    at_sectors: bool = True
    at_server: bool = False
    alpha: float = 0.3
    algorithm: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)  # further or other keys

    @property
    def config(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "rounds": self.rounds,
            "eval_every": self.every,
            "data": {"name": "digits", "fraction": 1.0, "validation": 0.1, "reference": "holdout"},
            "partition": {"scheme": "dirichlet", "alpha": self.alpha, "clients": self.clients, "sectors": self.sectors},
            "model": {"name": "cnn"},
            "algorithm": {"name": self.method, **self.algorithm},
            "local": {"epochs": 2, "batch": 32, "lr": 0.1},
            "engine": {"name": "inline", "workers": 1, "threads": 1},
        }

    @property
    def setup(self) -> dict[str, Any]:
        given = 115_200 if self.distils else 0
        none = {"up_bytes": 0, "up_models": 0, "down_models": 0, "round_trips": 7}
        return {"server_sector": {**none, "down_bytes": given}, "sector_client": {**none, "down_bytes": 2 * given}}

    def counts(self) -> list[list[int]]:
        rng = np.random.default_rng(100 + self.seed)
        shares = rng.dirichlet([self.alpha] * self.clients, len(self.classes))
        return [[round(150 * float(shares[c][n])) for c in range(len(self.classes))] for n in range(self.clients)]

    def placed(self) -> list[int]:
        return [int(place) for place in np.random.default_rng(7 + self.seed).permutation(self.clients) % self.sectors]

    def rows(self) -> list[dict[str, Any]]:
        rng = np.random.default_rng([self.seed, *self.method.encode()])
        rows = []
        for at in range(1, (self.stop or self.rounds) + 1):
            noise = float(rng.normal(0, 0.012))
            value = min(1.0, max(0.0, self.top - (self.top - 0.12) * math.exp(-self.pace * (at - 0.6)) + noise))
            measured = at % self.every == 0 or at == self.rounds
            sent = self.model_bytes * self.sectors * self.trips
            near = self.model_bytes * self.clients
            row: dict[str, Any] = {
                "round": at,
                "accuracy": round(value, 4) if measured else None,
                "loss": round(2.3 - 2 * value, 4) if measured else None,
                "seconds": {"train": 0.4, "distill": 0.2 if self.distils else 0.0, "evaluate": 0.05},
                "bytes": {
                    "server_sector": {"up": sent, "down": sent},
                    "sector_client": {"up": near, "down": near},
                },
            }
            if measured:
                spread = np.clip(rng.normal(value, 0.08, self.clients), 0, 1)
                row["client_accuracy"] = {f"c{n}": round(float(each), 4) for n, each in enumerate(spread)}
            if self.distils:
                noted = {"teacher_accuracy": min(1, value + 0.02), "student_before": max(0, value - 0.09)}
                noted["student_after"] = value
                places = [f"s{place}" for place in range(self.sectors)] if self.at_sectors else []
                row["distill"] = dict.fromkeys([*places, *(["server"] if self.at_server else [])], noted)
                row |= noted
            rows.append(row)
        return rows

    def write(self, path: Path) -> Path:
        path.mkdir(parents=True)
        rows, counts = self.rows(), self.counts()
        (path / "config.toml").write_text(tomli_w.dumps(self.config), encoding="utf-8")
        (path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        # Like the real manifest, the hash covers indices and sectors; here counts stand for indices.
        sha = hashlib.sha256(json.dumps([counts, self.placed()]).encode()).hexdigest()
        manifest = {
            "version": 1,
            "sectors": self.placed(),
            "sha256": sha,
            "counts": counts,
            "classes": list(self.classes),
        }
        (path / "partition.json").write_text(json.dumps(manifest), encoding="utf-8")
        if self.stop is None:
            (path / "result.json").write_text(json.dumps(self._result(rows, sha) | self.result), encoding="utf-8")
        return path

    def _result(self, rows: list[dict[str, Any]], sha: str) -> dict[str, Any]:
        seen = [(row["accuracy"], row["round"]) for row in rows if row["accuracy"] is not None]
        final, best = rows[-1]["accuracy"], max(seen)
        size = len(self.classes)
        rng = np.random.default_rng(self.seed)
        confusion = [
            [int(each) for each in rng.multinomial(60, np.full(size, (1 - final) / size) + final * np.eye(size)[r])]
            for r in range(size)
        ]
        ledger = {}
        for tier, ends, trips in (("server_sector", self.sectors, self.trips), ("sector_client", self.clients, 1)):
            moved = {way: sum(row["bytes"][tier][way] for row in rows) for way in ("up", "down")}
            models = ends * trips * len(rows)
            ledger[tier] = {
                "up_bytes": moved["up"],
                "down_bytes": moved["down"],
                "up_models": models,
                "down_models": models,
                "round_trips": models,
            }
        return {
            "algorithm": self.method,
            "label": self.label,
            "seed": self.seed,
            "rounds": self.rounds,
            "accuracy": final,
            "accuracy_ci95": [round(final - 0.015, 4), round(final + 0.013, 4)],
            "best_accuracy": best[0],
            "best_round": best[1],
            "confusion": confusion,
            "client_accuracy": rows[-1]["client_accuracy"],
            "ledger": {**ledger, "setup": self.setup, "moves": [{"purpose": "train", "kind": "model", "count": 3}]},
            "data": "digits",
            "model": "cnn",
            "clients": self.clients,
            "sectors": self.sectors,
            "seconds": sum(sum(row["seconds"].values()) for row in rows),
            "partition_sha256": sha,
            "model_sha256": hashlib.sha256(f"{self.method}{self.seed}".encode()).hexdigest(),
            "versions": {"headwater": "0.1.0", "torch": "2.13.0"},
        }


FOUR = (
    {"method": "fedavg", "label": "FedAvg", "top": 0.86, "pace": 0.25},
    {
        "method": "feddf",
        "label": "FedDF",
        "top": 0.89,
        "pace": 0.4,
        "trips": 5,
        "distils": True,
        "at_sectors": False,
        "at_server": True,
    },
    {"method": "fedhead", "label": "FedHEAD", "top": 0.92, "pace": 0.5, "trips": 2, "distils": True},
    {
        "method": "fedhead+",
        "label": "FedHEAD+",
        "top": 0.935,
        "pace": 0.55,
        "trips": 2,
        "distils": True,
        "at_server": True,
    },
)


def write_comparison(
    out: Path, seeds: Sequence[int] = (0, 1, 2), methods: Sequence[dict[str, Any]] = FOUR, **common: Any
) -> Path:
    """OUT/<method>/seed-<n>/, as `headwater compare` leaves it."""
    for method in methods:
        for seed in seeds:
            Fake(seed=seed, **{**common, **method}).write(out / method["method"] / f"seed-{seed}")
    return out


@pytest.fixture
def fake() -> type[Fake]:
    return Fake


@pytest.fixture
def comparison() -> Callable[..., Path]:
    return write_comparison
