"""Statistics of episodes: quotas, counters and returns, faults of the envs, and reports.

Shapes: N envs, E episodes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_ding.config import require
from lightning_ding.worker.log import WorkerLog

logger = logging.getLogger(__name__)

MAX_FAULTS = 100  # consecutive faults of one env; an env that never recovers would otherwise block the run
LOGGED_FAULTS = 10
"""Faults of a worker that are logged one by one; later ones each time that their number is a multiple of 100."""
SUCCESS_RATE = "success_rate"
"""Name of the metric of ``info["is_success"]``, which is logged for each env that gives it."""
SAVED = {
    "env_step": "_envstep",
    "sample": "sample",
    "episode": "_episode",
    "dropped_episode": "dropped_episode",
    "next_episode_id": "_next_episode_id",
    "returns": "_returns",
    "lengths": "_lengths",
    "dropped_ids": "_dropped_ids",
    "infos": "_infos",
}
"""Attributes of the statistics, and their names in checkpoints."""


def share_out(n_episode: int, num_envs: int, turn: int = 0) -> NDArray[np.int64]:
    """Return the quota of each env: E // N episodes, and one more for the E % N envs whose turn it is.

    If ``turn`` grows by E after every call, the total quotas of any two envs never differ by more than one.

    Args:
        n_episode: Number of episodes E, >= 1.
        num_envs: Number of envs N, >= 1.
        turn: Index of the first env that gets one more episode; counted modulo N.

    Returns:
        Shape (N,).

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> share_out(n_episode=5, num_envs=3, turn=2)
        array([2, 1, 2])
    """
    require(n_episode >= 1, "n_episode", ">= 1", n_episode)
    require(num_envs >= 1, "num_envs", ">= 1", num_envs)
    place_in_turn = (np.arange(num_envs) - turn) % num_envs
    return n_episode // num_envs + (place_in_turn < n_episode % num_envs).astype(np.int64)


class EpisodeStatistics:
    """Counters of a collector, and the returns and lengths of the episodes that ended.

    Example:
        >>> statistics = EpisodeStatistics()
        >>> statistics.new_ids(2).tolist()
        [0, 1]
        >>> statistics.add([1.0, 3.0], [4, 6])
        >>> statistics.episode, statistics.pop_episodes(), statistics.pop_episodes()
        (2, ([1.0, 3.0], [4, 6]), ([], []))
    """

    keeps_records = False
    """Whether ``records`` is filled."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Set all counters to zero and remove the episodes."""
        self.env_step = 0
        """Environment steps."""
        self.sample = 0
        """Transitions that were returned."""
        self.episode = 0
        """Episodes that ended without a fault."""
        self.dropped_episode = 0
        """Number of episodes that were dropped after an env fault. They are not counted as episodes."""
        self.next_episode_id = 0
        """Identifier of the next episode that begins."""
        self.returns: list[float] = []
        """Returns of the episodes since the last :meth:`pop_episodes`."""
        self.lengths: list[int] = []
        """Env steps of these episodes."""
        self.dropped_ids: list[int] = []
        """Identifiers of the dropped episodes since the last :meth:`pop_dropped_ids`."""
        self.infos: dict[str, tuple[float, int]] = {}
        """Sum of each number of the infos, and number of episodes that had it, since the last :meth:`pop_infos`."""
        self.records: list[tuple[float, ...]] = []
        """Env step of the end, return, length and numbers of the infos of the episodes since the last
        :meth:`pop_records`; empty unless ``keeps_records`` is set."""

    def new_ids(self, amount: int) -> NDArray[np.int64]:
        """Return identifiers for a number of episodes that begin."""
        self.next_episode_id += amount
        return np.arange(self.next_episode_id - amount, self.next_episode_id)

    def add(
        self,
        returns: Sequence[float],
        lengths: Sequence[int],
        is_recorded: bool = True,
        infos: Mapping[str, NDArray[np.float64]] | None = None,
    ) -> None:
        """Count episodes that ended without a fault.

        Args:
            returns: Return of each episode.
            lengths: Env steps of each episode.
            is_recorded: Whether :meth:`pop_episodes`, :meth:`pop_infos` and :meth:`pop_records` report them.
            infos: Numbers of each episode by name, NaN where there is none; None for no names.
        """
        self.episode += len(returns)
        if is_recorded:
            self.returns += returns
            self.lengths += lengths
            for name, values in (infos or {}).items():
                known, (total, count) = values[~np.isnan(values)], self.infos.get(name, (0.0, 0))
                self.infos[name] = total + float(known.sum()), count + len(known)
            if self.keeps_records:
                columns = [values.tolist() for values in (infos or {}).values()]
                self.records += zip([self.env_step] * len(returns), returns, lengths, *columns, strict=True)

    def drop(self, ids: Sequence[int]) -> None:
        """Count episodes that a fault ended, by their identifiers."""
        self.dropped_episode += len(ids)
        self.dropped_ids += ids

    def pop_episodes(self) -> tuple[list[float], list[int]]:
        """Return the returns and lengths of the episodes that ended since the last call."""
        episodes, self.returns, self.lengths = (self.returns, self.lengths), [], []
        return episodes

    def pop_infos(self) -> dict[str, tuple[float, int]]:
        """Return the sum of each number of the infos since the last call, and the number of episodes that had it."""
        found, self.infos = self.infos, {}
        return found

    def pop_records(self) -> list[tuple[float, ...]]:
        """Return the ``records`` of the episodes that ended since the last call."""
        found, self.records = self.records, []
        return found

    def pop_dropped_ids(self) -> list[int]:
        """Return the identifiers of the episodes that were dropped since the last call."""
        dropped, self.dropped_ids = self.dropped_ids, []
        return dropped

    def state_dict(self) -> dict[str, Any]:
        """Return all counters and episodes."""
        return {saved: getattr(self, name) for name, saved in SAVED.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""
        for name, saved in SAVED.items():
            setattr(self, name, state.get(saved, {}) if name == "infos" else state[saved])  # older ones lack them


class FaultCounter:
    """Counts the faults of each env since its last success, and decides when they end the run.

    Args:
        num_envs: Number of envs N.
        env_fault: ``raise`` to end the run at the first fault, ``drop`` to continue without the episode.
        success: Name of the event that resets the count of an env, for the message, such as "good step".
    """

    def __init__(self, num_envs: int, env_fault: str, success: str) -> None:
        self.count = np.zeros(num_envs, dtype=np.int64)
        """Faults of each env since its last success, shape (N,)."""
        self._env_fault = env_fault
        self._success = success
        self._handled = 0  # dropped episodes

    def handle(self, abnormal: NDArray[np.bool_], fault_of: Callable[[int], str | None]) -> None:
        """Raise if the config does not allow faults, or an env reported too many; call it after counting.

        Args:
            abnormal: Whether each env reported a fault in this step, shape (N,); at least one did.
            fault_of: Function that returns the description of an env's fault.

        Raises:
            RuntimeError: Naming the env and its fault.
        """
        first = int(abnormal.argmax())
        if self._env_fault == "raise":
            raise RuntimeError(
                f"env {first} reported a fault: {fault_of(first)}; "
                'with env_fault="drop" the collector drops the episode and continues'
            )
        worst = int((self.count * abnormal).argmax())
        if self.count[worst] > MAX_FAULTS:
            raise RuntimeError(
                f"env {worst} reported {self.count[worst]} faults without a {self._success} between, the last one: "
                f"{fault_of(worst)}"
            )
        for env_id in np.flatnonzero(abnormal).tolist():
            self._handled += 1
            if self._handled <= LOGGED_FAULTS or self._handled % 100 == 0:
                what = "env %d reported a fault, so its episode is dropped (%d so far): %s"
                logger.warning(what, env_id, self._handled, fault_of(env_id))


class CollectReport:
    """Sums up what a collector did and writes it to a log at intervals, when the collector is used without a Trainer.

    All values but the totals are those of one interval: from the last report to this one. Nothing is summed up while
    the log has no reader.

    Args:
        log: The log to write to.
        freq: Updates between two reports, >= 1. A report also waits until an episode has ended.
        statistics: Counters and episodes of the collector.

    Example:
        >>> statistics = EpisodeStatistics()
        >>> report = CollectReport(WorkerLog(), 100, statistics)
        >>> report.begin()
        >>> statistics.add([1.0, 3.0], [4, 6])
        >>> report.finish(train_iter=7)
    """

    def __init__(self, log: WorkerLog, freq: int, statistics: EpisodeStatistics) -> None:
        self._log = log
        self._freq = freq
        self._statistics = statistics
        self.reset()

    def reset(self) -> None:
        """Reset all sums; the next report is due after ``freq`` updates from zero."""
        self._last_train_iter = 0
        self._mark: tuple[float, int, int, int] | None = None
        self._begin_interval()

    def _begin_interval(self) -> None:
        self._seconds = 0.0
        self._env_step = 0
        self._sample = 0
        self._lengths: list[int] = []
        self._returns: dict[str, list[float]] = {}

    def begin(self, is_recorded: bool = True) -> None:
        """Note the time and the counters at the beginning of a call of ``collect``.

        Args:
            is_recorded: Whether the call counts in reports.
        """
        counted, is_on = self._statistics, is_recorded and self._log.has_reader
        self._mark = (time.perf_counter(), counted.env_step, counted.sample, len(counted.returns)) if is_on else None

    def finish(self, train_iter: int, returns: Mapping[str, Sequence[float]] | None = None) -> None:
        """Add the work of the collector since :meth:`begin`, and write a report if one is due.

        Args:
            train_iter: Updates so far.
            returns: Returns by name of the episodes that ended, one name for each player; None means those of the
                statistics.
        """
        if self._mark is None:
            return
        (began, env_step, sample, episodes), counted = self._mark, self._statistics
        self._seconds += time.perf_counter() - began
        self._env_step += counted.env_step - env_step
        self._sample += counted.sample - sample
        self._lengths += counted.lengths[episodes:]
        for name, values in ({"return": counted.returns[episodes:]} if returns is None else returns).items():
            self._returns.setdefault(name, []).extend(values)
        if train_iter - self._last_train_iter >= self._freq and self._lengths:
            self._log.write(self._values(), train_iter, counted.env_step)
            self._last_train_iter = train_iter
            self._begin_interval()

    def _values(self) -> dict[str, float]:
        """Return the numbers of the interval, in which at least one episode ended, and the totals; times in seconds."""
        counted, episodes, seconds = self._statistics, len(self._lengths), max(self._seconds, 1e-9)
        values = {
            "episode_count": float(episodes),
            "envstep_count": float(self._env_step),
            "train_sample_count": float(self._sample),
            "collect_time": self._seconds,
            "avg_envstep_per_episode": float(np.mean(self._lengths)),
            "avg_time_per_episode": self._seconds / episodes,
            "avg_envstep_per_sec": self._env_step / seconds,
            "avg_train_sample_per_sec": self._sample / seconds,
            "avg_episode_per_sec": episodes / seconds,
        }
        for name, returns in self._returns.items():
            values |= summary(returns, name)
        return values | {
            "total_envstep_count": float(counted.env_step),
            "total_train_sample_count": float(counted.sample),
            "total_episode_count": float(counted.episode),
            "total_dropped_episode_count": float(counted.dropped_episode),
        }


def known_mean(values: NDArray[np.float64]) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none.

    Example:
        >>> known_mean(np.array([1.0, 0.0, np.nan])), known_mean(np.array([np.nan]))
        (0.5, nan)
    """
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def mean_infos(infos: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    """Return the mean of each number of the infos over the episodes that have it; NaN if none has.

    An env without ``info["is_success"]`` has no ``success_rate``.

    Example:
        >>> mean_infos({"success_rate": np.array([np.nan]), "laps": np.array([2.0, 3.0])})
        {'laps': 2.5}
    """
    means = {name: known_mean(values) for name, values in infos.items()}
    return {name: mean for name, mean in means.items() if name != SUCCESS_RATE or not np.isnan(mean)}


def summary(returns: Sequence[float] | NDArray[np.float64], name: str = "return") -> dict[str, float]:
    """Return mean, standard deviation, minimum and maximum of returns as ``{name}_mean`` and so on.

    Example:
        >>> summary([1.0, 3.0])
        {'return_mean': 2.0, 'return_std': 1.0, 'return_min': 1.0, 'return_max': 3.0}
    """
    numbers = {"mean": np.mean(returns), "std": np.std(returns), "min": np.min(returns), "max": np.max(returns)}
    return {f"{name}_{kind}": float(value) for kind, value in numbers.items()}
