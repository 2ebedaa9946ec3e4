"""What a collector that is used by hand says from time to time of its work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lightning_ding.worker.log import WorkerLog


class CollectReport:
    """Adds up an interval of collecting and writes it to a log every so many updates.

    Everything but the totals is of one interval: from the last report to this one.

    Args:
        log: Where to write; if nobody reads it, ``is_on`` is false and there is no need to add anything up.
        freq: Updates between two reports, >= 1; a report also waits until an episode has ended.

    Example:
        >>> report = CollectReport(WorkerLog(), freq=100)
        >>> report.add(seconds=2.0, envstep=10, sample=10, lengths=[4, 6], returns={"return": [1.0, 3.0]})
        >>> values = report.values()
        >>> values["return_mean"], values["avg_envstep_per_episode"], values["avg_envstep_per_sec"]
        (2.0, 5.0, 5.0)
    """

    def __init__(self, log: WorkerLog, freq: int) -> None:
        self.log = log
        self.freq = freq
        self.reset()

    @property
    def is_on(self) -> bool:
        """Whether anybody reads the reports."""
        return self.log.is_listened_to

    def reset(self) -> None:
        """Forget everything; the next report is due after ``freq`` updates from zero."""
        self._last_train_iter = 0
        self._begin_interval()

    def _begin_interval(self) -> None:
        self._seconds = 0.0
        self._envstep = 0
        self._sample = 0
        self._lengths: list[int] = []
        self._returns: dict[str, list[float]] = {}

    def add(
        self,
        seconds: float,
        envstep: int,
        sample: int,
        lengths: Sequence[int],
        returns: Mapping[str, Sequence[float]],
    ) -> None:
        """Add what one call of a collector did.

        Args:
            seconds: How long it took.
            envstep: Env steps it took.
            sample: Transitions it handed over.
            lengths: Env steps of the episodes that ended.
            returns: Their returns by name, ``return``, or one name for each player.
        """
        self._seconds += seconds
        self._envstep += envstep
        self._sample += sample
        self._lengths += lengths
        for name, values in returns.items():
            self._returns.setdefault(name, []).extend(values)

    def write_if_due(self, train_iter: int, totals: Mapping[str, int]) -> None:
        """Write the interval and begin the next one, if it is time.

        Args:
            train_iter: Updates done so far.
            totals: Counts since the collector's last reset, with ``envstep``; written as ``total_<name>_count``.
        """
        if train_iter - self._last_train_iter < self.freq or not self._lengths:
            return
        named = {f"total_{name}_count": float(value) for name, value in totals.items()}
        self.log.write(self.values() | named, train_iter, totals["envstep"])
        self._last_train_iter = train_iter
        self._begin_interval()

    def values(self) -> dict[str, float]:
        """Return the numbers of the interval, in which at least one episode ended; times are in seconds."""
        episodes, seconds = len(self._lengths), max(self._seconds, 1e-9)
        values = {
            "episode_count": float(episodes),
            "envstep_count": float(self._envstep),
            "train_sample_count": float(self._sample),
            "collect_time": self._seconds,
            "avg_envstep_per_episode": float(np.mean(self._lengths)),
            "avg_time_per_episode": self._seconds / episodes,
            "avg_envstep_per_sec": self._envstep / seconds,
            "avg_train_sample_per_sec": self._sample / seconds,
            "avg_episode_per_sec": episodes / seconds,
        }
        for name, returns in self._returns.items():
            values |= {f"{name}_mean": float(np.mean(returns)), f"{name}_std": float(np.std(returns))}
            values |= {f"{name}_max": max(returns), f"{name}_min": min(returns)}
        return values
