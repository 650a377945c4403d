"""Pickled arrays, read without running anything that a pickle may ask for."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np


def read_pickle(raw: bytes) -> Any:
    """What was pickled, if it is made of arrays and plain values. Text of Python 2 comes as bytes."""
    return _ArraysOnly(io.BytesIO(raw), encoding="bytes").load()


class _ArraysOnly(pickle.Unpickler):
    """Unpickles arrays and plain values; anything else could run code and is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np.empty(0).__reduce__()[0]
        if name == "_frombuffer" and module in ("numpy.core.numeric", "numpy._core.numeric"):  # protocol 5
            return _from_buffer
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            return lambda text, encoding: text.encode(encoding)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in an image file")


def _from_buffer(buffer: Any, dtype: Any, shape: Any, order: Any) -> Any:
    return np.frombuffer(buffer, dtype=dtype).reshape(shape, order=order)
