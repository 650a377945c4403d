"""Cost of the methods that distil at the server."""

from __future__ import annotations

from headwater.theory.traffic import Active, Formula, Link, Options, Payload, Traffic, straight


def _weighed(who: Active, sizes: Payload, options: Options) -> Traffic:
    """One model each way and, where these weigh, every client's label counts."""
    counted = Link(up_bytes=who.clients * sizes.label_counts if options.get("server_weights") == "labels" else 0)
    return straight(who, sizes, options) + Traffic(counted, counted)


FORMULAS: dict[str, Formula] = {
    "feddf": Formula("N, N | N, N", _weighed),
}
