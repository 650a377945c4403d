"""Options of the correcting methods that change what moves; test_communication.py runs each in every tree."""

from __future__ import annotations

from typing import Any

THROUGH: dict[str, Any] = {"algorithm": {"through_sectors": True}}
MTGC: list[dict[str, Any]] = [
    {},
    {"sector_rounds": 3},
    {"z_init": "gradient"},
    {"z_init": "stochastic"},
    {"z_init": "gradient", "use_z": False},
    {"z_init": "gradient", "use_y": False},
    {"use_z": False, "sector_rounds": 3},
    {"leader": "rotating", "sector_rounds": 3},
    {"leader": "fixed", "z_init": "gradient"},
    {"leader": "random", "use_y": False},
    {"sample": "sector-round", "sector_rounds": 3},
    {"sample": "sector-round", "z_init": "gradient"},
]
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "fedprox": [{}, THROUGH],
    "fedavgm": [{}, THROUGH],
    "fednova": [{}, THROUGH],
    "feddyn": [{}, THROUGH],
    "scaffold": [{}, THROUGH, {"algorithm": {"variates": "gradient"}}, {"algorithm": {"reconstruct": True}}],
    "mtgc": [{"algorithm": options} for options in MTGC],
    "hfedprox": [{}, {"algorithm": {"sector_rounds": 3}}],
    "hscaffold": [{}, {"algorithm": {"sector_rounds": 3, "keep": False}}],
    "hfeddyn": [{}, {"algorithm": {"sector_rounds": 1}}],
}
