"""Settings of secure sums, from `[privacy]`: from whom single values are hidden."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headwater.specs import SecureMode

FEWEST = 2  # a sum of one value is that value
AT_LEADER = 3  # a leader knows its own value, so a sum of two would reveal the other one to it


@dataclass(frozen=True)
class SecureSums:
    """From whom single values are hidden.

    Args:
        mode: "sectors": from sectors' hosts and leaders; "server": from the server; "both"; "none".
        share: share of the members of a sum that must remain until its end.
        range: largest absolute value of a parameter.
        masks: whether a simulation really masks. Without, it sums the same integers and sends as many bytes.
        noise_at: who adds noise to updates or means of them; empty: nobody.
    """

    mode: SecureMode = "none"
    share: float = 0.6
    range: float = 65536.0
    masks: bool = True
    noise_at: str = ""

    @property
    def on(self) -> bool:
        return self.mode != "none"

    def masks_up(self, upper: str) -> bool:
        """Whether values that go up to this role are only to be seen as a sum.

        Args:
            upper: role of the receiver: sector, leader or server.
        """
        return self.mode == "both" or self.mode == ("server" if upper == "server" else "sectors")

    def seals(self, lower: str, upper: str) -> bool:
        """Whether values are sealed for the server, so that the host that relays them cannot read them."""
        return self.mode == "sectors" and (lower, upper) == ("client", "server")

    def threshold(self, members: int) -> int:
        """How many members of a sum must remain until its end.

        >>> [SecureSums().threshold(members) for members in (2, 3, 4, 5, 10)]
        [2, 2, 3, 3, 6]
        """
        return max(FEWEST, math.ceil(self.share * members - 1e-9))

    def exponent(self, weight: float) -> int:
        """The step of the fixed point is 2 to the power of minus this.

        A sum of values up to `range`, times weights that add up to at most `weight`, stays within 62 bits.

        >>> SecureSums(range=65536.0).exponent(1024)
        36
        """
        return 62 - math.ceil(math.log2(self.range * max(1.0, weight)))
