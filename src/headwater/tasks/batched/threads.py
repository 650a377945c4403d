"""Threads of this process, beside the one that leads a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch


class Helpers:
    """So many threads, each of which computes an operation on `threads` threads, as every task does."""

    def __init__(self, count: int, threads: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, "headwater", _settle, (threads,))

    def begin(self, work: Callable[[], None]) -> Future[None]:
        """Have something done by whoever is free first; what was begun earlier is taken up earlier."""
        return self._pool.submit(work)

    def share(self, work: Callable[[Any], None], pieces: Iterable[Any]) -> None:
        """Have pieces of work done that do not depend on each other, by this thread and by helpers that are free."""
        left = deque(pieces)

        def take() -> None:
            while left:
                try:
                    piece = left.popleft()
                except IndexError:  # somebody else was faster
                    return
                work(piece)

        asked = [self._pool.submit(take) for _ in range(min(self.count, len(left) - 1))]
        take()
        for each in asked:
            if not each.cancel():  # who is busy with something else need not come any more
                each.result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _settle(threads: int) -> None:
    """What a helper does first. Only a thread that has asked for the number of its threads keeps the one it sets."""
    torch.get_num_threads()
    torch.set_num_threads(threads)
