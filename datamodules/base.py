"""What the datamodules of a run have in common: envs, collecting, evaluating, counting and seeds.

Shapes: E episodes of an evaluation over all ranks.
"""

from __future__ import annotations

import gc
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from lightning_ding.callbacks import default_callbacks
from lightning_ding.config import require
from lightning_ding.datamodules.arguments import plain
from lightning_ding.datamodules.resumable import ResumableDataModule
from lightning_ding.datamodules.seeds import Seeds
from lightning_ding.datamodules.stream import Stream
from lightning_ding.envs import FaultBarrier, make_vector_env
from lightning_ding.envs.named import EnvLike, Names, Wrappers, find_env, find_wrappers, names_of
from lightning_ding.envs.vector import AutoresetName, EnvTimeout, VectorMode, differ_in_bounds_only
from lightning_ding.registry import import_modules
from lightning_ding.worker import (
    BaseSerialCommander,
    InteractionSerialEvaluator,
    ISerialCollector,
    create_serial_collector,
    create_serial_evaluator,
    get_serial_collector_cls,
    get_serial_evaluator_cls,
    sort_callbacks,
)

COUNTS = ("num_envs", "max_env_step", "max_train_iter", "rounds_per_epoch", "evaluator_env_num", "n_evaluator_episode")


class CollectingDataModule(ResumableDataModule):
    """Collects in envs with the policy that learns, and evaluates it; a subclass says what a round of training is.

    What is collected and how much is learned from it stands in the policy's config; here stands where it happens and
    how long. Under DDP every rank has its own envs and seeds; ``max_env_step`` counts the steps of all ranks together.
    """

    def __init__(
        self,
        env_id: EnvLike,
        num_envs: int = 8,
        mode: VectorMode = "sync",
        wrappers: Wrappers = (),
        env_kwargs: Mapping[str, Any] | None = None,
        seed: int = 0,
        max_env_step: int | None = None,
        max_train_iter: int | None = None,
        stop_value: float | None = None,
        rounds_per_epoch: int | None = None,
        evaluator_env_num: int | None = None,
        n_evaluator_episode: int | None = None,
        norm_obs: bool = False,
        norm_reward: bool = False,
        env_timeout: EnvTimeout = "default",
        train_wrappers: Wrappers = (),
        eval_wrappers: Wrappers = (),
        eval_env_id: EnvLike | None = None,
        eval_env_kwargs: Mapping[str, Any] | None = None,
        import_names: Names = (),
    ) -> None:
        """Say where data comes from and how long a run is; here, so that the command line finds it for every subclass.

        Args:
            env_id: A registered gymnasium id, ``module:id``, the dotted path of a class or function, a mapping with
                ``class_path`` and ``init_args``, or a callable that returns an env.
            num_envs: Envs on each rank, >= 1.
            mode: ``"sync"`` steps the envs in this process, ``"async"`` each in its own, ``"native"`` takes the vector
                env that the id registers.
            wrappers: Applied in order to each env, for training and evaluation; the first one is innermost. Dotted
                paths such as ``gymnasium.wrappers.FlattenObservation``, mappings with ``class_path`` and ``init_args``,
                or callables.
            env_kwargs: Arguments of the env.
            seed: Of envs, exploration and learning; each rank makes its own from it.
            max_env_step: End the run after so many env steps; None for no such end.
            max_train_iter: End the run after so many updates; None for no such end.
            stop_value: End the run when an evaluation's mean return reaches this; None takes the policy's
                ``eval.evaluator.stop_value``.
            rounds_per_epoch: Rounds between two evaluations; None makes it ``eval_freq`` updates.
            evaluator_env_num: Envs for evaluation on each rank; None means as many as episodes, up to ``num_envs``.
            n_evaluator_episode: Episodes of an evaluation over all ranks; None takes the policy's
                ``eval.evaluator.n_episode``.
            norm_obs: Let the policy shift and scale observations by the mean and standard deviation of those seen in
                training, over all ranks. The statistics are part of the policy; evaluations do not change them.
            norm_reward: Let the policy learn from rewards divided by the standard deviation of the discounted return;
                reported returns stay those of the env.
            env_timeout: With ``mode="async"``, seconds in which an env must answer, > 0: a pair for a reset and for a
                step, or one number for both; None is no limit, ``"default"`` 120 and 60 s. What becomes of an env that
                does not answer, or whose process dies, says ``collect.collector.env_fault``: the run ends, or the
                episode is dropped and a new process takes the place of its own.
            train_wrappers: Applied around ``wrappers`` to each training env only, such as reward clipping.
            eval_wrappers: Applied around ``wrappers`` to each evaluation env only.
            eval_env_id: Env of the evaluation, with the same spaces; None takes ``env_id``.
            eval_env_kwargs: Arguments of the evaluation env, which replace ``env_kwargs``; None takes ``env_kwargs``.
            import_names: Modules to import first, for the envs that they register.

        Raises:
            ValueError: If there is no such env or wrapper, or an argument is out of its range.
            TypeError: If an env or a wrapper is neither a name, a mapping nor a callable.
            ImportError: If a module of ``import_names`` cannot be imported.
        """
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        self.save_hyperparameters({name: plain(value) for name, value in arguments.items()})
        self.import_names = names_of(import_names)
        import_modules(self.import_names)
        find_env(env_id)
        if eval_env_id is not None:
            find_env(eval_env_id, "eval_env_id")
        _check_ranges(arguments)
        self.env_id = env_id
        self.env_timeout: EnvTimeout = env_timeout
        self.num_envs = num_envs
        self.mode: VectorMode = mode
        self.wrappers = find_wrappers(wrappers)
        self.env_kwargs = dict(env_kwargs or {})
        self.train_wrappers = find_wrappers(train_wrappers, "train_wrappers")
        self.eval_wrappers = find_wrappers(eval_wrappers, "eval_wrappers")
        self.eval_env_id = env_id if eval_env_id is None else eval_env_id
        self.eval_env_kwargs = self.env_kwargs if eval_env_kwargs is None else dict(eval_env_kwargs)
        self.seed = seed
        self.max_env_step = max_env_step
        self.max_train_iter = max_train_iter
        self.stop_value = stop_value
        self.rounds_per_epoch = rounds_per_epoch
        self.evaluator_env_num = evaluator_env_num
        self.n_evaluator_episode = n_evaluator_episode
        self.single_observation_space: spaces.Space[Any]
        self.single_action_space: spaces.Space[Any]
        self._envs: list[VectorEnv] = []
        self._collect_kwargs: Mapping[str, Any] = {}
        self._commander: BaseSerialCommander | None = None
        self._dropped_episodes: list[int] = []
        self.norm_obs = norm_obs
        self.norm_reward = norm_reward

    # ------------------------------------------------------------------ to implement

    @abstractmethod
    def _check_policy(self, policy: Any) -> None:
        """Raise if the policy, or what its config asks for, does not fit this datamodule."""

    def _collector_wrappers(self) -> tuple[Callable[[Any], Any], ...]:
        """Return the wrappers of the envs that training data comes from, innermost first."""
        wrappers = (*self.wrappers, *self.train_wrappers)
        if self._policy.config.collect.collector.env_fault != "drop":
            return wrappers
        allowed = '"sync" or "async" with collect.collector.env_fault="drop"'
        require(self.mode != "native", "mode", allowed, self.mode)
        return (*wrappers, FaultBarrier)

    # ------------------------------------------------------------------ Lightning

    def default_callbacks(self, trainer: Trainer) -> list[Callback]:
        """Return the callbacks that a run needs and ``trainer`` does not have yet."""
        policy: Any = trainer.lightning_module
        stop_value = self.stop_value
        if stop_value is None:
            stop_value = policy.get_attribute("cfg").eval.evaluator.stop_value
        return default_callbacks(trainer, self.max_env_step, self.max_train_iter, stop_value)

    def setup(self, stage: str) -> None:
        """Make the envs and workers of a stage (Lightning hook).

        Raises:
            ValueError: If the policy's config does not fit the env or the datamodule.
        """
        self.close()
        trainer = cast(Trainer, self.trainer)
        self._policy = trainer.lightning_module
        trainer.callbacks = sort_callbacks(trainer.callbacks)  # type: ignore[attr-defined]
        trainer.num_sanity_val_steps = 0  # it would evaluate the untrained policy at full length
        self._setup_evaluator(stage)
        if stage == "fit":
            self._policy.progress.budget = self.max_env_step
            self._setup_collector(trainer)

    def train_dataloader(self) -> Iterable[Any]:
        """Return the rounds of an epoch (Lightning hook)."""
        self._noise.leave_out()
        return Stream(self._started_round, self._epoch.begin(cast(Trainer, self.trainer), self._epoch_length()))

    def val_dataloader(self) -> Iterable[dict[str, Tensor]]:
        """Return one evaluation (Lightning hook)."""
        self._noise.leave_out()
        return Stream(self._evaluate, 1)

    def test_dataloader(self) -> Iterable[dict[str, Tensor]]:
        """Return one evaluation, on other episodes than validation's (Lightning hook)."""
        self._noise.leave_out()
        return Stream(self._evaluate, 1)

    @property
    def hparams_initial(self) -> Any:
        """The arguments for the loggers, apart from what the policy logs under the same name (Lightning)."""
        taken = getattr(getattr(self.trainer, "lightning_module", None), "hparams_initial", {})
        mine = super().hparams_initial.items()
        return {f"data/{name}" if name in taken else name: value for name, value in mine}

    def teardown(self, stage: str) -> None:
        """Close the envs (Lightning hook)."""
        self.close()

    def on_exception(self, exception: BaseException) -> None:
        """Close the envs when a run fails (Lightning hook)."""
        self.close()

    def close(self) -> None:
        """Close the envs; what was collected stays, so that a later ``fit`` goes on with it."""
        gc.unfreeze()
        self._noise.end()
        envs, self._envs = self._envs, []
        for env in envs:
            env.close()

    # ------------------------------------------------------------------ collecting

    def pop_episodes(self) -> tuple[list[float], list[int]]:
        """Return the returns and lengths of the episodes that ended on this rank since the last call."""
        return self.collector.pop_episodes() if self.collector is not None else ([], [])

    @property
    def collect_kwargs(self) -> Mapping[str, Any]:
        """What the last round's collecting was told, such as ``eps``."""
        return self._collect_kwargs

    def _collect(self, amount: int, random: bool = False, **kwargs: Any) -> Any:
        """Return what the collector collects, and count it over all ranks.

        Args:
            amount: Transitions or episodes, whatever the collector counts.
            random: Take random actions.
            kwargs: Further arguments of the collector.
        """
        policy, collector = self._policy, cast(ISerialCollector, self.collector)
        if not random and self._commander is not None:
            self._collect_kwargs = self._commander.step()
        before = np.array([collector.envstep, collector.episode, collector.sample])
        told = {} if random else self._collect_kwargs
        train_iter = policy.progress.train_iter
        data = collector.collect(amount, train_iter, random_collect=random, policy_kwargs=told, **kwargs)
        self._dropped_episodes = collector.pop_dropped_episodes()
        self._count((np.array([collector.envstep, collector.episode, collector.sample]) - before).tolist())
        return data

    def _on_any_rank(self, decision: bool) -> bool:
        """Return the same on all ranks: whether it holds on one of them."""
        return cast(Trainer, self.trainer).strategy.reduce_boolean_decision(decision, all=False)

    def _count(self, counts: list[int]) -> None:
        """Add this rank's env steps, episodes and samples to the run's, over all ranks."""
        trainer = cast(Trainer, self.trainer)
        if trainer.world_size > 1:
            total = trainer.strategy.reduce(torch.tensor(counts, device=trainer.strategy.root_device), reduce_op="sum")
            counts = cast(Tensor, total).tolist()
        progress = self._policy.progress
        progress.env_step += counts[0]
        progress.episode += counts[1]
        progress.sample += counts[2]

    def _setup_collector(self, trainer: Trainer) -> None:
        policy = self._policy
        if getattr(get_serial_collector_cls(policy.config.collect.collector), "has_players", False):
            raise ValueError(
                "collect.collector.type must be that of a collector of one policy, such as 'sample', in a "
                f"{type(self).__name__}, got {policy.config.collect.collector.type!r}; use that one by hand"
            )
        self._check_policy(policy)
        env = self._make_env(self.env_id, self.num_envs, self._collector_wrappers(), self.env_kwargs)
        self._check_same_spaces(env)
        self._begin_normalising()
        self._collector_env = env
        self.collector = create_serial_collector(policy.config.collect.collector, env=env, policy=policy.collect_mode)
        command = getattr(policy, "command_mode", None)
        self._commander = BaseSerialCommander(policy=command, progress=policy.progress) if command is not None else None
        self._begin_anew()

    def _begin_normalising(self) -> None:
        """Tell the policy what to normalise.

        Raises:
            ValueError: If there is nothing to normalise, or the policy was trained with other settings.
        """
        gamma = self._policy.get_attribute("discount_factor") if self.norm_reward else 1.0
        space, asked = self.single_observation_space, (self.norm_obs, self.norm_reward)
        self._policy.normaliser.begin(space, *asked, discount_factor=gamma)

    def _epoch_length(self) -> int:
        """Return the rounds of an epoch."""
        if self.rounds_per_epoch is not None:
            return self.rounds_per_epoch
        policy = self._policy
        updates = policy.get_attribute("cfg").eval.evaluator.eval_freq
        return int(max(1, round(updates / policy.get_attribute("update_per_collect"))))

    # ------------------------------------------------------------------ evaluating

    def _setup_evaluator(self, stage: str) -> None:
        policy, trainer = self._policy, cast(Trainer, self.trainer)
        config = policy.config.eval.evaluator
        self._n_episode = self.n_evaluator_episode or config.n_episode
        self._episodes = range(self._n_episode)[trainer.global_rank :: trainer.world_size]
        ranks = trainer.world_size
        require(self._n_episode >= ranks, "n_episode", f"at least one for each of {ranks} ranks", self._n_episode)
        num_envs = self.evaluator_env_num or min(self.num_envs, len(self._episodes))
        wrappers = (*self.wrappers, *self.eval_wrappers)
        autoreset: AutoresetName | None = None if self.mode == "native" else "disabled"
        env = self._make_env(self.eval_env_id, num_envs, wrappers, self.eval_env_kwargs, autoreset)
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        policy.build(env.single_observation_space, env.single_action_space)
        seed = Seeds(self.seed).evaluation("test" if stage == "test" else "validate")
        is_known = issubclass(get_serial_evaluator_cls(config), InteractionSerialEvaluator)
        require(is_known, "eval.evaluator.type", "that of an InteractionSerialEvaluator", config.type)
        film = next((one for one in trainer.loggers if isinstance(one, TensorBoardLogger)), trainer.logger)
        made = {"env": env, "policy": policy.eval_mode, "tb_logger": film, "seed": seed}
        evaluator = create_serial_evaluator(config, **made, instance_name="test" if stage == "test" else "eval")
        self.evaluator = cast(InteractionSerialEvaluator, evaluator)
        if config.render.render_freq > 0:
            self.evaluator.check_can_film()

    def _evaluate(self) -> dict[str, Tensor]:
        """Return ``episode_return`` and ``episode_length``, shape (E,), zero where other ranks ran an episode."""
        self._noise.end()
        evaluator, trainer = cast(InteractionSerialEvaluator, self.evaluator), cast(Trainer, self.trainer)
        if self.norm_obs and not self._policy.normaliser.has_seen_obs:
            raise RuntimeError(
                "norm_obs is True, but no observation was seen yet: evaluate a checkpoint with ckpt_path, or a policy "
                "from load_from_checkpoint, which hold by what they are normalised"
            )
        now = {"envstep": self._policy.progress.env_step, "train_iter": self._policy.progress.train_iter}
        films = evaluator.should_render(**now)
        table = torch.zeros(2, self._n_episode)
        number = 0 if trainer.testing else now["train_iter"]
        results = evaluator.run(self._episodes, film=films and trainer.is_global_zero, number=number)
        table[:, self._episodes] = torch.tensor(results)
        if films:
            evaluator.write_film(**now)
        if evaluator.config.figure_path is not None:
            mine = table[0].to(trainer.strategy.root_device, copy=True)
            evaluator.write_figure(cast(Tensor, trainer.strategy.reduce(mine, reduce_op="sum")).tolist(), **now)
        return {"episode_return": table[0], "episode_length": table[1]}

    def _check_same_spaces(self, env: VectorEnv) -> None:
        """Raise if the training envs do not fit the network, which was built for the evaluation envs.

        Raises:
            ValueError: If the spaces differ in more than the bounds of observations.
        """
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

    def _make_env(
        self,
        env_id: EnvLike,
        num_envs: int,
        wrappers: Sequence[Callable[[Any], Any]],
        env_kwargs: Mapping[str, Any],
        autoreset: AutoresetName | None = None,
    ) -> VectorEnv:
        drops = self.mode == "async" and self._policy.config.collect.collector.env_fault == "drop"
        made: dict[str, Any] = {"on_env_error": "restart" if drops else "raise", "env_timeout": self.env_timeout}
        made |= {"import_names": self.import_names, "check_api": True}
        env = make_vector_env(env_id, num_envs, self.mode, None, wrappers, env_kwargs, autoreset, **made)
        self._envs.append(env)
        return env


def _check_ranges(arguments: Mapping[str, Any]) -> None:
    """Raise for an argument of a datamodule that is out of its range."""
    for name in COUNTS:
        require(arguments[name] is None or arguments[name] >= 1, name, ">= 1", arguments[name])
    require(arguments["seed"] >= 0, "seed", ">= 0", arguments["seed"])
    timeout, only_async = arguments["env_timeout"], '"default" unless mode="async"'
    require(arguments["mode"] == "async" or timeout == "default", "env_timeout", only_async, timeout)
