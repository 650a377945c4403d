"""Link speeds that the page starts from: those of the first run's `[links]`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from headwater.core.links import Links
from headwater.report.grouping import MethodRuns
from headwater.report.numbers import number
from headwater.report.runs import RunRecord

INPUTS = {  # name of the page's input → key of [links]
    "far": "server_sector_mbps",
    "near": "sector_client_mbps",
    "far_ms": "server_sector_ms",
    "near_ms": "sector_client_ms",
}


def of_run(run: RunRecord) -> Links:
    """The speeds of a run; defaults where its configuration has none."""
    section = run.config.get("links")
    speeds = section if isinstance(section, dict) else {}
    return Links(**{key: value for key in asdict(Links()) if (value := number(speeds.get(key))) is not None})


def start(groups: Sequence[MethodRuns]) -> dict[str, Any]:
    """Values of the page's inputs, and a sentence that says where they come from."""
    every = list(dict.fromkeys(of_run(run) for each in groups for run in each.runs))
    first = every[0] if every else Links()
    sentence = (
        f"The link speeds above start from [links] of the configuration: {first.server_sector_mbps:g} Mbit/s and "
        f"{first.server_sector_ms:g} ms a round trip at the server, {first.sector_client_mbps:g} Mbit/s and "
        f"{first.sector_client_ms:g} ms at a sector"
    )
    sentence += " (the first run's; others have different ones)." if len(every) > 1 else "."
    return {name: float(getattr(first, key)) for name, key in INPUTS.items()} | {"words": sentence}
