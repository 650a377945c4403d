"""Options of the methods that distil which change what moves, for test_communication."""

from __future__ import annotations

from typing import Any

BY_LABELS = {"weights": "labels", "mix": "probs"}

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "feddf": [{}, {"server": BY_LABELS}, {"algorithm": {"swag": 2, "skip_inactive": True}}],
    "fedhead": [{}, {"sector": BY_LABELS}, {"algorithm": {"val_source": "leader"}}],
    "fedhead+": [
        {},
        {"sector": BY_LABELS},
        {"server": BY_LABELS},
        {"sector": BY_LABELS, "server": BY_LABELS},
        {"algorithm": {"server_teacher": "pre_sync"}},
    ],
}
