"""Speeds of the two kinds of links, and the simulated time to send something over them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Links:
    """Speeds of the links; the defaults are those of `[links]`.

    Args:
        server_sector_mbps: Mbit/s of the server's link, which all of its traffic shares.
        sector_client_mbps: Mbit/s of each sector's link to its clients.
        server_sector_ms: milliseconds of a round trip between server and sectors.
        sector_client_ms: milliseconds of a round trip between a sector and its clients.
    """

    server_sector_mbps: float = 100.0
    sector_client_mbps: float = 20.0
    server_sector_ms: float = 40.0
    sector_client_ms: float = 10.0

    def seconds(self, tier: str, sent: float, trips: float) -> float:
        """Seconds to send so many bytes over one link of a tier, with round trips that all wait for.

        >>> Links().seconds("server_sector", 12_500_000, trips=2)
        1.08
        """
        mbps, ms = (getattr(self, f"{tier}_{unit}") for unit in ("mbps", "ms"))
        return 8e-6 * sent / float(mbps) + trips * float(ms) / 1000
