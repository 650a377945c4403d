"""Training: from a configuration to a finished run directory."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "Held":  # what version 0.1 called the content of a checkpoint: its unfinished runs can be resumed
        from headwater.training.loop import Saved

        return Saved
    raise AttributeError(f"module 'headwater.training' has no attribute {name!r}")
