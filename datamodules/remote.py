"""Train from data that other processes collect."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import torch
from gymnasium import spaces as gym_spaces
from lightning.pytorch import Callback, Trainer

from lightning_ding import nested
from lightning_ding.callbacks import default_callbacks
from lightning_ding.callbacks.stop import stop_run
from lightning_ding.config import require
from lightning_ding.datamodules.remote_feed import RemoteData, RemoteFeed, RemoteRound
from lightning_ding.datamodules.replay import DemonstrationDataModule
from lightning_ding.datamodules.replay_round import ReplayRound
from lightning_ding.envs.handle import EnvHandle
from lightning_ding.envs.named import EnvLike
from lightning_ding.utils.ranks import sum_over_ranks, world_size
from lightning_ding.worker import get_serial_collector_cls

if TYPE_CHECKING:
    from lightning_ding.datamodules.dataset_files import DatasetLike

REWARDS_FILE = "rewards.pt"
"""File of a rank with what its rewards depend on."""
COUNTERS = ("env_step", "episode", "sample")
REWARDS = ("reward", "reward_1")
"""Entries of a minibatch: the return of ``n_step`` steps, and the reward of the first of them."""
Spaces = tuple[gym_spaces.Space[Any], gym_spaces.Space[Any]]


class DataSource(Protocol):
    """A source of rounds of training data, such as a comm learner."""

    def get_data(
        self, batch_size: int, num_batches: int, cur_learner_iter: int, options: Mapping[str, Any], rank: int
    ) -> RemoteData:
        """Request a round once; called in a thread.

        Args:
            batch_size: Transitions or sequences of a minibatch, >= 1.
            num_batches: Minibatches of the round, >= 1.
            cur_learner_iter: Updates made so far, ``train_iter``.
            options: Arguments of the buffer's ``sample`` that the policy needs, such as ``n_step``.
            rank: Global rank of the learner, from 0.

        Returns:
            The answer; its ``data`` is None while there are too few transitions, or when the run is over.
        """
        ...


class RemoteReplayDataModule(DemonstrationDataModule):
    """Fetch rounds of minibatches from a comm learner, and evaluate in local envs.

    To a Trainer it looks like a :class:`ReplayDataModule`, but the data are collected and stored in other processes:
    counters, episodes and the state of the buffer come with the rounds. A checkpoint contains no collected data,
    because collecting continues without the learner. When the coordinator ends the run, the Trainer stops with an
    evaluation and a checkpoint. Under DDP every rank fetches its own rounds, or gets its share of the rollout that rank
    zero fetches for an on-policy algorithm, and all ranks stop together.

    Args:
        comm_learner: Source of the rounds.
        env_id: Evaluation env, in any form that :class:`RunDataModule` takes.
        prefetch: Rounds that are fetched ahead of the one that is learned from, >= 0. They are sampled that much
            earlier; from a prioritised buffer, before the newest priorities are known.
        validate: Whether to evaluate; if not, the Trainer needs ``limit_val_batches=0``.
        spaces: Observation and action space of one env, for envs that gymnasium does not make; only without
            ``validate``. If None, an env is created to read them from.
        patience: Seconds without a round and without a new env step after which the run fails, > 0.
        norm_obs: Whether the policy normalises observations by the statistics of those that it learns from, over all
            ranks; with a reward model, by those of the collected observations. The statistics are published with its
            weights.
        norm_reward: Whether the policy divides rewards by the standard deviation of the discounted return; only with
            an on-policy algorithm, whose rollouts have the rewards in their order.
        demonstrations: Data set of which each minibatch has a share, as for :class:`ReplayDataModule`; this process
            adds them to the rounds, of which only the other transitions are fetched. Every transition of a round has
            been drawn before the first update from it, so the number of them is the same in its minibatches.
        demonstration_share: Share of a minibatch that is drawn from ``demonstrations``, in (0, 1).
        imitation_reward: Whether to learn from a reward of 1 for each step of the demonstrations and 0 for each own
            step, in place of the env's.
        kwargs: Further arguments of :class:`RunDataModule`: the limits, the env and its evaluations.
            ``max_env_step``, ``eval_every`` and ``checkpoint_every`` count the env steps of all collectors, and
            ``stop_value`` needs ``validate``.

    Raises:
        ValueError: If there is no such env, or an argument is out of its range, or has no effect given the others.
        TypeError: If ``env_id`` is neither a name, a mapping nor a callable.
    """

    no_options: ClassVar[frozenset[str]] = frozenset(
        {
            "num_envs",
            "env_timeout",
            "num_workers",
            "train_wrappers",
            "eval_wrappers",
            "eval_env_id",
            "eval_env_kwargs",
            "overlap",
        }
    )
    _waits: list[float]
    """Seconds that the learner waited for each round since the last call of ``pop_metrics``."""

    def __init__(
        self,
        comm_learner: DataSource,
        env_id: EnvLike,
        prefetch: int = 1,
        validate: bool = True,
        spaces: Spaces | None = None,
        patience: float = 500.0,
        norm_obs: bool = False,
        norm_reward: bool = False,
        demonstrations: DatasetLike | None = None,
        demonstration_share: float = 0.5,
        imitation_reward: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            env_id,
            num_envs=8,
            norm_obs=norm_obs,
            norm_reward=norm_reward,
            env_timeout="default",
            train_wrappers=(),
            eval_wrappers=(),
            eval_env_id=None,
            eval_env_kwargs=None,
            overlap=False,
            **kwargs,
        )
        require(prefetch >= 0, "prefetch", ">= 0", prefetch)
        require(patience > 0, "patience", "> 0 seconds", patience)
        require(validate or self.stop_value is None, "stop_value", "None if validate is False", self.stop_value)
        require(not validate or spaces is None, "spaces", "None if validate is True, which makes envs", spaces)
        self.comm_learner = comm_learner
        self.prefetch = prefetch
        self.validate = self.evaluates = validate
        self.patience = patience
        self.cancel_requested = False
        """Whether to stop waiting for a round, which ends the run; may be set from another thread."""
        self._spaces = spaces
        self._handles.training = EnvHandle("training", is_remote=True)
        self._feed: RemoteFeed | None = None
        self._metrics: dict[str, float] = {}
        self._keeps_records = False
        self._read_demonstrations(demonstrations, demonstration_share, imitation_reward)

    # ------------------------------------------------------------------ Lightning

    def default_callbacks(self, trainer: Trainer) -> list[Callback]:
        """Return the callbacks that a run needs and ``trainer`` does not have yet."""
        limits = self._limits(trainer)
        return default_callbacks(trainer, limits if self.validate else replace(limits, stop_value=None))

    def close(self) -> None:
        """Stop fetching, and close the envs."""
        feed, self._feed, self.collector = self._feed, None, None
        if feed is not None:
            feed.close()
        super().close()

    def keep_records(self) -> None:
        """Keep a record of each episode that is reported from now on, for :meth:`pop_records`."""
        self._keeps_records = True

    def pop_records(self) -> list[tuple[float, ...]]:
        """Return the episodes that were reported to rank zero since the last call; see :meth:`RunData.pop_records`."""
        return self._feed.pop_records() if self._feed is not None else []

    def pop_metrics(self) -> dict[str, float]:
        """Return the metrics of the newest round and of waiting for rounds, by their full names.

        ``remote/round_wait`` is the mean time in seconds that the learner waited for a round since the last call, and
        ``remote/prefetched`` is the number of rounds already fetched.
        """
        progress = self._policy.progress
        known = {"envstep": progress.env_step, "learner_step": progress.train_iter}
        self._collect_kwargs = self._policy.command_mode.get_setting_collect(known)  # as the collectors get now
        metrics, waits = self._metrics, self._waits
        self._metrics, self._waits = {}, []
        if waits:
            metrics["remote/round_wait"] = sum(waits) / len(waits)
        return super().pop_metrics() | metrics

    def steps_made(self) -> int:
        """Return the env steps that other processes have reported, and those made here in evaluations."""
        return super().steps_made() + (self._feed.env_step if self._feed is not None else 0)

    def request_cancel(self, is_requested: bool) -> None:
        """Make an evaluation or the wait for a round end early, or withdraw that request."""
        self.cancel_requested = is_requested
        super().request_cancel(is_requested)

    def save_rank_state(self, folder: Path, with_buffer: bool = True) -> None:
        """Write the state of this rank, with the returns of unfinished episodes and the data of a reward model."""
        from lightning_ding.checkpoints import save_object

        super().save_rank_state(folder, with_buffer)
        rewards, normaliser = self._policy.learner.rewards, self._policy.normaliser
        if rewards is None and not normaliser.kinds["norm_reward"]:
            return
        state = {"returns": normaliser.episode_state(), "rewards": None if rewards is None else rewards.state()}
        save_object(state, folder / REWARDS_FILE)

    def load_rank_state(self, folder: Path) -> None:
        """Read what ``save_rank_state`` wrote."""
        super().load_rank_state(folder)
        if not (folder / REWARDS_FILE).is_file():  # nothing to restore, or an older version has written the folder
            return
        state = torch.load(folder / REWARDS_FILE, weights_only=True)
        self._policy.normaliser.load_episode_state(state["returns"])
        if state["rewards"] is not None:
            self._policy.learner.rewards.load_state(state["rewards"])

    # ------------------------------------------------------------------ a round

    def _reset(self) -> None:
        super()._reset()
        self._waits = []

    def _start_feed(self) -> RemoteFeed:
        """Start fetching rounds. A checkpoint has already restored the counters."""
        options: dict[str, Any] = {
            "patience": self.patience,
            "info_keys": self.info_keys,
            "keeps_records": self._keeps_records,
        }
        if self._policy.on_policy and world_size() > 1:
            from lightning_ding.datamodules.shared_rollout import SharedFeed

            in_episodes = get_serial_collector_cls(self._policy.config.collect.collector).collects_whole_episodes
            feed: RemoteFeed = SharedFeed(self._ask, in_episodes, **options)
        else:
            ahead = 0 if self._policy.on_policy else self.prefetch  # a rollout is collected with the newest weights
            feed = RemoteFeed(self._ask, ahead, **options)
        self._feed = self.collector = feed
        return feed

    def _ask(self) -> RemoteData:
        policy, rank = self._policy, cast(Trainer, self.trainer).global_rank
        amount, options = (policy.batch_size, policy.update_per_collect), {}
        if policy.on_policy:
            amount = (1, 1)  # the coordinator knows the size of a rollout
        else:
            options = policy.sample_options
        if self._demonstrations is not None:
            amount = (amount[0] - self._demonstrations.number(amount[0]), amount[1])
        return self.comm_learner.get_data(*amount, policy.progress.train_iter, options, rank)

    def _next_round(self) -> RemoteRound | ReplayRound | dict[str, Any] | None:
        """Return the next round; after the last one, stop the Trainer and return None."""
        if (pretraining := self._pretraining_round()) is not None:
            return pretraining
        began, feed = time.perf_counter(), self._feed or self._start_feed()
        answer = feed.next(lambda: self.cancel_requested)
        self._waits.append(time.perf_counter() - began)
        is_over = answer is None or answer.stop or answer.data is None
        if self._agree(is_over, answer):
            warnings.filterwarnings("ignore", "train_dataloader yielded None")  # the run ends without an update
            why = "the wait for data was cancelled" if self.cancel_requested else "the coordinator sends no more data"
            stop_run(cast(Trainer, self.trainer), why)
            return None
        stats = cast(RemoteData, answer).stats
        metrics = {f"remote/{name}": float(value) for name, value in stats.items() if value is not None}
        self._metrics = {**metrics, "remote/prefetched": float(feed.ready)}
        data = cast("dict[str, Any]", cast(RemoteData, answer).data)
        if self._policy.on_policy:
            return data  # after learning from it, the policy itself adds it to the statistics
        new, rewards, normaliser = data.pop("collected", None), self._policy.learner.rewards, self._policy.normaliser
        if normaliser.is_on and rewards is None:
            normaliser.update({"obs": self._observations(data)})
        elif normaliser.is_on and new is not None:  # as in one process; what is drawn lags behind what is collected
            normaliser.update({"obs": new["obs"]})
        if rewards is not None and new is not None:
            rewards.collect_data(new)
        return self._completed(data)

    def _completed(self, data: dict[str, Any]) -> RemoteRound:
        """Return a round of the transitions that came, and of demonstrations for the rest of each minibatch."""
        policy = self._policy
        updates, demonstrations = policy.update_per_collect, self._demonstrations
        if self._replaces_rewards:
            data = data | {name: torch.zeros_like(data[name]) for name in REWARDS if name in data}
        if demonstrations is None:
            return RemoteRound(data, updates)
        demonstrations.buffer.env_step = policy.progress.env_step  # for its schedules
        mixed, number = demonstrations.alone(), policy.batch_size - data["reward"].shape[2 if "mask" in data else 1]
        options = {"cur_learner_iter": policy.progress.train_iter, **policy.sample_options}
        return RemoteRound(mixed.complete(data, number, num_batches=updates, **options), updates, mixed)

    def _observations(self, data: dict[str, Any]) -> Any:
        """Return the observations of a round, without the padding of sequences, with one leading axis."""
        if self._policy.learns_from_sequences:
            return nested.index(data["obs"], data["mask"])
        return nested.apply(lambda x: x.flatten(0, 1), data["obs"])

    def _agree(self, is_over: bool, answer: RemoteData | None) -> bool:
        """Copy the counters that rank zero received to all ranks; return whether any rank has no round."""
        trainer, progress = cast(Trainer, self.trainer), self._policy.progress
        received = answer.progress if answer is not None else {}
        counters = [int(received.get(name, getattr(progress, name))) for name in COUNTERS]
        if trainer.world_size > 1:
            mine = counters if trainer.is_global_zero else [0] * len(COUNTERS)
            over, *counters = sum_over_ranks(torch.tensor([int(is_over), *mine])).tolist()
            is_over = over > 0
        for name, value in zip(COUNTERS, counters, strict=True):
            setattr(progress, name, value)
        return is_over

    # ------------------------------------------------------------------ setting up

    def _setup_source(self, trainer: Trainer) -> None:
        self._check_policy(self._policy)
        self._start_normalising()
        self._set_precision()
        if self._policy.learner.rewards is not None:
            self._policy.learner.rewards.begin()
        self._reset()

    def _check_policy(self, policy: Any) -> None:
        """Check that the policy learns from what is collected, and that the demonstrations fit it.

        Raises:
            ValueError: If the policy learns from a data set, or the demonstrations do not fit it.
        """
        name = type(policy).__name__
        if not policy.on_policy:
            allowed, episodes = "None in a distributed run, which counts transitions", policy.n_episode
            require(episodes is None, "collect.n_episode", allowed, episodes)
            collects = policy.n_sample is not None
            require(collects, "policy", "one that collects (use OfflineDataModule for this one)", name)
            self._check_reward_model(policy)
            require(not self.norm_reward, "norm_reward", "False with a policy that learns from replay", True)
        self._demonstrations = None  # of another policy
        self._make_demonstrations(policy)

    def _check_reward_model(self, policy: Any) -> None:
        """Check that a reward model can learn from what is fetched for a policy that learns from replay."""
        if (rewards := policy.learner.rewards) is None:
            return
        model, kind = rewards.model, policy.config.reward_model.type
        allowed = "one that does not reward each transition once, which other processes store"
        require(not model.rewards_once, "reward_model.type", allowed, kind)
        ranks = cast(Trainer, self.trainer).world_size
        allowed = "1 with a reward model that learns from what a policy with replay collects"
        require(model.trains_once or ranks == 1, "devices", allowed, ranks)

    def _setup_without_env(self, stage: str) -> Spaces:
        require(stage == "fit", "stage", '"fit" if validate is False', stage)
        limit = cast(Trainer, self.trainer).limit_val_batches
        require(limit == 0, "limit_val_batches", "0 if validate is False", limit)
        if self._spaces is None:
            env = self._make_env(self.env_id, 1, self.wrappers, self.env_kwargs)
            self._spaces = (env.single_observation_space, env.single_action_space)
            super().close()
        return self._spaces
