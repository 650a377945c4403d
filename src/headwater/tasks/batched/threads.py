"""Helper threads of this process, beside its main thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch


class Helpers:
    """Helper threads.

    A free helper takes work that somebody waits for (`share`) before work that was begun ahead of its use (`begin`).

    Args:
        count: how many.
        threads: threads that each of them uses inside an operation, as every task does.
    """

    def __init__(self, count: int, threads: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, "headwater", _settle, (threads,))
        self._shared: deque[tuple[Future[None], Callable[[], None]]] = deque()
        self._begun: deque[tuple[Future[None], Callable[[], None]]] = deque()

    def begin(self, work: Callable[[], None]) -> Future[None]:
        """Start work on the first free helper, in the order of calls."""
        return self._add(self._begun, work)

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

        futures = [self._add(self._shared, take) for _ in range(min(self.count, len(left) - 1))]
        take()
        for future in futures:
            if not future.cancel():  # a helper that has not begun is not needed any more
                future.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    def _add(self, queue: deque[tuple[Future[None], Callable[[], None]]], work: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()
        queue.append((future, work))
        self._pool.submit(self._next)
        return future

    def _next(self) -> None:
        """Do the work that comes first. There is one call for each that was added."""
        future, work = self._first()
        if not future.set_running_or_notify_cancel():
            return
        try:
            work()
        except BaseException as error:  # as an executor does it: whoever asks for the result gets it
            future.set_exception(error)
        else:
            future.set_result(None)

    def _first(self) -> tuple[Future[None], Callable[[], None]]:
        with suppress(IndexError):
            return self._shared.popleft()
        return self._begun.popleft()


def _settle(threads: int) -> None:
    """Sets the number of threads. Only a thread that has read this number before keeps the one that it sets."""
    torch.get_num_threads()
    torch.set_num_threads(threads)
