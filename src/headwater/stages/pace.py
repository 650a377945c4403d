"""How many threads to work with, where their number changes nothing but the time."""

from __future__ import annotations


class Pace:
    """Whether several threads are faster than few just now. Where other processes want the cores they are far slower,
    since each product waits for all of them; so both are tried from time to time, the worse one ever more rarely."""

    def __init__(self) -> None:
        self.threads = (1, 1)  # few, several
        self._seconds: list[float | None] = [None, None]  # for one member's step, of late
        self._since, self._pause = 0, 8  # the very first steps say little: threads and caches are cold

    @property
    def better(self) -> int:
        """What is known to be better so far: 0 for few threads, 1 for several."""
        few, several = self._seconds
        return int(few is not None and several is not None and several < few)

    def choose(self) -> int:
        """0 for few threads, 1 for several."""
        few, several = self._seconds
        if self.threads[0] == self.threads[1]:
            return 0
        if several is None or few is None:
            return 1 if several is None else 0
        self._since += 1
        return 1 - self.better if self._since >= self._pause else self.better

    def took(self, which: int, seconds: float) -> None:
        before, other = self._seconds[which], self._seconds[1 - which]
        # What took long may have been disturbed once; what took little was not.
        self._seconds[which] = seconds if before is None else min(seconds, before + (seconds - before) / 8)
        if self._since >= self._pause:  # this was a trial
            self._pause = 16 if other is None or seconds < other else min(2048, 2 * self._pause)
            self._since = 0
