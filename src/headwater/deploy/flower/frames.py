"""What a party's process and its Flower processes say to each other, over pairs of sockets that nobody else holds."""

from __future__ import annotations

import json
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

from headwater.deploy.message import Message, Part

LENGTH = struct.Struct(">Q")


class Pipe:
    """One end. Frames are a length, JSON, and the bytes of the parts that the JSON tells of."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._reader = end.makefile("rb")
        self._lock = threading.Lock()

    def write(self, frame: dict[str, Any], message: Message | None = None) -> None:
        """Waits until all is on its way; OSError if the other end is gone."""
        parts: tuple[Part, ...] = ()
        if message is not None:
            parts = message.parts
            frame = frame | {"head": message.head, "parts": [[p.dtype, p.shape, len(p.data)] for p in parts]}
        text = json.dumps(frame).encode()
        with self._lock:
            self.end.sendall(LENGTH.pack(len(text)) + text)
            for part in parts:
                self.end.sendall(part.data)

    def read(self) -> tuple[dict[str, Any], Message | None]:
        """The next frame. Waits; EOFError once the other end is gone."""
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        frame = json.loads(self._exactly(length))
        if "parts" not in frame:
            return frame, None
        parts = tuple(Part(dtype, tuple(shape), self._exactly(size)) for dtype, shape, size in frame.pop("parts"))
        return frame, Message(frame.pop("head"), parts)

    def _exactly(self, size: int) -> bytes:
        data = b""
        with suppress(OSError, ValueError):  # it was closed here
            data = self._reader.read(size)
        if len(data) < size:
            self._reader.close()
            raise EOFError
        return data

    def close(self) -> None:
        """Also ends a `read` that waits in another thread."""
        with suppress(OSError):
            self.end.shutdown(socket.SHUT_RDWR)
        self.end.close()
