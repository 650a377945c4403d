"""Options of the methods that share knowledge which change what moves."""

from __future__ import annotations

from typing import Any

# Through sectors, what goes up depends on who is in which sector: tests/algorithms/test_by_hand_knowledge.py has that.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "fedhkd": [
        {},
        {"algorithm": {"nu": 0.0}},
        {"algorithm": {"nu": 0.4, "sigma": 0.0}},
        {"algorithm": {"nu": 0.0, "noise": "fixed", "pooling": "last"}},
    ],
    "fedhkd-star": [{}, {"algorithm": {"nu": 0.34}}],
    "fedproto": [{}, {"algorithm": {"collect": "during", "by": "uniform"}}, {"algorithm": {"share_params": True}}],
    "fedmd": [
        {},
        {"algorithm": {"align": 5}},
        {"algorithm": {"flavour": "fedhkd"}},
        {"algorithm": {"flavour": "fedhead", "pretrain_epochs": 1}},
        {"algorithm": {"flavour": "fedhead", "pretrain_epochs": 1, "through_sectors": True, "align": 4}},
    ],
}
