"""Off-policy training: collect, keep, replay."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from lightning.pytorch import Trainer

from lightning_ding.callbacks import StopAtEnvStep
from lightning_ding.config import require
from lightning_ding.datamodules.base import CollectingDataModule
from lightning_ding.datamodules.round import ReplayRound
from lightning_ding.datamodules.seeds import Seeds
from lightning_ding.worker import IBuffer, create_buffer, get_serial_collector_cls, load_merged, next_episode_id

logger = logging.getLogger(__name__)

BUFFER_FILE = "buffer.safetensors"


class ReplayDataModule(CollectingDataModule):
    """Collects in envs, keeps transitions in a replay buffer, and serves rounds of minibatches.

    A round is: collect ``n_sample`` transitions with the newest weights, push them, draw ``update_per_collect``
    minibatches. An epoch is a number of rounds, then an evaluation. Under DDP every rank has its own buffer. Arguments
    are those of :class:`CollectingDataModule`.
    """

    buffer: IBuffer | None = None
    """The replay buffer of this rank, once a fit was set up; a later fit of the same policy goes on with it."""
    _buffer_of: Any = None

    # ------------------------------------------------------------------ state

    def save_rank_state(self, folder: Path, with_buffer: bool = True) -> None:
        """Write what this rank keeps for itself: buffer, where collecting is, random number generators."""
        super().save_rank_state(folder, with_buffer)
        if with_buffer:
            cast(IBuffer, self.buffer).save_data(folder / BUFFER_FILE)

    def load_rank_state(self, folder: Path) -> None:
        """Read what ``save_rank_state`` wrote."""
        super().load_rank_state(folder)
        if (folder / BUFFER_FILE).is_file():
            cast(IBuffer, self.buffer).load_data(folder / BUFFER_FILE)
        else:
            self._miss_rank_state(str(folder))

    def _take_over(self, folders: Sequence[Path], seeds: Seeds) -> None:
        files = [folder / BUFFER_FILE for folder in folders if (folder / BUFFER_FILE).is_file()]
        if not files:
            self._miss_rank_state(str(folders[0]))
            return
        cast(IBuffer, self.buffer).clear()  # of what an earlier fit collected
        taken, self._first_episode_id = load_merged(cast(IBuffer, self.buffer), files, seeds.replay)
        if taken < len(files):
            kind = type(self.buffer).__name__
            logger.warning("a %s cannot be merged: of %d saved ones the first is taken", kind, len(files))

    def _miss_rank_state(self, checkpoint: str) -> None:
        logger.warning("no replay data beside %s: going on with an empty buffer", checkpoint)
        cast(IBuffer, self.buffer).clear()  # of what an earlier fit collected

    # ------------------------------------------------------------------ a round

    def _begin_anew(self) -> None:
        super()._begin_anew()
        if self.buffer is not None:  # of an earlier fit; an episode that is dropped must be the only one of its id
            self._first_episode_id = next_episode_id(self.buffer)

    def _next_round(self) -> ReplayRound:
        """Collect ``n_sample`` transitions, or more at first, and draw the minibatches of a round."""
        collect, buffer = self._policy.collect_mode, cast(IBuffer, self.buffer)
        batch_size, num_batches = collect.get_attribute("batch_size"), collect.get_attribute("update_per_collect")
        self._collect_and_push(collect.get_attribute("n_sample"))
        while self._on_any_rank(buffer.count() < batch_size):  # collecting takes all ranks
            self._collect_and_push(collect.get_attribute("n_sample"))
        n_step = {"n_step": collect.get_attribute("nstep"), "discount_factor": collect.get_attribute("discount_factor")}
        return ReplayRound(buffer, num_batches, batch_size, self._policy.progress.train_iter, n_step)

    def _begin(self) -> None:
        """Fill an empty buffer, at the start of a run with random actions; the budget of env steps has to last."""
        warm_up = min(self._policy.get_attribute("random_collect_size"), self._transitions_left())
        is_empty = cast(IBuffer, self.buffer).count() == 0
        if warm_up and self._on_any_rank(is_empty):
            self._collect_and_push(warm_up, random=self._policy.progress.env_step == 0)

    def _transitions_left(self) -> int:
        """Return how many transitions this rank can collect such that one round more reaches the budget."""
        trainer = cast(Trainer, self.trainer)
        budgets: list[int] = [callback.limit for callback in trainer.callbacks if isinstance(callback, StopAtEnvStep)]  # type: ignore[attr-defined]
        left = min(budgets, default=sys.maxsize) - self._policy.progress.env_step
        return int(max(0, left // trainer.world_size - self._policy.collect_mode.get_attribute("n_sample")))

    def _collect_and_push(self, n_sample: int, random: bool = False) -> None:
        env_step, buffer = self._policy.progress.env_step, cast(IBuffer, self.buffer)
        collected = self._collect(n_sample, random)
        if self._policy.normaliser.is_on:
            self._policy.normaliser.update(collected)
        buffer.push(collected, env_step)
        if self._dropped_episodes:  # what they gave before their fault may be part of it
            buffer.drop_episodes(self._dropped_episodes)

    # ------------------------------------------------------------------ setting up

    def _check_policy(self, policy: Any) -> None:
        """Make the buffer, if there is none of this policy yet.

        Raises:
            ValueError: If the policy learns from rollouts, or collector or buffer do not fit it.
        """
        name = type(policy).__name__
        allowed = "one that learns from replay (others: RolloutDataModule)"
        require(not policy.get_attribute("on_policy"), "policy", allowed, name)
        if getattr(get_serial_collector_cls(policy.config.collect.collector), "collects_whole_episodes", False):
            raise ValueError(
                "collect.collector.type must be that of a collector of one policy's transitions, such as 'sample', in "
                f"a ReplayDataModule, got {policy.config.collect.collector.type!r}; use that one by hand"
            )
        cfg = policy.get_attribute("cfg")
        if self.buffer is None or self._buffer_of is not policy:
            self._buffer_of = policy
            self.buffer = create_buffer(policy.config.other.replay_buffer, seed=self._seeds().replay)
        self.buffer.budget = self.max_env_step
        if self.buffer.gives_sequences:
            raise ValueError(
                "other.replay_buffer.type must be one whose samples are transitions, such as 'naive', for this policy, "
                f"got {cfg.other.replay_buffer.type!r}"
            )
        size, batch_size = cfg.other.replay_buffer.replay_buffer_size, policy.get_attribute("batch_size")
        fits = f"at least learn.batch_size ({batch_size})"
        require(size >= batch_size, "other.replay_buffer.replay_buffer_size", fits, size)
        if policy.get_attribute("priority") and not self.buffer.is_prioritised:
            raise ValueError(
                "priority needs a prioritised buffer, but other.replay_buffer.type is "
                f"{cfg.other.replay_buffer.type!r}, which keeps no priorities"
            )
