"""`headwater deploy watch`: the live page of the folders on this machine, to this machine only."""

from __future__ import annotations

from pathlib import Path

from headwater.deploy import live_page, overview
from headwater.report.live import LivePage, Part


class PageServer(LivePage):
    """Serves the page of a directory on loopback.

    Args:
        directory: a party's folder, or a directory of several.
        port: to listen at; 0 for any free one.

    Raises:
        ConfigError: if the port cannot be used.
    """

    def __init__(self, directory: Path, port: int = 0) -> None:
        parts: dict[str, Part] = {
            "": lambda nonce: live_page.page(overview.read(directory), nonce),
            "content": lambda _: live_page.content(overview.read(directory)),
        }
        super().__init__(parts, live_page.policy, port, "deploy watch")
