"""Off-policy training: collect transitions, store them in a replay buffer, and learn from samples of it.

Shapes: B transitions of a minibatch, U minibatches of a round.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from lightning_ding import nested
from lightning_ding.callbacks import StopAtEnvStep
from lightning_ding.checkpoints.folder import BUFFER_FILE
from lightning_ding.config import require
from lightning_ding.datamodules.base import CollectingDataModule
from lightning_ding.datamodules.rng import Seeds
from lightning_ding.ranks import on_any_rank
from lightning_ding.worker import IBuffer, create_buffer, get_serial_collector_cls

logger = logging.getLogger(__name__)


class ReplayDataModule(CollectingDataModule):
    """Collect in envs, store transitions in a replay buffer, and serve rounds of minibatches.

    In a round, ``n_sample`` transitions are collected with the newest weights and pushed to the buffer, and
    ``update_per_collect`` minibatches are sampled, of transitions or of sequences. An epoch is a number of rounds,
    followed by an evaluation. Under DDP every rank has its own buffer. The arguments are those of
    :class:`CollectingDataModule`.
    """

    buffer: IBuffer | None = None
    """The replay buffer of this rank; None until a fit has been set up. A later fit of the same policy continues to use
    it."""
    _buffer_of: Any = None

    # ------------------------------------------------------------------ state

    def save_rank_state(self, folder: Path, with_buffer: bool = True) -> None:
        """Write the collection state, the random number states and the replay buffer of this rank."""
        super().save_rank_state(folder, with_buffer)
        if with_buffer:
            cast(IBuffer, self.buffer).save_data(folder / BUFFER_FILE)

    def load_rank_state(self, folder: Path) -> None:
        """Read what ``save_rank_state`` wrote."""
        super().load_rank_state(folder)
        if (folder / BUFFER_FILE).is_file():
            cast(IBuffer, self.buffer).load_data(folder / BUFFER_FILE)
        else:
            self._without_rank_state(str(folder))

    def _take_over(self, folders: Sequence[Path], seeds: Seeds) -> None:
        files = [folder / BUFFER_FILE for folder in folders if (folder / BUFFER_FILE).is_file()]
        if not files:
            self._without_rank_state(str(folders[0]))
            return
        buffer = cast(IBuffer, self.buffer)
        buffer.clear()  # an earlier fit may have filled it
        taken, self._first_episode_id = buffer.load_files(files, seeds.of("replay")), buffer.next_episode_id()
        if taken < len(files):
            kind = type(self.buffer).__name__
            logger.warning(
                "buffers of type %s cannot be merged: only the first of %d saved ones is used", kind, len(files)
            )

    def _without_rank_state(self, checkpoint: str) -> None:
        logger.warning("%s contains no replay data: continuing with an empty buffer", checkpoint)
        cast(IBuffer, self.buffer).clear()  # an earlier fit may have filled it

    def pop_metrics(self) -> dict[str, float]:
        """Return the metrics of the collection and of the buffer since the last call, by full name."""
        of_buffer = self.buffer.pop_metrics() if self.buffer is not None else {}
        return super().pop_metrics() | {f"buffer/{name}": value for name, value in of_buffer.items()}

    # ------------------------------------------------------------------ a round

    def _reset(self) -> None:
        super()._reset()
        if self.buffer is not None:  # from an earlier fit; episodes are dropped by their id, which must be unique
            self._first_episode_id = self.buffer.next_episode_id()

    def _next_round(self) -> ReplayRound:
        """Collect ``n_sample`` transitions, or more until the buffer holds a minibatch, and sample a round."""
        attribute = self._policy.get_attribute
        batch_size, n_sample = attribute("batch_size"), attribute("n_sample")
        while self._collect_and_push(n_sample, batch_size):
            pass  # all ranks collect together until each has a minibatch
        options, train_iter = attribute("sample_options"), self._policy.progress.train_iter
        return ReplayRound(cast(IBuffer, self.buffer), attribute("update_per_collect"), batch_size, train_iter, options)

    def _begin(self) -> None:
        """Fill an empty buffer, with random actions at the start of a run; collect at most ``max_env_step`` steps."""
        warm_up = min(self._policy.get_attribute("random_collect_size"), self._transitions_left())
        is_empty = cast(IBuffer, self.buffer).count() == 0
        if warm_up and on_any_rank(is_empty):
            self._collect_and_push(warm_up, 0, random=self._policy.progress.env_step == 0)

    def _transitions_left(self) -> int:
        """Return how many transitions this rank can collect so that ``max_env_step`` leaves room for one more round."""
        trainer = cast(Trainer, self.trainer)
        budgets: list[int] = [callback.limit for callback in trainer.callbacks if isinstance(callback, StopAtEnvStep)]  # type: ignore[attr-defined]
        left = min(budgets, default=sys.maxsize) - self._policy.progress.env_step
        return int(max(0, left // trainer.world_size - self._policy.collect_mode.get_attribute("n_sample")))

    def _collect_and_push(self, n_sample: int, wanted: int, random: bool = False) -> bool:
        """Collect transitions and push them to the buffer.

        Args:
            n_sample: Number of transitions.
            wanted: Number of transitions that the buffer should hold then.
            random: Whether actions are random.

        Returns:
            Whether the buffer of at least one rank holds fewer than ``wanted``.
        """
        env_step, buffer = self._policy.progress.env_step, cast(IBuffer, self.buffer)
        collected = self._collect(n_sample, random)
        if self._policy.normaliser.is_on:
            self._policy.normaliser.update(nested.to_tensor(collected))
        buffer.push(collected, env_step)
        if self._dropped_episodes:  # transitions from before the fault may be in the buffer
            buffer.drop_episodes(self._dropped_episodes)
        return self._count(buffer.count() < wanted)

    # ------------------------------------------------------------------ setting up

    def _check_policy(self, policy: Any) -> None:
        """Make the buffer, if there is none for this policy yet, and check that it fits the policy."""
        name = type(policy).__name__
        allowed = "one that learns from replay (use RolloutDataModule for on-policy algorithms)"
        require(not policy.get_attribute("on_policy"), "policy", allowed, name)
        if get_serial_collector_cls(policy.config.collect.collector).collects_whole_episodes:
            raise ValueError(
                "collect.collector.type must be a collector of single transitions, such as 'sample', in a "
                f"ReplayDataModule, got {policy.config.collect.collector.type!r}; collectors of whole episodes are "
                "used without a datamodule"
            )
        config = policy.config.other.replay_buffer
        if self.buffer is None or self._buffer_of is not policy:
            self._buffer_of = policy
            self.buffer = create_buffer(config, seed=self._seeds().of("replay"))
        self.buffer.budget = self.max_env_step
        if self.buffer.gives_sequences != policy.learns_from_sequences:
            kind = "sequences, such as 'sequence'" if policy.learns_from_sequences else "transitions, such as 'naive'"
            raise ValueError(
                f"other.replay_buffer.type must be one whose samples are {kind}, for this policy, got {config.type!r}"
            )
        if policy.learns_from_sequences:
            for key, default in (("sequence_length", None), ("burn_in", 0)):
                given, allowed = getattr(config, key, default), f"{default}, because the policy's own options say it"
                require(given == default, f"other.replay_buffer.{key}", allowed, given)
        size, batch_size = config.replay_buffer_size, policy.get_attribute("batch_size")
        fits = f"at least learn.batch_size ({batch_size})"
        require(size >= batch_size, "other.replay_buffer.replay_buffer_size", fits, size)
        if policy.get_attribute("priority") and not self.buffer.is_prioritised:
            raise ValueError(
                "priority needs a prioritised buffer, but other.replay_buffer.type is "
                f"{config.type!r}, which stores no priorities; use 'advanced'"
            )


class ReplayRound:
    """The U minibatches of a round, sampled from a buffer.

    Without priorities, all minibatches are sampled and gathered in one operation. With priorities, each minibatch is
    sampled when it is requested, after the priorities of the previous one were updated.

    Args:
        buffer: Buffer to sample from.
        num_batches: U, >= 1.
        batch_size: B, >= 1.
        train_iter: Updates made before the round.
        sample_kwargs: Further arguments of the buffer's ``sample``, such as ``n_step``.
    """

    def __init__(
        self, buffer: IBuffer, num_batches: int, batch_size: int, train_iter: int, sample_kwargs: Mapping[str, Any]
    ) -> None:
        self.num_batches = num_batches
        self._buffer = buffer
        self._batch_size = batch_size
        self._train_iter = train_iter
        self._sample_kwargs = sample_kwargs
        self._device: torch.device | None = None
        self._data: dict[str, Any] | None = None
        if not buffer.is_prioritised:
            self._data = buffer.sample(
                batch_size, cur_learner_iter=train_iter, num_batches=num_batches, **sample_kwargs
            )

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the minibatches, each a nested dict of tensors with leading axis B."""
        if self._data is not None:
            yield from nested.unbind(self._data)  # type: ignore[misc]
            return
        for number in range(self.num_batches):
            drawn = self._buffer.sample(
                self._batch_size, cur_learner_iter=self._train_iter + number, **self._sample_kwargs
            )
            yield drawn if self._device is None else nested.to(drawn, self._device)  # type: ignore[misc]

    @property
    def drawn(self) -> dict[str, Any] | None:
        """All minibatches, leading axes (U, B); None if they are sampled one by one."""
        return self._data

    def prepare(self, function: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Apply ``function`` to all minibatches at once, leading axes (U, B), unless they are sampled one by one."""
        if self._data is not None:
            self._data = function(self._data)

    def update_priority(self, batch: Mapping[str, Any], priority: Tensor) -> None:
        """Update the priorities, shape (B,), of a minibatch in the buffer."""
        keys = ("replay_unique_id", "replay_buffer_idx")
        self._buffer.update({"priority": priority, **{key: batch[key] for key in keys if key in batch}})

    def to(self, device: torch.device, non_blocking: bool = False) -> ReplayRound:
        """Move the minibatches to a device (called by Lightning)."""
        if torch.device(device).type != "cpu":
            self._device = torch.device(device)
            if self._data is not None:
                self._data = nested.to(self._data, device, non_blocking)  # type: ignore[assignment]
        return self
