"""Options of the methods that work on the network itself, as far as they change what moves."""

from typing import Any

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "moon": [{}, {"algorithm": {"through_sectors": True, "remembered": 2}}],
    "fedalign": [{}, {"algorithm": {"through_sectors": True}}],
    "fedma": [{}, {"algorithm": {"spare": 0.5}}],
    "fedgen": [{"algorithm": {"gen_epochs": 2, "gen_hidden": 6}}],
}
