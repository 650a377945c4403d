"""Extension of griffe, which reads the sources for the API reference: what it does not know about this package."""

from __future__ import annotations

from typing import Any

import griffe

PYDANTIC, PLAIN = "pydantic.dataclasses.dataclass", "dataclasses.dataclass"


class Docstrings(griffe.Extension):
    """Examples are headed `Example:`, and pydantic's dataclasses have arguments like others."""

    def on_object(self, *, obj: griffe.Object, **options: Any) -> None:
        """Rename the heading to the one that griffe shows as code."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n    >>>", "\nExamples:\n    >>>")

    def on_module_members(self, *, mod: griffe.Module, **options: Any) -> None:
        """Take pydantic's decorator for the standard one, so that fields become arguments."""
        if mod.imports.get("dataclass") == PYDANTIC:
            mod.imports["dataclass"] = PLAIN
            mod.set_member("dataclass", griffe.Alias("dataclass", PLAIN, parent=mod))
