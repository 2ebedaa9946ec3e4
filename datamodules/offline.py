"""Training on a data set, without collecting.

Shapes: N transitions of the data set, B transitions of a minibatch, U minibatches of a round.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from gymnasium import spaces
from lightning.pytorch import Trainer

from lightning_ding import nested
from lightning_ding.callbacks import Limits
from lightning_ding.checkpoints import save_object
from lightning_ding.checkpoints.folder import BUFFER_FILE, COLLECTING_FILE
from lightning_ding.config import require
from lightning_ding.datamodules.base import RunDataModule
from lightning_ding.datamodules.dataset import Dataset, DatasetStatistics
from lightning_ding.datamodules.dataset_files import DatasetLike, load_dataset
from lightning_ding.datamodules.replay_round import ReplayRound
from lightning_ding.datamodules.resume import Seeds
from lightning_ding.envs.named import EnvLike
from lightning_ding.utils.protocols import EnvAccess
from lightning_ding.worker import IBuffer, create_buffer


class OfflineDataModule(RunDataModule):
    """Serve rounds of minibatches of a data set, and evaluate in an env if one is given.

    A round has ``update_per_collect`` minibatches of ``batch_size`` transitions. The policy's replay buffer of type
    ``other.replay_buffer.type`` holds the whole data set, so n-step returns and priorities work as in online training;
    its size is that of the data set. An epoch is a number of rounds, followed by an evaluation if there is an env.
    Schedules, logs and names of checkpoints count updates. Under DDP every rank has the whole data set, and draws other
    minibatches.

    Args:
        dataset: Path of an ``.npz`` file, or of a ``.safetensors`` file that a replay buffer saved; id of a Minari data
            set on this machine; arrays by name; or a :class:`Dataset`. See :func:`load_dataset`.
        env_id: Evaluation env, in any form that :class:`RunDataModule` takes; None evaluates nothing, and takes
            the spaces from the data.
        kwargs: Further arguments of :class:`RunDataModule`, which concern evaluations and updates here:
            ``norm_obs`` and ``norm_reward`` use the statistics of the data set, and ``eval_every`` and
            ``checkpoint_every`` count updates. Not ``num_envs``, ``max_env_step``, ``train_wrappers``, and no env of
            evaluations other than ``env_id``.

    Raises:
        ValueError: If there is no such data set, env or wrapper, or an argument is out of its range.
        TypeError: If ``env_id`` is neither a name, a mapping nor a callable.
        ImportError: If the extra ``minari`` is needed and not installed.

    Example:
        >>> steps = {"obs": np.zeros((9, 3)), "action": np.linspace(-1, 1, 9)[:, None], "reward": np.ones(9)}
        >>> ends = {"terminated": np.arange(9) == 8, "truncated": np.zeros(9, dtype=bool)}
        >>> datamodule = OfflineDataModule({**steps, **ends}, max_train_iter=1000)
        >>> datamodule.statistics.return_mean
        9.0
    """

    axis: ClassVar[Literal["env_step", "train_iter"]] = "train_iter"
    needs_env: ClassVar[bool] = False
    not_shared: ClassVar[str] = "state of random number generators and priorities: continuing with new random seeds"
    no_options: ClassVar[frozenset[str]] = frozenset(
        {
            *("num_envs", "num_workers", "max_env_step", "train_wrappers", "eval_wrappers", "eval_env_id"),
            *("eval_env_kwargs", "overlap"),
        }
    )

    def __init__(
        self,
        dataset: DatasetLike,
        env_id: EnvLike | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            cast(EnvLike, env_id),
            num_envs=8,
            max_env_step=None,
            train_wrappers=(),
            eval_wrappers=(),
            eval_env_id=None,
            eval_env_kwargs=None,
            overlap=False,
            **kwargs,
        )
        self._handles.training = EnvAccess()
        if not self.evaluates:
            self._handles.evaluation = EnvAccess("without env_id, there are no evaluations")
            require(self.stop_value is None, "stop_value", "None without env_id", self.stop_value)
            require(self.eval_every is None, "eval_every", "None without env_id", self.eval_every)
            require(not self.info_keys, "info_keys", "empty without env_id", kwargs.get("info_keys"))
        self.dataset: Dataset = load_dataset(dataset)
        """The data set."""
        is_named = isinstance(dataset, (str, os.PathLike))
        self.save_hyperparameters({"dataset": str(dataset) if is_named else f"{len(self.dataset)} transitions"})

    @cached_property
    def statistics(self) -> DatasetStatistics:
        """Moments and ranges of the data set."""
        return self.dataset.statistics()

    def _limits(self, trainer: Trainer) -> Limits:
        limits = super()._limits(trainer)
        return limits if self.evaluates else dataclasses.replace(limits, stop_value=None)

    # ------------------------------------------------------------------ a round

    def _next_round(self) -> ReplayRound:
        policy, progress = self._policy, self._policy.progress
        amount = (policy.update_per_collect, policy.batch_size)
        train_iter = progress.train_iter
        progress.data_iter += amount[0]
        self.buffer.env_step = train_iter  # schedules count updates here
        return ReplayRound(self.buffer, *amount, train_iter, policy.sample_options)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return the state that all ranks share, and a checksum of the data set (Lightning hook)."""
        return super().state_dict() | {"dataset": self.dataset.checksum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the run if training is resumed (Lightning hook).

        Raises:
            ValueError: If the data set or a normalisation is not that of the checkpoint.
        """
        if cast(Trainer, self.trainer).state.fn == "fit":
            then, now = state.get("dataset"), self.dataset.checksum
            require(then == now, "dataset", f"that of the checkpoint, with the checksum {then}", now)
        super().load_state_dict(state)

    def save_rank_state(self, folder: Path, with_buffer: bool = True) -> None:
        """Write the states of the random number generators of this rank, and priorities if there are any.

        Raises:
            OSError: If a file cannot be written.
        """
        super().save_rank_state(folder, with_buffer)
        own = {"draws": self._draws.bit_generator.state, "metrics": self._policy.metrics.state_dict()}
        save_object(own, folder / COLLECTING_FILE)
        if with_buffer and self.buffer.is_prioritised:
            self.buffer.save_data(folder / BUFFER_FILE)

    def load_rank_state(self, folder: Path) -> None:
        """Read what ``save_rank_state`` wrote."""
        super().load_rank_state(folder)
        own: dict[str, Any] = torch.load(folder / COLLECTING_FILE, weights_only=True)
        self._policy.metrics.load_state_dict(own["metrics"], self._policy.device)
        if (folder / BUFFER_FILE).is_file():
            self.buffer.load_data(folder / BUFFER_FILE)
        self._draws.bit_generator.state = own["draws"]

    def _start_without_rank_state(self, checkpoint: str) -> None:
        super()._start_without_rank_state(checkpoint)
        self._draw_from(self._seeds())

    def _take_over(self, folders: Sequence[Path], seeds: Seeds) -> None:
        """Draw from a new seed on each rank; counters and weights have already been restored."""
        if (folders[0] / BUFFER_FILE).is_file():  # priorities
            self.buffer.load_data(folders[0] / BUFFER_FILE)
        self._draw_from(seeds)

    def _draw_from(self, seeds: Seeds) -> None:
        self._draws.bit_generator.state = np.random.default_rng(seeds.of("replay")).bit_generator.state

    # ------------------------------------------------------------------ setting up

    def _setup_without_env(self, stage: str) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        require(stage == "fit", "env_id", "an env for evaluations (trainer.validate, trainer.test)", None)
        self._check_constant_actions()
        return self.dataset.observation_space, self.dataset.action_space

    def _check_constant_actions(self) -> None:
        """Raise if the bounds of continuous actions have to come from data in which a dimension never changes."""
        space = self.dataset.action_space
        if not isinstance(space, spaces.Box):
            return
        constant = np.flatnonzero(space.low == space.high)
        allowed = (
            "of more than one value in each dimension where it gives the bounds; otherwise set env_id, or action_low "
            "and action_high in the .npz file, or the action_space of a Dataset"
        )
        require(not constant.size, "dataset's action", allowed, f"one value in the dimensions {constant.tolist()}")

    def _setup_source(self, trainer: Trainer) -> None:
        self.dataset.check(self.single_observation_space, self.single_action_space)
        self._check_policy(self._policy)
        self._start_normalising()
        self._reset()
        self._fill_buffer()
        if self._policy.normaliser.is_on:
            self._update_statistics(trainer)

    def _check_policy(self, policy: Any) -> None:
        """Check that the policy learns from replay, and that the data set is large enough.

        Raises:
            ValueError: If not.
        """
        name = type(policy).__name__
        require(not policy.on_policy, "policy", "one that learns from replay", name)
        takes_these = not policy.learns_from_sequences or policy.trains_on == "dataset"
        require(takes_these, "policy", "one that learns from single transitions or from returns to go", name)
        is_enough = policy.demonstrations == "optional"
        require(is_enough, "policy", "one that learns from a data set alone", name)
        policy.config.reward_model.refuse("OfflineDataModule")
        is_plain = not (self.norm_reward and policy.learns_from_sequences)
        require(is_plain, "norm_reward", "False for a policy that learns from returns to go", self.norm_reward)
        fits = f"at most the {len(self.dataset)} transitions of the data set"
        size = policy.batch_size
        require(size <= len(self.dataset), "learn.batch_size", fits, size)

    def _fill_buffer(self) -> None:
        """Make a buffer of the policy's type that holds the data set."""
        policy, in_sequences = self._policy, self._policy.learns_from_sequences
        columns = self.dataset.trajectories() if in_sequences else self.dataset.columns
        size = len(columns["reward"])
        config = dataclasses.replace(policy.config.other.replay_buffer, replay_buffer_size=size)
        self._draws = np.random.default_rng(self._seeds().of("replay"))
        self.buffer: IBuffer = create_buffer(config, seed=self._draws)
        kind = "other.replay_buffer.type"
        allowed = f"one whose samples are {'sequences' if in_sequences else 'transitions'}"
        require(self.buffer.gives_sequences == in_sequences, kind, allowed, config.type)
        require(not self.buffer.needs_env, kind, "one that needs no env, with a data set", config.type)
        limits = getattr(config, "thruput_controller", None)  # the advanced buffer has them
        is_unlimited = limits is None or not limits.is_active
        allowed_limits = "left at its default with a data set, to which nothing is pushed"
        require(is_unlimited, "other.replay_buffer.thruput_controller", allowed_limits, limits)
        is_enough = self.buffer.is_prioritised or not policy.priority
        require(is_enough, kind, "a prioritised one, such as 'advanced', with priority", config.type)
        self.buffer.budget, self.buffer.keeps_double = self.max_train_iter, policy.normaliser.keeps_double
        self.dataset.warn_of_lost_variation(self.buffer.keeps_double)
        action = columns["action"]
        if not self.dataset.starts_at_zero:
            action = policy.action_start.from_env(action)
        more = policy.dataset_columns(self.dataset, self.dataset.columns["reward"])
        env_id = np.zeros(size, dtype=np.int64)
        self.buffer.push({**columns, "action": action, "env_id": env_id, **more})

    def _set_precision(self) -> None:
        self._fill_buffer()

    def _update_statistics(self, trainer: Trainer) -> None:
        """Add the data set to the statistics of a policy that has none, an equal share of the episodes on each rank."""
        normaliser, columns = self._policy.normaliser, self.dataset.columns
        if normaliser.has_statistics:
            return
        mine = columns["episode_id"] % trainer.world_size == trainer.global_rank
        own = {name: nested.index(columns[name], mine) for name in ("obs", "reward", "episode_id")}
        normaliser.update(normaliser.tensors({**own, "env_id": own["episode_id"]}))
