"""Demonstrations next to a replay buffer: a share of each minibatch is drawn from a data set.

Shapes: N transitions of the data set, B transitions or sequences of a minibatch, T steps of a sequence, U minibatches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer

from lightning_ding import nested
from lightning_ding.checkpoints import save_object
from lightning_ding.checkpoints.folder import DEMONSTRATIONS_FILE
from lightning_ding.config import require
from lightning_ding.datamodules.dataset import Dataset
from lightning_ding.utils.modes import IS_FIRST, STATE
from lightning_ding.worker import IBuffer, create_buffer, get_buffer_cls
from lightning_ding.worker.buffer.rate_limiter import ThroughputConfig
from lightning_ding.worker.config import ReplayBufferConfig

DRAWS_FILE = "demonstrations.pt"
OF_SEQUENCES = (STATE, IS_FIRST, "IS", "priority", "replay_unique_id", "replay_buffer_idx", "is_expert")
"""Entries of a minibatch of sequences that each sequence has once, without the axis of its steps."""
NO_LIMITS = {
    "max_use": None,
    "max_staleness": None,
    "thruput_controller": ThroughputConfig(),
    "memmap_dir": None,
    "enable_track_used_data": False,
}
"""Keys of a buffer that would make demonstrations leave it, make their draws wait for new ones, or mix its files with
those of the replay buffer."""


class Demonstrations:
    """The transitions of a data set in a separate buffer, which nothing leaves.

    Args:
        dataset: The transitions.
        share: Share of a minibatch that is drawn from them, in (0, 1); at least one, and not all.
        config: Config of the replay buffer; this buffer has the same type and priorities.
        seed: Seed of the draws.
        action_start: Smallest discrete action of the data set, unless it is 0.
        imitation_reward: Whether each step has a reward of 1, in place of that in the data set.
        dataset_columns: Function of the data set and the rewards that returns the further columns that a policy needs.
        at_random: Whether the number of them in a minibatch is rounded up or down at random, so that ``share`` is
            its mean; a minibatch may have none then.
    """

    def __init__(
        self,
        dataset: Dataset,
        share: float,
        config: ReplayBufferConfig,
        seed: np.random.SeedSequence,
        action_start: Any,
        imitation_reward: bool,
        dataset_columns: Callable[[Dataset, Any], dict[str, Any]] = lambda dataset, reward: {},
        at_random: bool = False,
    ) -> None:
        limits: dict[str, Any] = {
            one.name: NO_LIMITS[one.name] for one in dataclasses.fields(config) if one.name in NO_LIMITS
        }
        limits["replay_buffer_size"] = len(dataset)
        self.share, self.at_random = share, at_random
        self._draws = np.random.default_rng(seed)
        self.buffer: IBuffer = create_buffer(dataclasses.replace(config, **limits), seed=self._draws)
        """The buffer, which holds all of them after :meth:`fill`."""
        columns = dict(dataset.columns)
        if not dataset.starts_at_zero:
            columns["action"] = action_start.from_env(columns["action"])
        if imitation_reward:
            columns["reward"] = np.ones_like(columns["reward"])
        columns["env_id"] = np.zeros(len(dataset), dtype=np.int64)
        columns |= dataset_columns(dataset, columns["reward"])
        self.columns = columns
        """``obs``, ``action``, ``reward``, ``next_obs``, ``terminated``, ``truncated``, ``episode_id`` and ``env_id``:
        nested arrays with leading axis N, as the policy learns from them, and the further columns that it needs."""

    def fill(self, keeps_double: bool) -> None:
        """Fill the buffer, once for each value of ``keeps_double``: whether double precision stays so."""
        if self.buffer.count() and self.buffer.keeps_double != keeps_double:
            self.buffer.clear()
        if not self.buffer.count():
            self.buffer.keeps_double = keeps_double
            self.buffer.push(self.columns)

    def number(self, batch_size: int) -> int:
        """Return how many demonstrations a minibatch has; drawn with ``at_random``.

        Raises:
            ValueError: If a minibatch cannot have both kinds, or needs more demonstrations than there are.
        """
        mean = mean_number(self.share, batch_size, self.at_random)
        number = int(mean + self._draws.random()) if self.at_random else int(mean)
        enough, size = f"one with at least {number} transitions, the share of a minibatch", len(self.columns["reward"])
        require(number <= size, "demonstrations", enough, size)
        return number

    def mixed_with(self, buffer: IBuffer) -> MixedBuffer:
        """Return a source of minibatches that begin with transitions of ``buffer`` and end with demonstrations.

        The buffer of the demonstrations gets the env step and the budget of ``buffer``, for its schedules.
        """
        self.buffer.env_step, self.buffer.budget = buffer.env_step, buffer.budget
        return MixedBuffer(buffer, self)

    def alone(self) -> MixedBuffer:
        """Return a source of minibatches of demonstrations only."""
        return MixedBuffer(None, self)

    def begin_statistics(self, normaliser: Any, trainer: Trainer) -> None:
        """Begin the statistics of a normaliser that has none, with an equal share of the episodes on each rank."""
        if not normaliser.is_on or normaliser.has_statistics:
            return
        mine = self.columns["episode_id"] % trainer.world_size == trainer.global_rank
        own = {name: nested.index(self.columns[name], mine) for name in ("obs", "reward", "episode_id")}
        normaliser.update(normaliser.tensors({**own, "env_id": own["episode_id"]}))
        normaliser.forget_episodes()  # the envs begin episodes of the same ids

    def save(self, folder: Path, with_buffer: bool = True) -> None:
        """Write the state of the draws, and the priorities if there are any and ``with_buffer`` is true."""
        save_object(self._draws.bit_generator.state, folder / DRAWS_FILE)
        if with_buffer and self.buffer.is_prioritised:
            self.buffer.save_data(folder / DEMONSTRATIONS_FILE)

    def load(self, folder: Path, seed: np.random.SeedSequence | None = None) -> None:
        """Restore what ``save`` wrote; with ``seed``, the draws begin from it instead."""
        if (folder / DEMONSTRATIONS_FILE).is_file():
            self.buffer.load_data(folder / DEMONSTRATIONS_FILE)
        if seed is not None:
            self._draws.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        elif (folder / DRAWS_FILE).is_file():
            self._draws.bit_generator.state = torch.load(folder / DRAWS_FILE, weights_only=True)


class MixedBuffer:
    """Minibatches of transitions of a replay buffer and of demonstrations, for :class:`ReplayRound`.

    Args:
        own: The replay buffer; None for minibatches of demonstrations only.
        demonstrations: The demonstrations.
    """

    runs_out = False  # there are no new demonstrations to wait for

    def __init__(self, own: IBuffer | None, demonstrations: Demonstrations) -> None:
        self._own = own
        self._demonstrations = demonstrations
        self._number = 0  # of demonstrations in the last minibatch

    @property
    def is_prioritised(self) -> bool:
        """Whether ``update`` takes priorities and minibatches depend on them."""
        return self._demonstrations.buffer.is_prioritised

    def sample(self, batch_size: int, **kwargs: Any) -> dict[str, Any]:
        """Return a minibatch as :meth:`IBuffer.sample` does, with ``is_expert``, leading axes (B,) or (U, B).

        The demonstrations are the last transitions of each minibatch. Entries that only one of the two buffers has are
        left out.
        """
        if self._own is None:
            self._number = batch_size
            return _marked(self._demonstrations.buffer.sample(batch_size, **kwargs), True)
        number = self._demonstrations.number(batch_size)
        return self.complete(self._own.sample(batch_size - number, **kwargs), number, **kwargs)

    def complete(self, own: dict[str, Any], number: int, **kwargs: Any) -> dict[str, Any]:
        """Return a minibatch that begins with own transitions and ends with demonstrations, as :meth:`sample` does.

        Args:
            own: Own transitions or sequences, as a buffer's ``sample`` returns them.
            number: Number of demonstrations in each minibatch, >= 0.
            kwargs: Arguments of the buffer's ``sample`` that returned ``own``, without ``batch_size``.
        """
        self._number, own = number, _marked(own, False)
        if not number:
            return own
        demonstrations = _marked(self._demonstrations.buffer.sample(number, **kwargs), True)
        first, last = nested.flatten(own), nested.flatten(demonstrations)
        axis = 0 if kwargs.get("num_batches") is None else 1
        axes = {name: axis + ("mask" in own and name not in OF_SEQUENCES) for name in first}
        shared = [name for name in first if name in last]
        joined = {name: torch.cat([first[name], last[name].to(first[name].dtype)], axes[name]) for name in shared}
        return nested.unflatten(joined)

    def update(self, info: Mapping[str, Any]) -> None:
        """Set the priorities of a minibatch, each part in its own buffer."""
        own = self.update_demonstrations(info)
        if self._own is not None:
            self._own.update(own)

    def update_demonstrations(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Set the priorities of the demonstrations of a minibatch, and return the part of its own transitions."""
        first = len(info["priority"]) - self._number
        if self._number:
            self._demonstrations.buffer.update({name: value[first:] for name, value in info.items()})
        return {name: value[:first] for name, value in info.items()}


def mean_number(share: float, batch_size: int, at_random: bool) -> float:
    """Return the mean number of demonstrations in a minibatch: a whole number, unless it is ``at_random``.

    Raises:
        ValueError: If a minibatch cannot have both kinds.

    Example:
        >>> mean_number(0.25, 10, at_random=False), mean_number(0.25, 10, at_random=True)
        (2, 2.5)
    """
    require(batch_size >= 2, "learn.batch_size", ">= 2 with demonstrations", batch_size)
    return min(share * batch_size if at_random else max(1, round(share * batch_size)), batch_size - 1)


def _marked(batch: dict[str, Any], is_expert: bool) -> dict[str, Any]:
    """Return a minibatch with ``is_expert``, for each transition or each sequence."""
    each = batch["terminated"][..., 0, :] if "mask" in batch else batch["terminated"]
    return batch | {"is_expert": torch.full_like(each, is_expert, dtype=torch.bool)}


def demonstrations_of(datamodule: Any, dataset: Dataset) -> Demonstrations:
    """Return the demonstrations of a :class:`DemonstrationDataModule` with a policy.

    Raises:
        ValueError: If they do not fit the policy.
    """
    policy, use = datamodule._policy, datamodule._policy.demonstrations
    allowed = f"None, because {type(policy).__name__} learns from sequences, or from what only it collects"
    is_used = use == "needed" or not (use == "refused" or policy.on_policy or policy.learns_from_sequences)
    require(is_used, "demonstrations", allowed, "a data set")
    rewards, kind = policy.learner.rewards, policy.config.reward_model.type
    allowed = "None, or one that adds to the rewards of 1 and 0 of demonstrations and own steps"
    is_used = not (datamodule._replaces_rewards and policy.learner.replaces_env_reward)
    require(is_used, "reward_model.type", allowed, kind)
    allowed = "one that also gives rewards to demonstrations, which are not collected"
    require(rewards is None or not rewards.model.rewards_once, "reward_model.type", allowed, kind)
    config = policy.config.other.replay_buffer
    needs_env = get_buffer_cls(config).needs_env
    require(not needs_env, "other.replay_buffer.type", "one that needs no env, with demonstrations", config.type)
    dataset.check(datamodule.single_observation_space, datamodule.single_action_space)
    seed, share = datamodule._seeds().of("demonstrations"), datamodule.demonstration_share
    arguments = (config, seed, policy.action_start, datamodule._replaces_rewards, policy.dataset_columns)
    found = Demonstrations(dataset, share, *arguments, policy.rounds_share_at_random)
    found.buffer.budget = datamodule.max_env_step
    batch_size = policy.batch_size
    found.number(batch_size)
    fits = not policy.pretraining_updates or batch_size <= len(dataset)
    require(fits, "learn.batch_size", f"at most the {len(dataset)} demonstrations, with pretraining", batch_size)
    return found
