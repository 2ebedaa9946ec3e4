"""Training from data that others collect: a comm learner's rounds for a Trainer."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from gymnasium import spaces as gym_spaces
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from lightning_ding import nested
from lightning_ding.callbacks import default_callbacks
from lightning_ding.callbacks.stopping import stop_run
from lightning_ding.checkpoints import save_object
from lightning_ding.config import require
from lightning_ding.datamodules.base import CollectingDataModule
from lightning_ding.datamodules.remote_feed import RemoteFeed
from lightning_ding.datamodules.remote_round import RemoteData, RemoteRound
from lightning_ding.datamodules.rng import rng_state, set_rng_state
from lightning_ding.envs.named import EnvLike, Names, Wrappers
from lightning_ding.envs.vector import VectorMode

COUNTERS = ("env_step", "episode", "sample")
Spaces = tuple[gym_spaces.Space[Any], gym_spaces.Space[Any]]


class DataSource(Protocol):
    """Who is asked for data: a comm learner."""

    def get_data(
        self, batch_size: int, num_batches: int, cur_learner_iter: int, options: Mapping[str, Any], rank: int
    ) -> RemoteData:
        """Ask once for a round; called in a thread."""
        ...


class RemoteReplayDataModule(CollectingDataModule):
    """Pulls rounds of minibatches from a comm learner, and evaluates in envs of its own.

    For a Trainer it is what a :class:`ReplayDataModule` is, with others that collect and keep: counters, episodes and
    the state of the buffer come with the rounds. A checkpoint holds nothing of what is collected, which goes on without
    the learner. When the coordinator ends the run, the Trainer stops with an evaluation and a checkpoint. Under DDP
    every rank pulls rounds of its own, and all stop together.

    Args:
        comm_learner: Who is asked for data.
        env_id: Env of the evaluation, in any form that :class:`CollectingDataModule` takes.
        evaluator_env_num: Envs for evaluation on each rank; None means as many as episodes, up to 8.
        n_evaluator_episode: Episodes of an evaluation over all ranks; None takes the policy's.
        seed: Of evaluation and of what is random in learning; each rank makes its own from it.
        max_env_step: End the run after so many env steps of all collectors; None for no such end.
        max_train_iter: End the run after so many updates; None for no such end.
        stop_value: End the run when an evaluation's mean return reaches this; None takes the policy's
            ``eval.evaluator.stop_value``. Needs ``validate``.
        rounds_per_epoch: Rounds between two evaluations; None makes it ``eval_freq`` updates.
        env_kwargs: Arguments of the env.
        wrappers: Applied in order to each env of the evaluation.
        mode: As of :class:`CollectingDataModule`, for the envs of evaluation.
        prefetch: Rounds that are fetched ahead of the one that is learned from, >= 0. They are drawn that much earlier,
            so with a prioritised buffer before the newest priorities are in.
        validate: Whether to evaluate; without it the Trainer needs ``limit_val_batches=0``.
        spaces: Observation and action space of one env, for envs that gymnasium does not make; only without
            ``validate``. None makes an env to see them.
        patience: Seconds without a round and without a new env step after which the run fails, > 0.
        import_names: Modules to import first, for the envs that they register.
        norm_obs: Let the policy normalise observations by the statistics of those that it learns from, over all ranks.
            They are published with its weights.

    Raises:
        ValueError: If there is no such env, or an argument is out of its range, or does nothing beside the others.
        TypeError: If ``env_id`` is neither a name, a mapping nor a callable.
    """

    _waits: list[float]
    """Seconds that the learner stood still for each round since the last writing of metrics."""

    def __init__(
        self,
        comm_learner: DataSource,
        env_id: EnvLike,
        evaluator_env_num: int | None = None,
        n_evaluator_episode: int | None = None,
        seed: int = 0,
        max_env_step: int | None = None,
        max_train_iter: int | None = None,
        stop_value: float | None = None,
        rounds_per_epoch: int | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        wrappers: Wrappers = (),
        mode: VectorMode = "sync",
        prefetch: int = 1,
        validate: bool = True,
        spaces: Spaces | None = None,
        patience: float = 500.0,
        import_names: Names = (),
        norm_obs: bool = False,
    ) -> None:
        super().__init__(
            env_id,
            mode=mode,
            wrappers=wrappers,
            env_kwargs=env_kwargs,
            seed=seed,
            max_env_step=max_env_step,
            max_train_iter=max_train_iter,
            stop_value=stop_value,
            rounds_per_epoch=rounds_per_epoch,
            evaluator_env_num=evaluator_env_num,
            n_evaluator_episode=n_evaluator_episode,
            import_names=import_names,
            norm_obs=norm_obs,
        )
        require(prefetch >= 0, "prefetch", ">= 0", prefetch)
        require(patience > 0, "patience", "> 0 seconds", patience)
        require(validate or stop_value is None, "stop_value", "None without validate", stop_value)
        require(not validate or spaces is None, "spaces", "None with validate, which makes envs", spaces)
        self.comm_learner = comm_learner
        self.prefetch = prefetch
        self.validate = validate
        self.patience = patience
        self.gives_up = False
        """Set from another thread, ends the waiting for a round, and so the run."""
        self._spaces = spaces
        self._feed: RemoteFeed | None = None
        self._metrics: dict[str, float] = {}

    # ------------------------------------------------------------------ Lightning

    def default_callbacks(self, trainer: Trainer) -> list[Callback]:
        """Return the callbacks that a run needs and ``trainer`` does not have yet."""
        if self.validate:
            return super().default_callbacks(trainer)
        return default_callbacks(trainer, self.max_env_step, self.max_train_iter, None)

    def close(self) -> None:
        """Fetch no more, and close the envs."""
        feed, self._feed, self.collector = self._feed, None, None
        if feed is not None:
            feed.close()
        super().close()

    def pop_episodes(self) -> tuple[list[float], list[int]]:
        """Return the returns and lengths of the episodes that rank zero was told of since the last call."""
        return self._feed.pop_episodes() if self._feed is not None else ([], [])

    def pop_metrics(self) -> dict[str, float]:
        """Return by name what the newest answer said of collecting and of the buffer, and how long it was waited for.

        ``remote/round_wait`` is the mean time in s that the learner stood still for a round since the last call, and
        ``remote/prefetched`` the rounds that wait for it.
        """
        metrics, waits = self._metrics, self._waits
        self._metrics, self._waits = {}, []
        if waits:
            metrics["remote/round_wait"] = sum(waits) / len(waits)
        return metrics

    # ------------------------------------------------------------------ a round

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._waits = []

    def _begin(self) -> None:
        """Begin to fetch rounds; the counters are those of the checkpoint, if there is one."""
        self._feed = RemoteFeed(self._ask, self.prefetch, self.patience)
        self.collector = cast(Any, self._feed)  # whose counters callbacks look at

    def _begin_episodes(self) -> None:
        pass  # others collect

    def _ask(self) -> RemoteData:
        collect = self._policy.collect_mode.get_attribute
        options = {"n_step": collect("nstep"), "discount_factor": collect("discount_factor")}
        amount = (collect("batch_size"), collect("update_per_collect"))
        rank = cast(Trainer, self.trainer).global_rank
        return self.comm_learner.get_data(*amount, self._policy.progress.train_iter, options, rank)

    def _next_round(self) -> RemoteRound | None:
        """Return the next round; None, with the Trainer told to stop, when there are no more."""
        began, feed = time.perf_counter(), cast(RemoteFeed, self._feed)
        answer = feed.next(lambda: self.gives_up)
        self._waits.append(time.perf_counter() - began)
        is_over = answer is None or answer.stop or answer.data is None
        if self._agree(is_over, answer):
            warnings.filterwarnings("ignore", "train_dataloader yielded None")  # it is on purpose: nothing is learned
            why = "no more data is waited for" if self.gives_up else "the coordinator gives no more data"
            stop_run(cast(Trainer, self.trainer), why)
            return None
        stats = cast(RemoteData, answer).stats
        told = {f"remote/{name}": float(value) for name, value in stats.items() if value is not None}
        self._metrics = {**told, "remote/prefetched": float(feed.ready)}
        data = cast("dict[str, Any]", cast(RemoteData, answer).data)
        if self._policy.normaliser.is_on:
            self._policy.normaliser.update(nested.apply(lambda x: x.flatten(0, 1), {"obs": data["obs"]}))
        return RemoteRound(data, self._policy.collect_mode.get_attribute("update_per_collect"))

    def _agree(self, is_over: bool, answer: RemoteData | None) -> bool:
        """Take the counters that rank zero was told, on all ranks; return whether one of them has no round."""
        trainer, progress = cast(Trainer, self.trainer), self._policy.progress
        told = answer.progress if answer is not None else {}
        counters = [int(told.get(name, getattr(progress, name))) for name in COUNTERS]
        if trainer.world_size > 1:
            mine = counters if trainer.is_global_zero else [0] * len(COUNTERS)
            table = torch.tensor([int(is_over), *mine], device=trainer.strategy.root_device)
            over, *counters = cast(Tensor, trainer.strategy.reduce(table, reduce_op="sum")).tolist()
            is_over = over > 0
        for name, value in zip(COUNTERS, counters, strict=True):
            setattr(progress, name, value)
        return is_over

    # ------------------------------------------------------------------ state

    def save_rank_state(self, folder: Path, with_buffer: bool = True) -> None:
        """Write the random number generators of this rank; what is collected is the coordinator's.

        Raises:
            OSError: If the disk does not take it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        save_object(rng_state(self._policy.rng), folder / "rng.pt")

    def load_rank_state(self, folder: Path) -> None:
        """Read what ``save_rank_state`` wrote."""
        self._rng = torch.load(folder / "rng.pt", weights_only=True)
        set_rng_state(cast("dict[str, Any]", self._rng), self._policy.rng)

    def _share_out(self, folder: Path, saved: int, env_step: int) -> None:
        pass  # of another number of ranks; counters and weights are there already

    # ------------------------------------------------------------------ setting up

    def _setup_collector(self, trainer: Trainer) -> None:
        self._check_policy(self._policy)
        self._begin_normalising()
        self._begin_anew()

    def _check_policy(self, policy: Any) -> None:
        """Raise if the policy learns from rollouts.

        Raises:
            ValueError: If it does.
        """
        name = type(policy).__name__
        require(not policy.get_attribute("on_policy"), "policy", "one that learns from replay", name)

    def _setup_evaluator(self, stage: str) -> None:
        if self.validate:
            super()._setup_evaluator(stage)
            return
        require(stage == "fit", "stage", '"fit" without validate', stage)
        trainer = cast(Trainer, self.trainer)
        is_off = trainer.limit_val_batches == 0
        require(is_off, "limit_val_batches", "0 without validate", trainer.limit_val_batches)
        if self._spaces is None:
            env = self._make_env(self.env_id, 1, self.wrappers, self.env_kwargs)
            self._spaces = (env.single_observation_space, env.single_action_space)
            super().close()
        self.single_observation_space, self.single_action_space = self._spaces
        self._policy.build(*self._spaces)
