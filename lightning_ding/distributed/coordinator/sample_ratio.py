"""The balance between collecting and learning: which of them waits, and for how long.

The balance is ``samples_per_insert * inserted - sampled``, in transitions; the transitions of the warm-up do not count.
Learning waits while the requested round would make the balance fall below minus ``tolerance`` rounds, collecting while
the balance exceeds ``tolerance`` rounds. Collecting never waits while learning waits for any reason, so they cannot
wait for each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class SampleRatio:
    """Counts inserted and sampled transitions, and decides which side has to wait.

    Args:
        samples_per_insert: Ratio of sampled to inserted transitions, > 0.
        warm_up: Transitions to insert before the first round, >= 0.
        tolerance: Rounds by which one side may be ahead of the other, > 0.
        round_size: Transitions of a round, >= 1; replaced by the size of the newest round.

    Example:
        >>> ratio = SampleRatio(samples_per_insert=2.0, warm_up=10, tolerance=1.0, round_size=8)
        >>> ratio.insert(12)
        >>> ratio.may_sample(), ratio.balance  # two of the twelve are after the warm-up
        (True, 4.0)
        >>> ratio.sample(8)
        >>> ratio.may_sample()
        False
    """

    def __init__(self, samples_per_insert: float, warm_up: int, tolerance: float, round_size: int) -> None:
        self.samples_per_insert = samples_per_insert
        self.warm_up = warm_up
        self.tolerance = tolerance
        self.round_size = round_size
        self.inserted = 0
        self.sampled = 0

    @property
    def balance(self) -> float:
        """Transitions that learning has yet to sample to keep the ratio; negative if it has sampled more."""
        return self.samples_per_insert * max(0, self.inserted - self.warm_up) - self.sampled

    @property
    def so_far(self) -> float:
        """Ratio of sampled to inserted transitions since the warm-up; 0 during the warm-up."""
        counted = self.inserted - self.warm_up
        return self.sampled / counted if counted > 0 else 0.0

    def may_sample(self) -> bool:
        """Return whether the warm-up is over and the learner may draw one more round."""
        within = self.round_size - self.balance <= self.tolerance * self.round_size
        return self.inserted >= self.warm_up and within

    def may_insert(self, learner_waits: bool, pending: int = 0) -> bool:
        """Return whether learning has kept pace with collecting, or is waiting itself.

        Args:
            learner_waits: Whether the learner waits for more or newer data, regardless of the ratio.
            pending: Transitions that will be inserted first.
        """
        balance = self.balance + self.samples_per_insert * pending
        return learner_waits or not self.may_sample() or balance <= self.tolerance * self.round_size

    def insert(self, amount: int) -> None:
        """Count inserted transitions."""
        self.inserted += amount

    def sample(self, amount: int) -> None:
        """Count sampled transitions."""
        self.sampled += amount

    def state_dict(self) -> dict[str, int]:
        """Return the counts."""
        return {"inserted": self.inserted, "sampled": self.sampled}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the state that ``state_dict`` returned."""
        self.inserted, self.sampled = state["inserted"], state["sampled"]


NEWEST = 0.2  # weight of the newest interval in the mean
SHORTEST, LONGEST = 0.01, 0.1  # seconds between two requests


class PollInterval:
    """The pause between two requests, from the mean time between recent events.

    Args:
        clock: Function that returns the time in seconds.

    Example:
        >>> times = iter([0.0, 0.04, 0.08])
        >>> interval = PollInterval(lambda: next(times))
        >>> for _ in range(3): interval.note()
        >>> interval.wait(0.5)
        0.02
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None
        self._interval: float | None = None

    def note(self) -> None:
        """Record an event."""
        now = self._clock()
        if self._last is not None:
            interval, before = now - self._last, self._interval
            self._interval = interval if before is None else before + NEWEST * (interval - before)
        self._last = now

    def wait(self, intervals: float) -> float:
        """Return the length of a number of intervals in seconds, limited to [0.01, 0.1]."""
        return min(max((self._interval or 0.0) * intervals, SHORTEST), LONGEST)
