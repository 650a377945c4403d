"""The section about the speeds of links."""

from __future__ import annotations

from headwater.config.section import Section
from headwater.core.links import Links
from headwater.specs import NotNegative, Positive


class LinksConfig(Section):
    """Speeds of the links, for simulated time in reports and in `headwater plan`. Never changes a result.

    Args:
        server_sector_mbps: Mbit/s of the server's link, which all of its traffic shares.
        sector_client_mbps: Mbit/s of each sector's link to its clients.
        server_sector_ms: milliseconds of a round trip between server and sectors.
        sector_client_ms: milliseconds of a round trip between a sector and its clients.
    """

    server_sector_mbps: Positive = Links.server_sector_mbps
    sector_client_mbps: Positive = Links.sector_client_mbps
    server_sector_ms: NotNegative = Links.server_sector_ms
    sector_client_ms: NotNegative = Links.sector_client_ms
