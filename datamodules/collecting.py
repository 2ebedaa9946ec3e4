"""Sources of rounds that collect in envs of this process and its child processes with the newest weights."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from operator import sub
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from lightning.pytorch import Trainer
from typing_extensions import override

from lightning_ding.datamodules.base import RunDataModule
from lightning_ding.envs.vector import MODES, differ_in_bounds_only, seed_envs
from lightning_ding.utils.ranks import sum_over_ranks, world_size
from lightning_ding.worker import (
    ISerialCollector,
    create_serial_collector,
    get_serial_collector_cls,
)

if TYPE_CHECKING:
    from lightning_ding.worker.collector.overlap import Overlap

logger = logging.getLogger(__name__)

MEGABYTE = 1e6
SMALLEST = 10 * MEGABYTE  # bytes of the envs' state about which nothing is said


class CollectingDataModule(RunDataModule):
    """Collect data with the policy that is trained, and evaluate the policy. A subclass defines a round of training.

    The policy's config determines how much is collected and how many updates are made; the arguments of this class
    determine the envs and the length of the run. Under DDP every rank has its own envs and seeds; ``max_env_step``
    counts the steps of all ranks together.

    Collecting starts with new episodes. In a resumed run it continues from the state in the checkpoint.

    With ``overlap`` the envs make the steps of the next round while the updates of a round run, with the weights that
    the round began with. When the updates end, these steps have been made, and count.
    """

    not_shared: ClassVar[str] = (
        "state of envs and random number generators: continuing with new episodes and new random seeds"
    )
    _collector_env: VectorEnv
    _dropped_episodes: list[int]
    """Ids of the episodes that were dropped in the last collection."""
    _envs_sizes: Counter[str] | None = None  # bytes by the name of an object
    _overlap: Overlap | None = None  # in a fit with overlap

    # ------------------------------------------------------------------ setting up

    def _check_policy(self, policy: Any) -> None:
        """Raise if the policy or its config does not fit this datamodule."""
        raise NotImplementedError

    def _collector_wrappers(self) -> tuple[Callable[[Any], Any], ...]:
        """Return the wrappers of the training envs, innermost first."""
        wrappers = self._dropping_faults((*self.wrappers, *self.train_wrappers))
        if self._policy.n_episode is None or not MODES[self.mode].has_separate_envs:
            return wrappers
        from lightning_ding.envs import Pausable

        return (*wrappers, Pausable)

    @override
    def _setup_source(self, trainer: Trainer) -> None:
        policy = self._policy
        if get_serial_collector_cls(policy.config.collect.collector).has_players:
            raise ValueError(
                "collect.collector.type must be a collector for one policy, such as 'sample', in a "
                f"{type(self).__name__}, got {policy.config.collect.collector.type!r}; collectors for several players "
                "are used without a datamodule"
            )
        if self.mode == "tensor":
            from lightning_ding.worker.collector.tensor import check_policy

            check_policy(policy, self)
        self._check_policy(policy)
        env = self._make_training_env()
        pairs = {
            "observation": (env.single_observation_space, self.single_observation_space),
            "action": (env.single_action_space, self.single_action_space),
        }
        for name, (train, evaluate) in pairs.items():
            if train != evaluate and not (name == "observation" and differ_in_bounds_only(train, evaluate)):
                raise ValueError(
                    f"training and evaluation envs must have the same {name} space, got {train} and {evaluate}; a "
                    "wrapper that changes it belongs in wrappers, not in train_wrappers or eval_wrappers"
                )
        self._start_normalising()
        if policy.learner.rewards is not None:
            policy.learner.rewards.begin()
        self._collector_env = env
        self._use_env("training", env)
        self.collector = self._make_collector(env)
        self.collector.info_keys, self.collector.info_check = self.info_keys, self.info_check
        self._overlap = None
        if self.overlap:
            from lightning_ding.worker.collector.overlap import Overlap

            self._overlap = Overlap(self.collector, policy, self._count)
        self._reset()

    @override
    def _setup_without_env(self, stage: str) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        env = self._make_training_env()
        return env.single_observation_space, env.single_action_space

    def _make_training_env(self) -> VectorEnv:
        return self._make_env(self.env_id, self.num_envs, self._collector_wrappers(), self.env_kwargs)

    def _make_collector(self, env: VectorEnv) -> Any:
        """Return the collector for training envs, of arrays or of tensors."""
        policy, num_envs = self._policy, env.num_envs if self.mode == "tensor" else None
        if num_envs is not None or policy.tensor_envs is not None:  # the policy may have been fitted in other envs
            policy.tensor_envs = num_envs
        if num_envs is None:
            return create_serial_collector(policy.config.collect.collector, env=env, policy=policy.collect_mode)
        from lightning_ding.worker.collector.tensor import TensorCollector

        return TensorCollector(cast(Any, env).tensors, policy)

    # ------------------------------------------------------------------ collecting

    def _collect_meanwhile(self, overlap: Overlap) -> None:
        """Begin to collect for the next round, which continues while the updates of this one run."""
        collector, progress = cast(ISerialCollector, self.collector), self._policy.progress
        state = {"learner_step": progress.train_iter, "envstep": progress.env_step}
        self._collect_kwargs = self._policy.command_mode.get_setting_collect(state)
        self._counted = (collector.envstep, collector.episode, collector.sample)
        overlap.begin(self._policy.n_sample, self._collect_kwargs)

    def _collect(self, amount: int, random: bool = False, **kwargs: Any) -> Any:
        """Return transitions or episodes from the collector; the caller has to call :meth:`_count` afterwards."""
        collector = cast(ISerialCollector, self.collector)
        if self._overlap is not None:
            self._overlap.finish()  # of a policy with a training_step of its own
        if not random:
            state = {"learner_step": self._policy.progress.train_iter, "envstep": self._policy.progress.env_step}
            self._collect_kwargs = self._policy.command_mode.get_setting_collect(state)
        self._counted = (collector.envstep, collector.episode, collector.sample)
        settings = {} if random else self._collect_kwargs
        train_iter = self._policy.progress.train_iter
        data = collector.collect(amount, train_iter, random_collect=random, policy_kwargs=settings, **kwargs)
        self._dropped_episodes = collector.pop_dropped_episodes()
        return data

    def _count(self, lacks_data: bool = False) -> bool:
        """Sum env steps, episodes and samples over all ranks, and add them to the counters of the run.

        Args:
            lacks_data: Whether this rank has to collect more before it can learn.

        Returns:
            Whether at least one rank has to. It is found out together with the sums, in one exchange.
        """
        collector, progress = cast(ISerialCollector, self.collector), self._policy.progress
        now = (collector.envstep, collector.episode, collector.sample)
        env_step, episode, sample = map(sub, now, self._counted)
        if world_size() > 1:
            of_rank = torch.tensor([env_step, episode, sample, lacks_data])
            env_step, episode, sample, lacks_data = sum_over_ranks(of_rank).tolist()
        progress.env_step += env_step
        progress.episode += episode
        progress.sample += sample
        return bool(lacks_data)

    # ------------------------------------------------------------------ reports

    @override
    def pop_episode_sums(self) -> tuple[float, float, int]:
        """Return sums over the episodes since the last call; see :meth:`RunData.pop_episode_sums`."""
        if self.mode != "tensor" or self.collector is None:
            return super().pop_episode_sums()
        found: tuple[float, float, int] = self.collector.pop_episode_sums()
        self._policy.progress.episode += int(sum_over_ranks(torch.tensor(found[2])))  # only now is it known
        return found

    @override
    def keep_records(self) -> None:
        """Keep a record of each episode that ends from now on, for :meth:`pop_records`.

        Raises:
            ValueError: If nothing is collected.
        """
        if self.collector is None:
            super().keep_records()
        else:
            self.collector.keep_records()

    @override
    def pop_records(self) -> list[tuple[float, ...]]:
        """Return the episodes of this rank since the last call; see :meth:`RunData.pop_records`."""
        if self.collector is None:
            return []
        records, now, made = self.collector.pop_records(), self._policy.progress.env_step, self.collector.envstep
        return [(now - (made - end) * world_size(), *rest) for end, *rest in records]

    @override
    def steps_made(self) -> int:
        """Return the env steps made on this rank so far, in training and in evaluations."""
        return super().steps_made() + (self.collector.envstep if self.collector is not None else 0)

    # ------------------------------------------------------------------ state

    @override
    def save_rank_state(self, folder: Path, with_buffer: bool = True) -> None:
        """Write the collection state and the random number states of this rank, and the state that a subclass adds."""
        from lightning_ding.checkpoints import save_object
        from lightning_ding.checkpoints.folder import COLLECTING_FILE
        from lightning_ding.datamodules.rank_state import read_collecting

        if self._overlap is not None:
            self._overlap.finish()  # of a policy with a training_step of its own
        super().save_rank_state(folder, with_buffer)
        state = self._collecting or read_collecting(*self._collecting_parts())
        self._report_missing(state, "this run's checkpoint does not contain")
        save_object(state, folder / COLLECTING_FILE)
        if (folder / COLLECTING_FILE).stat().st_size > SMALLEST:
            from lightning_ding.envs.state.state import state_sizes

            self._envs_sizes = Counter()
            for name in ("envs", "evaluation_envs"):
                self._envs_sizes.update(state_sizes(state[name] or {}))

    @override
    def note_written(self, folder: Path) -> None:
        """Log once if most of a checkpoint is the state of its envs."""
        from lightning_ding.checkpoints.folder import RANK_FOLDER

        if not self._envs_sizes:
            return
        sizes, self._envs_sizes = self._envs_sizes, None
        rank = folder / RANK_FOLDER.format(cast(Trainer, self.trainer).global_rank)
        files = [file for file in [*folder.iterdir(), *rank.iterdir()] if file.is_file()]
        total, envs = sum(file.stat().st_size for file in files), sizes.total()
        if 2 * envs > total:
            (name, size), *_ = sizes.most_common(1)
            self._warn_once(
                "most of a checkpoint is the state of the envs: %.0f of %.0f MB, of which %s is %.0f MB; an env that "
                "has state_dict() can leave it out",
                *(envs / MEGABYTE, total / MEGABYTE, name, size / MEGABYTE),
                key="sizes",
            )

    @override
    def load_rank_state(self, folder: Path) -> None:
        """Read what ``save_rank_state`` wrote; envs and collector are restored when collecting starts."""
        from lightning_ding.checkpoints.folder import COLLECTING_FILE
        from lightning_ding.datamodules.rank_state import load_collecting

        super().load_rank_state(folder)
        self._collecting = load_collecting(folder / COLLECTING_FILE)

    @override
    def _redistribute(self, folder: Path, saved: int, env_step: int) -> None:
        trainer = cast(Trainer, self.trainer)
        if trainer.is_global_zero and saved != trainer.world_size:
            logger.warning(
                "%s was written by %d ranks and is resumed by %d: counters continue, buffers are distributed among the "
                "ranks, and all ranks start new episodes with new random seeds", folder, saved, trainer.world_size,
            )  # fmt: skip
        super()._redistribute(folder, saved, env_step)

    def _collecting_parts(self) -> tuple[Any, ISerialCollector, VectorEnv, VectorEnv | None]:
        evaluation_env = None if self.evaluator is None else cast(VectorEnv, self.evaluator.env)
        return self._policy, cast(ISerialCollector, self.collector), self._collector_env, evaluation_env

    @override
    def _begin_source(self) -> bool:
        """Start new episodes, or restore the envs, the collector and the policy to their state in a checkpoint."""
        state = self._collecting
        if state is None:
            super()._begin_source()
            self._begin_episodes()
            return False
        from lightning_ding.datamodules.rank_state import restore_collecting

        self._begin_episodes()
        missing = restore_collecting(state, *self._collecting_parts())
        self._handles.make_newer(self._settings_then)  # set since the checkpoint was loaded
        is_global_zero = cast(Trainer, self.trainer).is_global_zero
        if missing is not None:
            if is_global_zero:
                logger.warning("the envs start new episodes, because their state is not in the checkpoint: %s", missing)
            self._begin_episodes()
        elif state.get("lost") and is_global_zero:
            logger.warning(
                "this run may continue differently, because the checkpoint does not contain everything that its envs "
                "depend on: %s", "; ".join(state["lost"]),
            )  # fmt: skip
        return True

    def _begin_episodes(self) -> None:
        collector = cast(ISerialCollector, self.collector)
        if self._first_episode_id:
            collector.skip_episode_ids(self._first_episode_id)
        seed_envs(self._collector_env, self._seeds().of("collector_envs"))
        collector.reset_env()

    @override
    def _report_unsaved(self) -> None:
        from lightning_ding.datamodules.rank_state import read_collecting

        super()._report_unsaved()
        self._report_missing(read_collecting(*self._collecting_parts()), "the checkpoints of this run will not contain")

    def _report_missing(self, state: Mapping[str, Any], subject: str) -> None:
        """Log once what checkpoints cannot contain."""
        if state["missing"] is not None:
            text = "%s the state of its envs, so that a resumed run starts new episodes: %s"
            self._warn_once(text, subject, state["missing"], key="missing")
        elif state.get("lost"):
            text = "%s everything that its envs depend on, so that a resumed run may continue differently: %s"
            self._warn_once(text, subject, "; ".join(state["lost"]), key="lost")
