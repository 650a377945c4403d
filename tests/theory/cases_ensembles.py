"""Options of the methods with several models that change what moves."""

from __future__ import annotations

from typing import Any

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "fedeed": [
        {},
        {"algorithm": {"through_sectors": True}},
        {"algorithm": {"through_sectors": True, "cohorts": 2, "remainder": "main"}},
        {"algorithm": {"ensemble": "clients_multi", "cohorts": 2}},
        {"server": {"weights": "labels", "mix": "probs"}},
        {"server": {"weights": "labels", "mix": "probs"}, "algorithm": {"through_sectors": True, "kept": 2}},
    ],
    "fed-ensemble": [{}, {"algorithm": {"through_sectors": True, "cohorts": 3}}],
    "frame": [
        {},
        {"algorithm": {"ensemble": "none", "consolidate": "none"}},
        {"algorithm": {"ensemble": "clients_multi", "cohorts": 2, "local": "moon", "consolidate": "basic"}},
        {"algorithm": {"local": "scaffold"}, "local": {"optimizer": "sgd"}},
        {"algorithm": {"ensemble": "sector", "consolidate": "leaders+server"}, "sector": {"weights": "labels"}},
        {"algorithm": {"ensemble": "sector", "consolidate": "leaders", "local": "scaffold", "val_source": "leader"}}
        | {"local": {"optimizer": "sgd"}},
        {"server": {"weights": "labels"}},
        {"algorithm": {"ensemble": "aggregated", "cohorts": 2, "through_sectors": True}},
        {"algorithm": {"ensemble": "none", "consolidate": "none", "local": "scaffold", "through_sectors": True}}
        | {"local": {"optimizer": "sgd"}},
        {"algorithm": {"ensemble": "aggregated", "cohorts": 2, "through_sectors": True}}
        | {"server": {"weights": "labels", "mix": "probs"}},
    ],
    "fedbe": [{}, {"algorithm": {"sampler": "dirichlet", "samples": 2}}],
}
