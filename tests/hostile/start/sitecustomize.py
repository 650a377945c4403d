"""Makes every process hostile that finds this directory first on its path and HEADWATER_HOSTILE=1 in its environment.

Python imports a module of this name as it starts. Nothing is loaded here but what imports take anyway: the hostile
library comes once torch is there.
"""

from __future__ import annotations

import os
import sys

if os.environ.get("HEADWATER_HOSTILE") == "1":
    import importlib.util
    from importlib.abc import Loader, MetaPathFinder
    from pathlib import Path

    LIBRARY = Path(__file__).resolve().parent.parent / "library.py"

    def _library():
        if "hostile_library" not in sys.modules:
            spec = importlib.util.spec_from_file_location("hostile_library", LIBRARY)
            sys.modules["hostile_library"] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        return sys.modules["hostile_library"]

    class _After(Loader):
        """Loads a module as it would have been, and then does something with it."""

        def __init__(self, loader, then):
            self._loader, self._then = loader, then

        def create_module(self, spec):
            return self._loader.create_module(spec)

        def exec_module(self, module):
            module.__spec__.loader = module.__loader__ = self._loader  # as if nobody had been in between
            self._loader.exec_module(module)
            self._then(module)

    class _Watch(MetaPathFinder):
        def __init__(self, awaited):
            self._awaited = awaited

        def find_spec(self, name, path=None, target=None):
            if name not in self._awaited:
                return None
            then = self._awaited.pop(name)
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.loader is not None:
                spec.loader = _After(spec.loader, then)
            return spec

    sys.meta_path.insert(0, _Watch({"torch": lambda module: _library().install()}))
