"""How often something happens, so that who waits for it asks neither too often nor too late."""

from __future__ import annotations

import time
from collections.abc import Callable

NEWEST = 0.2  # share of the newest interval in the mean
SHORTEST, LONGEST = 0.01, 0.1  # seconds between two questions


class Pace:
    """The mean time between two events, of the last few.

    Args:
        clock: Returns seconds.

    Example:
        >>> times = iter([0.0, 0.04, 0.08])
        >>> pace = Pace(lambda: next(times))
        >>> for _ in range(3): pace.note()
        >>> pace.wait(0.5)
        0.02
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None
        self._interval: float | None = None

    def note(self) -> None:
        """Note an event."""
        now = self._clock()
        if self._last is not None:
            interval, before = now - self._last, self._interval
            self._interval = interval if before is None else before + NEWEST * (interval - before)
        self._last = now

    def wait(self, intervals: float) -> float:
        """Return the seconds of so many intervals, within what is sensible."""
        return min(max((self._interval or 0.0) * intervals, SHORTEST), LONGEST)
