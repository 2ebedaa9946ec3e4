"""What a datamodule reports of the episodes that it collects, and the intervals of its epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from lightning_ding.config import require
from lightning_ding.utils.protocols import Direction, Monitor, RunData
from lightning_ding.utils.ranks import world_size
from lightning_ding.worker import ISerialCollector
from lightning_ding.worker.episode_infos import InfoCheck, InfoKeys, info_statistics

EPOCHS = 20
"""Epochs of Lightning between two evaluations with ``eval_every``, at most. Each takes about a millisecond."""


class EpisodeReports(RunData):
    """The episodes of a collector, for callbacks, and the options that say what is logged of them and when."""

    collector: ISerialCollector | None
    info_check: InfoCheck
    """The check that the env gives the numbers of ``info_keys``, of this rank."""
    _policy: Any

    def _set_reports(
        self,
        info_keys: InfoKeys,
        monitor: str | Mapping[str, Direction],
        eval_every: int | None,
        checkpoint_every: int | None,
        rounds_per_epoch: int | None,
    ) -> None:
        """Check and keep the options.

        Raises:
            ValueError: If one is out of its range, or has no effect given the others.
        """
        self.info_keys = info_statistics(info_keys)
        self.info_check = InfoCheck()
        self.monitor = Monitor.of(monitor)
        allowed = "None with rounds_per_epoch, which also says when a run evaluates"
        require(eval_every is None or rounds_per_epoch is None, "eval_every", allowed, eval_every)
        is_used = checkpoint_every is None or eval_every is not None
        require(is_used, "checkpoint_every", "None without eval_every", checkpoint_every)
        self.eval_every, self.checkpoint_every = eval_every, checkpoint_every

    def pop_episodes(self) -> tuple[list[float], list[int]]:
        """Return the returns and lengths of the episodes that ended on this rank since the last call."""
        return self.collector.pop_episodes() if self.collector is not None else ([], [])

    def pop_infos(self) -> dict[str, tuple[float, int]]:
        """Return the sum of each number of the infos, and the number of episodes that had it, since the last call."""
        return self.collector.pop_infos() if self.collector is not None else {}

    def keep_records(self) -> None:
        """Keep a record of each episode that ends from now on, for :meth:`pop_records`.

        Raises:
            ValueError: If nothing is collected.
        """
        if self.collector is None:
            super().keep_records()
        else:
            self.collector.keep_records()

    def pop_records(self) -> list[tuple[float, ...]]:
        """Return the episodes of this rank since the last call; see :meth:`RunData.pop_records`."""
        if self.collector is None:
            return []
        records, now, made = self.collector.pop_records(), self._policy.progress.env_step, self.collector.envstep
        return [(now - (made - end) * world_size(), *rest) for end, *rest in records]

    def _rounds_of_interval(self, axis: Literal["env_step", "train_iter"]) -> int:
        """Return the rounds of an epoch that is short against ``eval_every`` and ``checkpoint_every``."""
        env_steps = (self._policy.n_sample or 0) * world_size()  # unknown with whole episodes
        of_round = self._policy.update_per_collect if axis == "train_iter" else env_steps
        shortest = min(every for every in (self.eval_every, self.checkpoint_every) if every is not None)
        return int(max(1, shortest // (EPOCHS * of_round))) if of_round else 1
