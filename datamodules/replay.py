"""Off-policy training: collect transitions, store them in a replay buffer, and learn from samples of it.

Shapes: B transitions of a minibatch, U minibatches of a round.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from lightning.pytorch import Trainer

from lightning_ding.callbacks import StopAtEnvStep
from lightning_ding.config import require
from lightning_ding.datamodules.base import RunDataModule
from lightning_ding.datamodules.collecting import CollectingDataModule
from lightning_ding.datamodules.replay_round import ReplayRound
from lightning_ding.datamodules.resume import Seeds
from lightning_ding.envs import make_vector_env
from lightning_ding.envs.named import EnvLike
from lightning_ding.envs.vector import MODES, SEPARATE_MODES
from lightning_ding.nested import concatenate_arrays
from lightning_ding.utils.ranks import on_any_rank
from lightning_ding.worker import IBuffer, NotEnoughError, create_buffer, get_serial_collector_cls
from lightning_ding.worker.buffer.base import check_samples

if TYPE_CHECKING:
    from lightning_ding.datamodules.dataset import Dataset
    from lightning_ding.datamodules.dataset_files import DatasetLike
    from lightning_ding.datamodules.demonstrations import Demonstrations

logger = logging.getLogger(__name__)
MOST_PADDING = 0.5  # share of the steps in sequences above which a run warns
UPDATES_BEFORE_WARNING = 100  # the first sequences are short, because few steps were collected


class DemonstrationDataModule(RunDataModule):
    """A source of rounds that may take a share of each minibatch from demonstrations."""

    dataset: Dataset | None = None
    """The data set of the demonstrations; None without."""
    demonstration_share: float
    imitation_reward: bool
    _demonstrations: Demonstrations | None = None
    _replaces_rewards: bool = False
    """Whether own steps have a reward of 0, and demonstrations one of 1."""

    def _read_demonstrations(self, source: DatasetLike | None, share: float, imitation_reward: bool) -> None:
        """Check the arguments for demonstrations, and read the data set."""
        check_demonstrations(source, share, imitation_reward)
        self.demonstration_share, self.imitation_reward = share, imitation_reward
        if source is not None:
            from lightning_ding.datamodules.dataset_files import load_dataset

            self.dataset = load_dataset(source)
            described = str(source) if isinstance(source, (str, os.PathLike)) else f"{len(self.dataset)} transitions"
            options = {"demonstration_share": share, "imitation_reward": imitation_reward}
            self.save_hyperparameters({"demonstrations": described, **options})

    def _make_demonstrations(self, policy: Any) -> None:
        """Make the buffer of the demonstrations, if there is none for this policy yet, and check that they fit it."""
        self._replaces_rewards = self.imitation_reward or policy.demonstrations == "imitated"
        is_optional = self.dataset is not None or policy.demonstrations in ("optional", "refused")
        allowed = f"a data set, because {type(policy).__name__} learns from demonstrations"
        require(is_optional, "demonstrations", allowed, None)
        if self.dataset is not None and self._demonstrations is None:
            from lightning_ding.datamodules.demonstrations import demonstrations_of

            self._demonstrations = demonstrations_of(self, self.dataset)

    def _pretraining_round(self) -> ReplayRound | None:
        """Return a round of demonstrations only, with which some policies begin; None when these have been learned."""
        if self._demonstrations is None:
            return None
        policy, train_iter = self._policy, self._policy.progress.train_iter
        number = min(policy.pretraining_updates - train_iter, policy.update_per_collect)
        if number <= 0:
            return None
        alone = self._demonstrations.alone()
        return ReplayRound(alone, number, policy.batch_size, train_iter, policy.sample_options)

    def _set_precision(self) -> None:
        if self._demonstrations is not None:
            keeps_double = self._policy.normaliser.keeps_double
            self._demonstrations.fill(keeps_double)
            cast("Dataset", self.dataset).warn_of_lost_variation(keeps_double)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return the state that all ranks share, and a checksum of the demonstrations (Lightning hook)."""
        checksum = None if self.dataset is None else self.dataset.checksum
        return super().state_dict() | {"demonstrations": checksum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the run if training is resumed (Lightning hook).

        Raises:
            ValueError: If the demonstrations or a normalisation are not those of the checkpoint.
        """
        if cast(Trainer, self.trainer).state.fn == "fit":
            then, now = state.get("demonstrations"), None if self.dataset is None else self.dataset.checksum
            allowed = "None, as in the checkpoint" if then is None else f"those of the checkpoint ({then})"
            require(then == now, "demonstrations", allowed, now)
        super().load_state_dict(state)

    def save_rank_state(self, folder: Path, with_buffer: bool = True) -> None:
        """Write the state of this rank, and that of the draws of demonstrations."""
        super().save_rank_state(folder, with_buffer)
        if self._demonstrations is not None:
            self._demonstrations.save(folder, with_buffer)

    def load_rank_state(self, folder: Path) -> None:
        """Read what ``save_rank_state`` wrote."""
        super().load_rank_state(folder)
        if self._demonstrations is not None:
            self._demonstrations.load(folder)

    def _take_over(self, folders: Sequence[Path], seeds: Seeds) -> None:
        super()._take_over(folders, seeds)
        if self._demonstrations is not None:
            self._demonstrations.load(folders[0], seeds.of("demonstrations"))

    def _begin(self) -> None:
        """Begin the statistics of a policy that has none with the demonstrations."""
        if self._demonstrations is not None:
            self._demonstrations.begin_statistics(self._policy.normaliser, cast(Trainer, self.trainer))


def check_demonstrations(source: Any, share: float, imitation_reward: bool, section: str = "") -> None:
    """Raise ValueError for a share that is out of its range, or for options without demonstrations."""
    require(0 < share < 1, f"{section}demonstration_share", "in (0, 1)", share)
    is_used = source is not None or (share == 0.5 and not imitation_reward)
    require(is_used, f"{section}demonstrations", "a data set with demonstration_share or imitation_reward", None)


class ReplayDataModule(DemonstrationDataModule, CollectingDataModule):
    """Collect in envs, store transitions in a replay buffer, and serve rounds of minibatches.

    In a round, ``n_sample`` transitions or ``n_episode`` episodes are collected and pushed to the buffer, and
    ``update_per_collect`` minibatches are sampled, of transitions or of sequences. An epoch is a number of rounds,
    followed by an evaluation. Under DDP every rank has its own buffer, and all demonstrations.
    """

    buffer: IBuffer | None = None
    """The replay buffer of this rank; None until a fit has been set up. A later fit of the same policy continues to use
    it."""
    _buffer_of: Any = None
    _has_warned: bool = False  # of padding

    not_shared: ClassVar[str] = (
        "replay data, nor the state of envs and random number generators: continuing with an empty buffer, new "
        "episodes and new random seeds"
    )

    def __init__(
        self,
        env_id: EnvLike,
        *args: Any,
        demonstrations: DatasetLike | None = None,
        demonstration_share: float = 0.5,
        imitation_reward: bool = False,
        **kwargs: Any,
    ) -> None:
        """Define the envs, the limits and the demonstrations of a run.

        Args:
            env_id: A registered gymnasium id, ``module:id``, the dotted path of a class or function, a mapping with
                ``class_path`` and ``init_args``, or a callable that returns an env.
            args: Further arguments of :class:`CollectingDataModule`.
            demonstrations: Data set of which each minibatch has a share, in any form that :func:`load_dataset` takes;
                None for none. The entry ``is_expert`` of a minibatch is True for them.
            demonstration_share: Share of a minibatch that is drawn from ``demonstrations``, in (0, 1).
            imitation_reward: Whether to learn from a reward of 1 for each step of the demonstrations and 0 for each own
                step, in place of the env's (Reddy et al. 2019, https://arxiv.org/abs/1905.11108). Some policies always
                do.
            kwargs: Further arguments of :class:`CollectingDataModule`.

        Raises:
            ValueError: If there is no such env, wrapper or data set, or an argument is out of its range.
            TypeError: If an env or a wrapper is neither a name, a mapping nor a callable.
            ImportError: If a module of ``import_names`` cannot be imported.
        """
        super().__init__(env_id, *args, **kwargs)
        self._read_demonstrations(demonstrations, demonstration_share, imitation_reward)

    # ------------------------------------------------------------------ state

    def save_rank_state(self, folder: Path, with_buffer: bool = True) -> None:
        """Write the collection state, the random number states and the replay buffer of this rank."""
        from lightning_ding.checkpoints.folder import BUFFER_FILE

        super().save_rank_state(folder, with_buffer)
        if with_buffer:
            cast(IBuffer, self.buffer).save_data(folder / BUFFER_FILE)

    def load_rank_state(self, folder: Path) -> None:
        """Read what ``save_rank_state`` wrote."""
        from lightning_ding.checkpoints.folder import BUFFER_FILE

        super().load_rank_state(folder)
        if (folder / BUFFER_FILE).is_file():
            cast(IBuffer, self.buffer).load_data(folder / BUFFER_FILE)
        else:
            self._without_replay_data(folder)

    def _take_over(self, folders: Sequence[Path], seeds: Seeds) -> None:
        from lightning_ding.checkpoints.folder import BUFFER_FILE

        super()._take_over(folders, seeds)
        files = [folder / BUFFER_FILE for folder in folders if (folder / BUFFER_FILE).is_file()]
        if not files:
            self._without_replay_data(folders[0])
            return
        buffer = cast(IBuffer, self.buffer)
        buffer.clear()  # an earlier fit may have filled it
        taken, self._first_episode_id = buffer.load_files(files, seeds.of("replay")), buffer.next_episode_id()
        if taken < len(files):
            kind = type(self.buffer).__name__
            logger.warning(
                "buffers of type %s cannot be merged: only the first of %d saved ones is used", kind, len(files)
            )

    def _without_replay_data(self, folder: Path) -> None:
        logger.warning("%s contains no replay data: continuing with an empty buffer", folder)
        self._without_buffer()

    def _without_buffer(self) -> None:
        cast(IBuffer, self.buffer).clear()  # an earlier fit may have filled it

    def pop_metrics(self) -> dict[str, float]:
        """Return the metrics of the collection and of the buffer since the last call, by full name."""
        metrics = super().pop_metrics()
        if self.buffer is not None:
            for name, value in self.buffer.pop_metrics().items():
                metrics[f"buffer/{name}"] = value
        return metrics

    # ------------------------------------------------------------------ a round

    def _reset(self) -> None:
        super()._reset()
        if self.buffer is not None:  # from an earlier fit; episodes are dropped by their id, which must be unique
            self._first_episode_id = self.buffer.next_episode_id()

    def _next_round(self) -> ReplayRound:
        """Collect transitions or episodes, more of them until the buffer has a minibatch, and sample a round.

        At the start of a run the policy may learn from demonstrations only, without collecting. The limits of a buffer
        on use and age may leave too few of the transitions that it holds; then more are collected too.
        """
        policy = self._policy
        batch_size, amount = policy.batch_size, policy.n_episode or policy.n_sample
        train_iter, updates = policy.progress.train_iter, policy.update_per_collect
        if (pretraining := self._pretraining_round()) is not None:
            return pretraining
        while True:
            while self._collect_and_push(amount, batch_size):
                pass  # all ranks collect together until each has a minibatch
            buffer = cast(IBuffer, self.buffer)
            mixed = buffer if self._demonstrations is None else self._demonstrations.mixed_with(buffer)
            try:
                drawn = ReplayRound(mixed, updates, batch_size, train_iter, policy.sample_options)
            except NotEnoughError:
                if not mixed.runs_out:
                    raise
            else:
                if buffer.padding > MOST_PADDING and train_iter >= UPDATES_BEFORE_WARNING and not self._has_warned:
                    self._warn_of_padding(buffer.padding)
                if self._overlap is not None:
                    self._collect_meanwhile(self._overlap)
                return drawn

    def _begin(self) -> None:
        """Fill an empty buffer, with random actions of an untrained policy; collect at most ``max_env_step`` steps."""
        super()._begin()
        trainer, progress = cast(Trainer, self.trainer), self._policy.progress
        limits = [one.limit for one in trainer.callbacks if isinstance(one, StopAtEnvStep)]  # type: ignore[attr-defined]
        left = min([sys.maxsize, *limits]) - progress.env_step  # before max_env_step, and room for one more round
        left = int(max(0, left // trainer.world_size - (self._policy.n_sample or 1)))
        warm_up = min(self._policy.random_collect_size, left)
        is_empty = cast(IBuffer, self.buffer).count() == 0
        if warm_up and on_any_rank(is_empty):
            is_random, episodes = not (progress.has_learned or self._policy.has_loaded_weights), self._policy.n_episode
            enough = min(warm_up, self._policy.config.other.replay_buffer.replay_buffer_size) if episodes else 0
            while self._collect_and_push(episodes or warm_up, enough, is_random):
                pass

    def _collect_and_push(self, amount: int, wanted: int, random: bool = False) -> bool:
        """Collect transitions and push them to the buffer.

        Args:
            amount: Number of transitions, or of whole episodes.
            wanted: Number of transitions that the buffer should hold then.
            random: Whether actions are random.

        Returns:
            Whether the buffer of at least one rank holds fewer than ``wanted``.
        """
        env_step, buffer = self._policy.progress.env_step, cast(IBuffer, self.buffer)
        collected = self._collect(amount, random)
        if isinstance(collected, list):
            collected = self._policy.collect_mode.get_train_sample(concatenate_arrays(collected, keep_double=True))
        if self._replaces_rewards:
            collected = {**collected, "reward": np.zeros_like(collected["reward"])}
        if self._policy.normaliser.is_on:
            self._policy.normaliser.update(self._policy.normaliser.tensors(collected))
        if (rewards := self._policy.learner.rewards) is not None:
            own = rewards.collect_data(self._policy.normaliser.tensors(collected))
            collected = collected if own is None else {**collected, "reward": own}
        buffer.push(collected, env_step)
        if self._dropped_episodes:  # transitions from before the fault may be in the buffer
            buffer.drop_episodes(self._dropped_episodes)
        return self._count(buffer.count() < wanted)

    def _warn_of_padding(self, share: float) -> None:
        """Warn that most of what the policy computes is padding, because sequences are longer than episodes."""
        self._has_warned = True
        length = self._policy.sample_options.get("sequence")
        options = ("unroll_len", "learn_unroll_len", "horizon")
        name = next((one for one in options if hasattr(self._policy.config, one)), options[0])
        logger.warning(
            "%.0f %% of the steps in minibatches are padding, because most episodes are shorter than a sequence "
            "(%s steps): set %s to about the length of an episode, so that updates cost less and the loss, which is "
            "divided by the steps of a sequence, is not scaled down",
            *(100 * share, length, name),
        )

    # ------------------------------------------------------------------ setting up

    def _setup_source(self, trainer: Trainer) -> None:
        super()._setup_source(trainer)
        self._set_precision()
        buffer = cast(IBuffer, self.buffer)
        if buffer.needs_env:
            kind = self._policy.config.other.replay_buffer.type
            allowed = f"one of {SEPARATE_MODES} with other.replay_buffer.type {kind!r}"
            require(MODES[self.mode].has_separate_envs, "mode", allowed, self.mode)
            env: Any = make_vector_env(self.env_id, 1, "sync", None, self._collector_wrappers(), self.env_kwargs)
            self._envs.opened.append(env)
            buffer.use_env(env.envs[0])

    def _set_precision(self) -> None:
        cast(IBuffer, self.buffer).keeps_double = self._policy.normaliser.keeps_double
        super()._set_precision()

    def _check_policy(self, policy: Any) -> None:
        """Make the buffer, if there is none for this policy yet, and check that it fits the policy."""
        name = type(policy).__name__
        allowed = "one that learns from replay (use RolloutDataModule for on-policy algorithms)"
        require(not policy.on_policy, "policy", allowed, name)
        collects = policy.n_sample is not None or policy.n_episode is not None
        require(collects, "policy", "one that collects (use OfflineDataModule for this one)", name)
        self._check_fields(("other.replay_buffer",))
        allowed, episodes = "set with a collector of whole episodes, and None with others", policy.n_episode
        is_whole = get_serial_collector_cls(policy.config.collect.collector).collects_whole_episodes
        require(is_whole == (episodes is not None), "collect.n_episode", allowed, episodes)
        config = policy.config.other.replay_buffer
        if self.buffer is None or self._buffer_of is not policy:
            self._buffer_of, seed = policy, self._seeds().of("replay")
            if self.mode == "tensor":
                from lightning_ding.worker.buffer.tensor import TensorReplayBuffer

                device = cast(Trainer, self.trainer).strategy.root_device
                self.buffer = TensorReplayBuffer(config, self.num_envs, device, seed)
            else:
                self.buffer = create_buffer(config, seed=seed)
            self._demonstrations = None
        self.buffer.budget = self.max_env_step
        check_samples(config, policy.learns_from_sequences, policy.priority)
        size, batch_size = config.replay_buffer_size, policy.batch_size
        fits = f"at least learn.batch_size ({batch_size})"
        require(size >= batch_size, "other.replay_buffer.replay_buffer_size", fits, size)
        self._make_demonstrations(policy)
