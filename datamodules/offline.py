"""Training on a data set, without collecting.

Shapes: N transitions of the data set, B transitions of a minibatch, U minibatches of a round.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from gymnasium import spaces
from lightning.pytorch import Callback, Trainer

from lightning_ding import nested
from lightning_ding.callbacks import Limits, default_callbacks
from lightning_ding.checkpoints import save_object
from lightning_ding.checkpoints.folder import BUFFER_FILE, COLLECTING_FILE, RANK_FOLDER, RNG_FILE
from lightning_ding.config import require
from lightning_ding.datamodules.base import CollectingDataModule
from lightning_ding.datamodules.dataset import Dataset, DatasetStatistics
from lightning_ding.datamodules.dataset_files import DatasetLike, load_dataset
from lightning_ding.datamodules.replay_round import ReplayRound
from lightning_ding.datamodules.resume import load_own_state, save_own_state
from lightning_ding.datamodules.rng import Seeds, rng_state, set_rng_state
from lightning_ding.envs.named import EnvLike, Names, Wrappers
from lightning_ding.envs.vector import EnvTimeout, VectorMode
from lightning_ding.utils.protocols import RETURN, EnvAccess, MonitorLike
from lightning_ding.worker import IBuffer, create_buffer
from lightning_ding.worker.episode_infos import InfoKeys


class OfflineDataModule(CollectingDataModule):
    """Serve rounds of minibatches of a data set, and evaluate in an env if one is given.

    A round has ``update_per_collect`` minibatches of ``batch_size`` transitions. The policy's replay buffer of type
    ``other.replay_buffer.type`` holds the whole data set, so n-step returns and priorities work as in online training;
    its size is that of the data set. An epoch is a number of rounds, followed by an evaluation if there is an env.
    Schedules, logs and names of checkpoints count updates. Under DDP every rank has the whole data set, and draws other
    minibatches.

    Args:
        dataset: Path of an ``.npz`` file, or of a ``.safetensors`` file that a replay buffer saved; id of a Minari data
            set on this machine; arrays by name; or a :class:`Dataset`. See :func:`load_dataset`.
        env_id: Evaluation env, in any form that :class:`CollectingDataModule` takes; None evaluates nothing, and takes
            the spaces from the data.
        mode: How the evaluation envs are stepped.
        wrappers: Wrappers of each env, the innermost first.
        env_kwargs: Arguments of the env.
        seed: Seed of evaluation and learning, >= 0; each rank derives its own from it.
        max_train_iter: Updates after which the run ends, >= 1; None for no limit.
        stop_value: Value of ``monitor`` at which the run ends, by default a mean return of evaluations; None means the
            mean return in the policy's ``eval.evaluator.stop_value``. Needs ``env_id``.
        rounds_per_epoch: Rounds of an epoch, >= 1; None means the number that makes ``eval_freq`` updates.
        evaluator_env_num: Envs for evaluation on each rank, >= 1; None means one for each episode, up to 8.
        n_evaluator_episode: Episodes of an evaluation over all ranks, >= 1; None means the policy's
            ``eval.evaluator.n_episode``.
        norm_obs: Whether the policy normalises observations by the mean and standard deviation of the data set; None
            means what it was trained with before, or False.
        norm_reward: Whether the policy learns from rewards divided by the standard deviation of the discounted return
            in the data set; None means as for ``norm_obs``.
        env_timeout: Time limit for an env in seconds, only with ``mode="async"``.
        import_names: Modules to import first, for the envs that they register.
        info_keys: Names of numbers in the info of the evaluation env, or a mapping from each to ``last``, ``mean``,
            ``sum`` or ``max`` over the steps of an episode; see :class:`CollectingDataModule`.
        monitor: Metric that chooses the best checkpoint and that ``stop_value`` is for; see
            :class:`CollectingDataModule`.
        eval_every: Updates between two evaluations, >= 1, since a run on a data set makes no env steps; None counts
            rounds.
        checkpoint_every: Updates between two checkpoints, >= 1; None for one after each evaluation. Needs
            ``eval_every``.

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
        {"num_envs", "max_env_step", "train_wrappers", "eval_wrappers", "eval_env_id", "eval_env_kwargs"}
    )

    def __init__(
        self,
        dataset: DatasetLike,
        env_id: EnvLike | None = None,
        mode: VectorMode = "sync",
        wrappers: Wrappers = (),
        env_kwargs: Mapping[str, Any] | None = None,
        seed: int = 0,
        max_train_iter: int | None = None,
        stop_value: float | None = None,
        rounds_per_epoch: int | None = None,
        evaluator_env_num: int | None = None,
        n_evaluator_episode: int | None = None,
        norm_obs: bool | None = None,
        norm_reward: bool | None = None,
        env_timeout: EnvTimeout = "default",
        import_names: Names = (),
        info_keys: InfoKeys = (),
        monitor: MonitorLike = RETURN,
        eval_every: int | None = None,
        checkpoint_every: int | None = None,
    ) -> None:
        super().__init__(
            cast(EnvLike, env_id),
            mode=mode,
            wrappers=wrappers,
            env_kwargs=env_kwargs,
            seed=seed,
            max_train_iter=max_train_iter,
            stop_value=stop_value,
            rounds_per_epoch=rounds_per_epoch,
            evaluator_env_num=evaluator_env_num,
            n_evaluator_episode=n_evaluator_episode,
            norm_obs=norm_obs,
            norm_reward=norm_reward,
            env_timeout=env_timeout,
            import_names=import_names,
            info_keys=info_keys,
            monitor=monitor,
            eval_every=eval_every,
            checkpoint_every=checkpoint_every,
        )
        require(env_id is not None or stop_value is None, "stop_value", "None without env_id", stop_value)
        self._handles.training = EnvAccess()
        if env_id is None:
            self._handles.evaluation = EnvAccess("without env_id, there are no evaluations")
        require(env_id is not None or eval_every is None, "eval_every", "None without env_id", eval_every)
        require(env_id is not None or not info_keys, "info_keys", "empty without env_id", info_keys)
        self.dataset: Dataset = load_dataset(dataset)
        """The data set."""
        is_named = isinstance(dataset, (str, os.PathLike))
        self.save_hyperparameters({"dataset": str(dataset) if is_named else f"{len(self.dataset)} transitions"})

    @cached_property
    def statistics(self) -> DatasetStatistics:
        """Moments and ranges of the data set."""
        return self.dataset.statistics()

    # ------------------------------------------------------------------ Lightning

    def _limits(self, trainer: Trainer) -> Limits:
        limits = super()._limits(trainer)
        return limits if self.env_id is not None else dataclasses.replace(limits, stop_value=None)

    def default_callbacks(self, trainer: Trainer) -> list[Callback]:
        """Return the callbacks that a run needs and ``trainer`` does not have yet."""
        return default_callbacks(trainer, self._limits(trainer))

    def val_dataloader(self) -> Any:
        """Return one evaluation, or nothing without an env (Lightning hook)."""
        evaluation = super().val_dataloader()
        return evaluation if self.env_id is not None else []

    test_dataloader = val_dataloader

    # ------------------------------------------------------------------ a round

    def _begin_episodes(self) -> None:
        pass  # nothing is collected

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
        folder.mkdir(parents=True, exist_ok=True)
        save_object(rng_state(self._policy.rng), folder / RNG_FILE)
        own = {"draws": self._draws.bit_generator.state, "metrics": self._policy.metrics.state_dict()}
        save_object(own, folder / COLLECTING_FILE)
        save_own_state(self._policy, cast(Trainer, self.trainer), folder)
        if with_buffer and self.buffer.is_prioritised:
            self.buffer.save_data(folder / BUFFER_FILE)

    def load_rank_state(self, folder: Path) -> None:
        """Read what ``save_rank_state`` wrote."""
        self._rng = torch.load(folder / RNG_FILE, weights_only=True)
        own: dict[str, Any] = torch.load(folder / COLLECTING_FILE, weights_only=True)
        self._policy.metrics.load_state_dict(own["metrics"], self._policy.device)
        if (folder / BUFFER_FILE).is_file():
            self.buffer.load_data(folder / BUFFER_FILE)
        self._draws.bit_generator.state = own["draws"]
        set_rng_state(cast("dict[str, Any]", self._rng), self._policy.rng)
        load_own_state(self._policy, folder)

    def _start_without_rank_state(self, checkpoint: str) -> None:
        super()._start_without_rank_state(checkpoint)
        self._draw_from(self._seeds())

    def _redistribute(self, folder: Path, saved: int, env_step: int) -> None:
        """Draw from a new seed on each rank; counters and weights have already been restored."""
        rank = cast(Trainer, self.trainer).global_rank
        file = folder / RANK_FOLDER.format(rank % saved) / BUFFER_FILE
        if file.is_file():  # priorities
            self.buffer.load_data(file)
        self._draw_from(Seeds(self.seed, rank, env_step))

    def _draw_from(self, seeds: Seeds) -> None:
        self._draws.bit_generator.state = np.random.default_rng(seeds.of("replay")).bit_generator.state

    # ------------------------------------------------------------------ setting up

    def _setup_evaluator(self, stage: str) -> None:
        if self.env_id is not None:
            super()._setup_evaluator(stage)
        else:
            require(stage == "fit", "env_id", "an env for evaluations (trainer.validate, trainer.test)", None)
            self._check_constant_actions()
            self.single_observation_space = self.dataset.observation_space
            self.single_action_space = self.dataset.action_space
            self._policy.build(self.single_observation_space, self.single_action_space)
        if stage == "fit":
            self.dataset.check(self.single_observation_space, self.single_action_space)

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

    def _setup_collector(self, trainer: Trainer) -> None:
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
        policy.learner.rewards.refuse("OfflineDataModule")
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
