"""Helper threads of this process, beside its main thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch


class Helpers:
    """Helper threads.

    Args:
        count: how many.
        threads: threads that each of them uses inside an operation, as every task does.
    """

    def __init__(self, count: int, threads: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, "headwater", _settle, (threads,))

    def begin(self, work: Callable[[], None]) -> Future[None]:
        """Start work on the first free helper, in the order of calls."""
        return self._pool.submit(work)

    def share(self, work: Callable[[Any], None], pieces: Iterable[Any]) -> None:
        """Do independent pieces of work in this thread and in free helpers. Waits.

        Args:
            work: does one piece.
            pieces: what `work` is called with.
        """
        left = deque(pieces)

        def take() -> None:
            while left:
                try:
                    piece = left.popleft()
                except IndexError:  # another thread was faster
                    return
                work(piece)

        futures = [self._pool.submit(take) for _ in range(min(self.count, len(left) - 1))]
        take()
        for future in futures:
            if not future.cancel():  # a helper that has not begun is not needed any more
                future.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)


def _settle(threads: int) -> None:
    """Sets the number of threads. Only a thread that has read this number before keeps the one that it sets."""
    torch.get_num_threads()
    torch.set_num_threads(threads)
