"""What a task gave in all."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

LATEST = 1000  # returns that are kept one by one; a task may go on for weeks


class Tally:
    """Counts episodes, steps and transitions of a task, in bounded memory."""

    def __init__(self) -> None:
        self.episode = 0
        self.step = 0
        self.sample = 0
        self._returns: deque[float] = deque(maxlen=LATEST)
        self._mean = 0.0
        self._squares = 0.0  # sum of squared distances from the mean (Welford 1962)

    def add_episodes(self, returns: Sequence[float]) -> None:
        """Count episodes that ended."""
        for value in returns:
            self.episode += 1
            distance = value - self._mean
            self._mean += distance / self.episode
            self._squares += distance * (value - self._mean)
        self._returns.extend(returns)

    def summary(self, seconds: float) -> dict[str, Any]:
        """Return counts, averages for each episode, and mean and standard deviation of the returns.

        Args:
            seconds: That the task took.

        Returns:
            Builtins; what cannot be said without an episode is None.
        """
        episodes = max(1, self.episode)
        known = self.episode > 0
        return {
            "real_episode_count": self.episode,
            "step_count": self.step,
            "sample_count": self.sample,
            "avg_time_per_episode": seconds / episodes,
            "avg_step_per_episode": self.step / episodes,
            "avg_sample_per_episode": self.sample / episodes,
            "reward_mean": self._mean if known else None,
            "reward_std": math.sqrt(self._squares / self.episode) if known else None,
            "reward_raw": list(self._returns),
        }
