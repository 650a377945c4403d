"""Orders that wait for a worker only, first come first served among those whose home is there."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable

from headwater.engines.base import Job
from headwater.engines.orders import Order
from headwater.engines.presence import Presence


class Queue:
    """Not safe for threads by itself: whoever uses it holds a lock. `ring` is called when a client has come."""

    def __init__(self, presence: Presence | None, ring: Callable[[], None]) -> None:
        self._presence, self._ring = presence, ring
        self._orders: list[Order] = []  # a heap
        self._alarm: threading.Timer | None = None

    def __len__(self) -> int:
        return len(self._orders)

    def push(self, order: Order) -> None:
        heapq.heappush(self._orders, order)

    def pop(self, fits: Callable[[Order], bool] | None = None) -> Order | None:
        """The first that may begin now, of those that fit; where there are only others, an alarm is set for the next.

        One that does not fit waits without an alarm.
        """
        away: list[tuple[float, Order]] = []
        other: list[Order] = []
        found = None
        while self._orders and found is None:
            order = heapq.heappop(self._orders)
            if fits is not None and not fits(order):
                other.append(order)
            elif seconds := self._seconds(order):
                away.append((seconds, order))
            else:
                found = order
        for order in (*other, *(order for _, order in away)):
            heapq.heappush(self._orders, order)
        if found is None and away:
            self.silence()
            self._alarm = threading.Timer(min(seconds for seconds, _ in away), self._ring)
            self._alarm.daemon = True
            self._alarm.start()
        return found

    def _seconds(self, order: Order) -> float:
        """Until it may begin. The clients of a group need not be there at the same time: each has to have come."""
        waits = [self._wait(job) for job in order.jobs if not job.lost]
        if len(order.jobs) == 1 or not waits:
            return max(waits, default=0.0)
        if order.due is None:
            order.due = time.monotonic() + max(waits)
        return max(0.0, order.due - time.monotonic())

    def _wait(self, job: Job) -> float:
        return 0.0 if self._presence is None else self._presence.wait(job)

    def clear(self) -> None:
        self._orders.clear()
        self.silence()

    def silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None
