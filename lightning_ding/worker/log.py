"""Logs of workers that are used without a Trainer; in a Trainer, callbacks write the metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor

from lightning_ding.worker.arguments import attribute_or_self
from lightning_ding.worker.episodes import EpisodeStatistics, summary

DEFAULT_EXPERIMENT = "default_experiment"


class WorkerLog:
    """Writes to a logger that the caller made and will close, and to Python's logging; it creates no files.

    Args:
        tb_logger: A TensorBoard ``SummaryWriter``, a Lightning logger, or None. A ``SummaryWriter`` gets
            ``{instance_name}_iter/<name>`` with the number of updates as step, and ``{instance_name}_step/<name>`` with
            env steps. A Lightning logger gets ``{instance_name}/<name>`` by env steps.
        exp_name: Name of the experiment. Records go to the Python logger ``lightning_ding.{exp_name}.{instance_name}``
            at level INFO.
        instance_name: Name that distinguishes several workers of a kind.
        every_rank: Write on every rank, not only on rank zero.
    """

    def __init__(
        self,
        tb_logger: Any = None,
        exp_name: str = DEFAULT_EXPERIMENT,
        instance_name: str = "worker",
        every_rank: bool = False,
    ) -> None:
        self.tb_logger = tb_logger
        self.exp_name = exp_name
        self.instance_name = instance_name
        self.every_rank = every_rank
        self._text = logging.getLogger(f"lightning_ding.{exp_name}.{instance_name}")

    @property
    def has_reader(self) -> bool:
        """Whether this rank logs."""
        if self.tb_logger is None and not self._text.isEnabledFor(logging.INFO):
            return False
        return self.every_rank or not (dist.is_available() and dist.is_initialized() and dist.get_rank() > 0)

    @property
    def writer(self) -> Any:
        """The ``SummaryWriter`` itself, which a Lightning logger calls its ``experiment``."""
        return attribute_or_self(self.tb_logger, "experiment")

    def tag(self, name: str, train_iter: int, env_step: int) -> tuple[str, int]:
        """Return the tag and the step under which a figure or a video is written."""
        if hasattr(self.tb_logger, "log_metrics"):
            return f"{self.instance_name}/{name}", env_step
        return f"{self.instance_name}_iter/{name}", train_iter

    def write(self, values: Mapping[str, float], train_iter: int, env_step: int) -> None:
        """Write numbers if this rank logs."""
        if not self.has_reader:
            return
        line = ", ".join(f"{name} {value:.6g}" for name, value in values.items())
        self._text.info("train_iter %d, env_step %d: %s", train_iter, env_step, line)
        if hasattr(self.tb_logger, "log_metrics"):
            named = {f"{self.instance_name}/{name}": value for name, value in values.items()}
            self.tb_logger.log_metrics(named, step=env_step)
        elif self.tb_logger is not None:
            for name, value in values.items():
                self.tb_logger.add_scalar(f"{self.instance_name}_iter/{name}", value, train_iter)
                self.tb_logger.add_scalar(f"{self.instance_name}_step/{name}", value, env_step)

    def write_histograms(self, values: Mapping[str, Tensor], train_iter: int, env_step: int) -> None:
        """Write distributions, shapes (values,), to TensorBoard, if that is the logger."""
        if not self.has_reader or not hasattr(self.writer, "add_histogram"):
            return
        for name, value in values.items():
            self.writer.add_histogram(f"{self.instance_name}_iter/{name}", value, train_iter)
            self.writer.add_histogram(f"{self.instance_name}_step/{name}", value, env_step)


class CollectReport:
    """Sums up what a collector did and writes it to a log at intervals, when the collector is used without a Trainer.

    All values but the totals are those of one interval: from the last report to this one. Nothing is summed up while
    the log has no reader.

    Args:
        log: The log to write to.
        freq: Updates between two reports, >= 1. A report also waits until an episode has ended.

    Example:
        >>> statistics = EpisodeStatistics()
        >>> report = CollectReport(WorkerLog(), 100)
        >>> report.begin(statistics)
        >>> statistics.add_episodes([1.0, 3.0], [4, 6])
        >>> report.finish(statistics, train_iter=7)
    """

    def __init__(self, log: WorkerLog, freq: int) -> None:
        self._log = log
        self._freq = freq
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

    def begin(self, counted: EpisodeStatistics, is_recorded: bool = True) -> None:
        """Note the time and the counters at the beginning of a call of ``collect``, if the call counts in reports."""
        self._mark = None
        if is_recorded and self._log.has_reader:
            self._mark = (time.perf_counter(), counted.envstep, counted.sample, len(counted.returns))

    def finish(
        self, counted: EpisodeStatistics, train_iter: int, returns: Mapping[str, Sequence[float]] | None = None
    ) -> None:
        """Add the work of the collector since :meth:`begin`, and write a report if one is due.

        Args:
            counted: Counters and episodes of the collector.
            train_iter: Updates so far.
            returns: Returns by name of the episodes that ended, one name for each player; None means those of the
                statistics.
        """
        if self._mark is None:
            return
        began, env_step, sample, episodes = self._mark
        self._seconds += time.perf_counter() - began
        self._env_step += counted.envstep - env_step
        self._sample += counted.sample - sample
        self._lengths += counted.lengths[episodes:]
        for name, values in ({"return": counted.returns[episodes:]} if returns is None else returns).items():
            self._returns.setdefault(name, []).extend(values)
        if train_iter - self._last_train_iter >= self._freq and self._lengths:
            self._log.write(self._values(counted), train_iter, counted.envstep)
            self._last_train_iter = train_iter
            self._begin_interval()

    def _values(self, counted: EpisodeStatistics) -> dict[str, float]:
        """Return the numbers of the interval, in which at least one episode ended, and the totals; times in seconds."""
        episodes, seconds = len(self._lengths), max(self._seconds, 1e-9)
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
            "total_envstep_count": float(counted.envstep),
            "total_train_sample_count": float(counted.sample),
            "total_episode_count": float(counted.episode),
            "total_dropped_episode_count": float(counted.dropped_episode),
        }
