"""The base of all datamodules: a source of rounds, the envs of evaluations, and the limits of a run."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from gymnasium import spaces
from gymnasium.vector import VectorEnv
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from lightning_ding.callbacks import Limits, Watchdog, default_callbacks
from lightning_ding.config import require
from lightning_ding.datamodules.resume import ResumableDataModule
from lightning_ding.datamodules.run_envs import Evaluation, FixedOptions, RunEnvs, plain
from lightning_ding.datamodules.trainer_setup import Stream, check_loading, set_up_trainer
from lightning_ding.envs.named import EnvLike, Names, Wrappers, find_env, find_wrappers, is_batch, names_of
from lightning_ding.envs.vector import MODES, SEPARATE_MODES, AutoresetName, EnvTimeout, VectorMode, find_mode
from lightning_ding.registry import import_modules
from lightning_ding.utils.protocols import RETURN, EnvAccess, Monitor, MonitorLike
from lightning_ding.utils.ranks import world_size
from lightning_ding.worker import sort_callbacks
from lightning_ding.worker.episodes import InfoCheck, InfoKeys, info_statistics

COUNTS = (
    *("num_envs", "max_env_step", "max_train_iter", "rounds_per_epoch", "evaluator_env_num", "n_evaluator_episode"),
    *("eval_every", "checkpoint_every"),
)
EPOCHS = 20
"""Epochs of Lightning between two evaluations with ``eval_every``, at most. Each takes about a millisecond."""


class RunDataModule(FixedOptions, ResumableDataModule):
    """A source of rounds of training, the envs of evaluations, and the limits of a run. A subclass is the source.

    Sources are data that are collected with the newest weights (:class:`CollectingDataModule`), a data set
    (:class:`OfflineDataModule`), and other processes (:class:`RemoteReplayDataModule`). A subclass takes the arguments
    of this class as ``**kwargs``; those that its constructor sets itself it names in :attr:`no_options`. Numbers such
    as ``max_env_step`` may be set between two fits; setting an option that is read once, such as ``norm_obs``, raises
    an error.
    """

    axis: ClassVar[Literal["env_step", "train_iter"]] = "env_step"
    """The counter of :class:`Progress` that schedules, logs and names of checkpoints count by."""
    needs_env: ClassVar[bool] = True
    """Whether ``env_id`` must be given."""
    policy_fields: ClassVar[tuple[str, ...]] = ("collect.collector",)
    """Fields that the config of a policy must have."""
    no_options: ClassVar[frozenset[str]] = frozenset()
    """Arguments of this class that a subclass does not have; they are not recorded."""
    single_observation_space: spaces.Space[Any]
    """Observation space of one env; available once a stage has been set up."""
    single_action_space: spaces.Space[Any]
    """Action space of one env; available once a stage has been set up."""
    collector: Any = None
    """Object that reports the episodes of the data, such as a collector; None if nothing is collected."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show the arguments that ``**kwargs`` passes to this class in the signature of a subclass."""
        super().__init_subclass__(**kwargs)
        own = list(inspect.signature(cls.__init__).parameters.values())[1:]
        kinds, names = {one.kind for one in own}, {one.name for one in own} | cls.no_options
        found = [one for one in own if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
        if inspect.Parameter.VAR_KEYWORD in kinds:
            by_place = inspect.Parameter.VAR_POSITIONAL in kinds
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if by_place else inspect.Parameter.KEYWORD_ONLY
            next_above = next(one for one in cls.__mro__[1:] if issubclass(one, RunDataModule))
            above = inspect.signature(next_above).parameters.values()
            found += [one.replace(kind=max(kind, one.kind)) for one in above if one.name not in names]
        found.sort(key=lambda one: (one.kind, one.default is not one.empty))
        cls.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]

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
        norm_obs: bool | None = None,
        norm_reward: bool | None = None,
        env_timeout: EnvTimeout = "default",
        num_workers: int | None = None,
        train_wrappers: Wrappers = (),
        eval_wrappers: Wrappers = (),
        eval_env_id: EnvLike | None = None,
        eval_env_kwargs: Mapping[str, Any] | None = None,
        import_names: Names = (),
        info_keys: InfoKeys = (),
        monitor: MonitorLike = RETURN,
        eval_every: int | None = None,
        checkpoint_every: int | None = None,
        overlap: bool = False,
    ) -> None:
        """Define the envs and the limits of a run. The command line reads the arguments from this signature.

        Args:
            env_id: A registered gymnasium id, ``module:id``, the dotted path of a class or function, a mapping with
                ``class_path`` and ``init_args``, or a callable that returns an env.
            num_envs: Envs on each rank, >= 1.
            mode: How the envs are stepped: ``"sync"`` in this process, ``"async"`` in ``num_workers`` processes,
                ``"native"`` by the vector env that is registered for the id, ``"tensor"`` as batches of tensors on the
                device of the run, for the envs and algorithms that take them.
            wrappers: Wrappers of each env, for training and evaluation, the innermost first: short names such as
                ``flatten``, short names with arguments such as ``{frame_stack: {stack_size: 4}}``, dotted paths,
                mappings with ``class_path`` and ``init_args``, or callables. Evaluations leave out ``clip_reward``,
                ``scale_reward``, ``sign_reward`` and ``episodic_life``.
            env_kwargs: Arguments of the env.
            seed: Seed of envs, exploration and learning, >= 0; each rank derives its own from it.
            max_env_step: Env steps over all ranks after which the run ends, >= 1; None for no limit.
            max_train_iter: Updates after which the run ends, >= 1; None for no limit.
            stop_value: Value of ``monitor`` at which the run ends, by default a mean return of evaluations; None means
                the mean return in the policy's ``eval.evaluator.stop_value``.
            rounds_per_epoch: Rounds between two evaluations, >= 1; None means the number that makes ``eval_freq``
                updates.
            evaluator_env_num: Envs for evaluation on each rank, >= 1; None means one for each episode, up to
                ``num_envs``.
            n_evaluator_episode: Episodes of an evaluation over all ranks, >= 1; None means the policy's
                ``eval.evaluator.n_episode``.
            norm_obs: Whether the policy shifts and scales observations by the mean and standard deviation of those seen
                in training, over all ranks. The statistics are part of the policy; evaluations do not change them.
                Observations of float64 are then stored and shifted in double precision. None means what the policy was
                trained with before, or False.
            norm_reward: Whether the policy learns from rewards divided by the standard deviation of the discounted
                return; logged returns are the unscaled returns of the env. None means as for ``norm_obs``.
            env_timeout: Time limit for an env in seconds, > 0, only with ``mode="async"``: a pair for a reset and for a
                step, or one number for both; None for no limit; ``"default"`` for 120 and 60 s. After a timeout or the
                death of an env's process, ``collect.collector.env_fault="raise"`` ends the run, and ``"drop"`` drops
                the episodes of the envs in it and starts a new process; an evaluation repeats the episodes.
            num_workers: Number of env processes on each rank, from 1 to ``num_envs``, only with ``mode="async"``; each
                steps its envs one after another. None means one for each core that this process may use.
            train_wrappers: Wrappers of the training envs only, such as reward clipping, applied around ``wrappers``.
            eval_wrappers: Wrappers of the evaluation envs only, applied around ``wrappers``.
            eval_env_id: Evaluation env, with the same spaces; None means ``env_id``.
            eval_env_kwargs: Arguments of the evaluation env, instead of ``env_kwargs``; None means ``env_kwargs``.
            import_names: Modules to import first, for the envs that they register.
            info_keys: Names of numbers in the info of the env, or a mapping from each to ``last``, ``mean``, ``sum`` or
                ``max`` over the steps of an episode; ``last`` without a mapping. Their means over episodes are logged.
            monitor: Metric after an evaluation that chooses the best checkpoint and that ``stop_value`` is for: the
                name of one to maximise, or a mapping of it to ``max`` or ``min``.
            eval_every: Env steps between two evaluations, >= 1: one after each multiple of it is passed, by at most a
                twentieth or one round; None counts rounds. On a data set it counts updates.
            checkpoint_every: Env steps between two checkpoints, >= 1, in the same way; None for one after each
                evaluation. Needs ``eval_every``.
            overlap: Whether envs step while the policy learns, with weights of a round ago; only with ``mode="async"``.

        Raises:
            ValueError: If there is no such env or wrapper, or an argument is out of its range or has no effect given
                the others.
            TypeError: If an env or a wrapper is neither a name, a mapping nor a callable.
            ImportError: If a module of ``import_names`` cannot be imported.
        """
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        self.save_hyperparameters({name: plain(one) for name, one in arguments.items() if name not in self.no_options})
        self.import_names = names_of(import_names)
        import_modules(self.import_names)
        if self.needs_env or env_id is not None:
            find_env(env_id)
        if eval_env_id is not None:
            find_env(eval_env_id, "eval_env_id")
        find_mode(mode, env_timeout, num_workers, num_envs, overlap)
        _check_numbers(arguments)
        self.env_id, self.env_timeout, self.mode, self.num_workers = env_id, env_timeout, mode, num_workers
        self.evaluates = env_id is not None and not (eval_env_id is None and is_batch(env_id))
        self.seed, self.num_envs, self.overlap = seed, num_envs, overlap
        self.wrappers = find_wrappers(wrappers)
        self.env_kwargs = dict(env_kwargs or {})
        self.train_wrappers = find_wrappers(train_wrappers, "train_wrappers")
        self.eval_wrappers = find_wrappers(eval_wrappers, "eval_wrappers")
        self._evaluation_wrappers = self._find_evaluation_wrappers()
        self.eval_env_id = env_id if eval_env_id is None else eval_env_id
        self.eval_env_kwargs = self.env_kwargs if eval_env_kwargs is None else dict(eval_env_kwargs)
        self.max_env_step, self.max_train_iter = max_env_step, max_train_iter
        self.stop_value, self.monitor = stop_value, Monitor.of(monitor)
        self.rounds_per_epoch, self.eval_every, self.checkpoint_every = rounds_per_epoch, eval_every, checkpoint_every
        self.evaluator_env_num, self.n_evaluator_episode = evaluator_env_num, n_evaluator_episode
        self.info_keys, self.info_check = info_statistics(info_keys), InfoCheck()
        self._norm_asked = {"norm_obs": norm_obs, "norm_reward": norm_reward}
        self.norm_obs, self.norm_reward = bool(norm_obs), bool(norm_reward)
        self._envs = RunEnvs(mode, env_timeout, self.import_names, num_workers)
        self._restore_io: Callable[[], None] | None = None
        self._collect_kwargs: Mapping[str, Any] = {}

    def _find_evaluation_wrappers(self) -> tuple[Callable[[Any], Any], ...]:
        if not self.wrappers:
            return self.eval_wrappers
        from lightning_ding.envs.wrapper_names import check_order, for_evaluation, warn_of_changed_returns

        check_order((*self.wrappers, *self.train_wrappers))
        warn_of_changed_returns(self.wrappers)
        return (*for_evaluation(self.wrappers), *self.eval_wrappers)

    # ------------------------------------------------------------------ to implement

    @abstractmethod
    def _setup_source(self, trainer: Trainer) -> None:
        """Prepare the source of rounds for a fit; envs of evaluations and the policy's network exist already."""

    def _set_precision(self) -> None:
        """Store observations in the precision in which they are normalised."""

    def _setup_without_env(self, stage: str) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """Return the observation and action space of one env for a run that evaluates nothing."""
        raise NotImplementedError

    # ------------------------------------------------------------------ Lightning

    if not TYPE_CHECKING:  # type checkers use the attribute that Lightning declares

        @property
        def trainer(self) -> Trainer | None:
            """The Trainer, which Lightning sets before all other steps of a run."""
            return self._trainer

        @trainer.setter
        def trainer(self, trainer: Trainer | None) -> None:
            """Prepare the Trainer for a run."""
            self._trainer = trainer
            if trainer is not None:
                set_up_trainer(trainer, self._limits(trainer))

    def default_callbacks(self, trainer: Trainer) -> list[Callback]:
        """Return the callbacks that a run needs and ``trainer`` does not have yet."""
        return default_callbacks(trainer, self._limits(trainer))

    def _limits(self, trainer: Trainer) -> Limits:
        policy: Any = trainer.lightning_module
        stop_value, monitor = self.stop_value, {self.monitor.metric: self.monitor.mode}
        if stop_value is None and policy is not None:  # None until a Trainer has a module
            stop_value, monitor = policy.config.eval.evaluator.stop_return(), {RETURN: "max"}
        return Limits(self.max_env_step, self.max_train_iter, stop_value, monitor, self.eval_every)

    def setup(self, stage: str) -> None:
        """Make the envs and workers of a stage (Lightning hook).

        Raises:
            ValueError: If the policy's config does not fit the env or the datamodule.
        """
        self.close()
        trainer = cast(Trainer, self.trainer)
        self._restore_io = check_loading(trainer)
        self._policy = trainer.lightning_module
        trainer.callbacks = sort_callbacks(trainer.callbacks)  # type: ignore[attr-defined]
        self._check_fields(self.policy_fields)
        self._policy.progress.axis = self.axis
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, Watchdog):  # now, to watch how envs are made too; Lightning starts it again later
                callback.setup(trainer, self._policy, stage)
        trainer.num_sanity_val_steps = 0  # otherwise Lightning would run a full evaluation of the untrained policy
        self._setup_evaluator(stage)
        if stage == "fit":
            self._policy.progress.budget = self.max_train_iter if self.axis == "train_iter" else self.max_env_step
            self._setup_source(trainer)

    def train_dataloader(self) -> Iterable[Any]:
        """Return the rounds of an epoch (Lightning hook); it is short against ``eval_every``."""
        self._loader_warnings.suppress()
        updates = self._policy.update_per_collect
        if self.rounds_per_epoch is not None:
            length = self.rounds_per_epoch
        elif self.eval_every is None:
            length = int(max(1, round(self._policy.config.eval.evaluator.eval_freq / updates)))
        else:
            env_steps = (self._policy.n_sample or 0) * world_size()  # unknown with whole episodes
            of_round = updates if self.axis == "train_iter" else env_steps
            shortest = min(self.eval_every, self.checkpoint_every or self.eval_every)
            length = int(max(1, shortest // (EPOCHS * of_round))) if of_round else 1
        return Stream(self._started_round, self._epoch.begin(cast(Trainer, self.trainer), length))

    def val_dataloader(self) -> Iterable[dict[str, Tensor]]:
        """Return one evaluation (Lightning hook), if there is an env; a test has other episodes than a validation."""
        self._loader_warnings.suppress()
        return Stream(self._evaluate, 1) if self.evaluates else []

    test_dataloader = val_dataloader

    @property
    def hparams_initial(self) -> Any:
        """The arguments for the loggers (Lightning); a name that the policy uses too gets the prefix ``data/``."""
        policy = self.trainer.lightning_module if self.trainer is not None else None
        taken = policy.hparams_initial if policy is not None else {}
        mine = super().hparams_initial.items()
        return {f"data/{name}" if name in taken else name: value for name, value in mine}

    def teardown(self, stage: str) -> None:
        """Close the envs (Lightning hook)."""
        self.close()

    def on_exception(self, exception: BaseException) -> None:
        """Close the envs when a run fails (Lightning hook)."""
        self.close()

    def close(self) -> None:
        """Close the envs, and end their processes. Collected data are kept, so that a later ``fit`` can use them."""
        self._end()
        self._loader_warnings.restore()
        if self._restore_io is not None:
            self._restore_io()
            self._restore_io = None
        self._vector_envs.clear()
        if "_handles" in vars(self):
            self._handles.close()
        self._envs.close()

    # ------------------------------------------------------------------ reports

    def pop_episodes(self) -> tuple[list[float], list[int]]:
        """Return the returns and lengths of the episodes that ended on this rank since the last call."""
        return self.collector.pop_episodes() if self.collector is not None else ([], [])

    def pop_infos(self) -> dict[str, tuple[float, int]]:
        """Return the sum of each number of the infos, and the number of episodes that had it, since the last call."""
        return self.collector.pop_infos() if self.collector is not None else {}

    def pop_metrics(self) -> dict[str, float]:
        """Return the collection metrics since the last call, by full name; all ranks call it."""
        metrics: dict[str, float] = {}
        for name, value in {**self._collect_kwargs, **self._policy.collect_metrics.flush_over_ranks()}.items():
            if isinstance(value, (Real, Tensor)):
                metrics[f"collect/{name}"] = float(value)
        if self.collector is not None and self.collector.dropped_episode:
            metrics["collect/dropped_episode"] = float(self.collector.dropped_episode)
        return metrics

    def steps_made(self) -> int:
        """Return the env steps made on this rank so far, in training and in evaluations."""
        return self.evaluator.steps_made if self.evaluator is not None else 0

    def training_envs(self) -> EnvAccess:
        """Return the access to the envs that are collected in; as a sequence, to their objects with "sync"."""
        return self._handles.training

    def evaluation_envs(self) -> EnvAccess:
        """Return the access to the envs of evaluations; as a sequence, to their objects with ``mode="sync"``."""
        return self._handles.evaluation

    def env_in_progress(self) -> str | None:
        """Return which env is made, or is in which step or reset now, or None; native vector envs do not say it."""
        return self._envs.in_progress()

    def request_cancel(self, is_requested: bool) -> None:
        """Make an evaluation end early, or withdraw that request."""
        if self.evaluator is not None:
            self.evaluator.cancel_requested = is_requested

    @property
    def collect_kwargs(self) -> Mapping[str, Any]:
        """Settings for collecting the last round, such as ``eps``; the policy's command mode chose them."""
        return self._collect_kwargs

    # ------------------------------------------------------------------ the policy

    def _check_fields(self, names: Iterable[str]) -> None:
        """Raise if the config of the policy lacks a field, such as one that derives from ``PolicyConfig`` alone."""
        for name in names:
            found: Any = self._policy.config
            for part in name.split("."):
                kind, found = type(found).__name__, getattr(found, part, None)
                if found is None:
                    raise ValueError(
                        f"the config of {type(self._policy).__name__} must have the field {name!r}, which "
                        f"{type(self).__name__} reads, but its {kind} has no {part!r}: derive config_class from the "
                        "config of another algorithm, or add it"
                    )

    def _start_normalising(self, saved: Mapping[str, bool] | None = None) -> None:
        """Turn on the normalisation that the arguments request; if they are None, that of ``saved`` or the policy."""
        found = saved or self._policy.normaliser.kinds
        for name, wanted in self._norm_asked.items():
            vars(self)[name] = found[name] if wanted is None else wanted  # setting these options is refused
        kind = self._policy.config.reward_model.type
        is_used = not (self.norm_reward and self._policy.learner.replaces_env_reward)
        allowed = f"False with reward_model.type {kind!r}, which replaces the rewards of the env"
        require(is_used, "norm_reward", allowed, self.norm_reward)
        gamma = self._policy.discount_factor if self.norm_reward else 1.0
        space, asked = self.single_observation_space, (self.norm_obs, self.norm_reward)
        self._policy.normaliser.begin(space, *asked, discount_factor=gamma)

    def _resume_normalising(self, saved: Mapping[str, bool]) -> None:
        """Normalise as in the checkpoint that is resumed, whose statistics are loaded next.

        Raises:
            ValueError: If the arguments request something else.
        """
        for name, asked in self._norm_asked.items():
            require(asked in (None, saved[name]), name, f"{saved[name]}, as when the checkpoint was written", asked)
        if (self.norm_obs, self.norm_reward) != (saved["norm_obs"], saved["norm_reward"]):
            self._start_normalising(saved)
            self._set_precision()

    # ------------------------------------------------------------------ evaluating

    def _setup_evaluator(self, stage: str) -> None:
        policy, trainer = self._policy, cast(Trainer, self.trainer)
        if not self.evaluates:
            self.single_observation_space, self.single_action_space = self._setup_without_env(stage)
            policy.build(self.single_observation_space, self.single_action_space)
            return
        self._evaluation = Evaluation(trainer, policy, self.n_evaluator_episode)
        num_envs = self.evaluator_env_num or min(self.num_envs, len(self._evaluation.episodes))
        wrappers = self._dropping_faults(self._evaluation_wrappers)
        autoreset: AutoresetName | None = "disabled" if MODES[self.mode].has_separate_envs else None
        env = self._make_env(self.eval_env_id, num_envs, wrappers, self.eval_env_kwargs, autoreset)
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        policy.build(env.single_observation_space, env.single_action_space)
        self._use_env("evaluation", env)
        self.evaluator = self._evaluation.make_evaluator(env, self.seed, "test" if stage == "test" else "validate")
        self.evaluator.info_keys, self.evaluator.info_check = self.info_keys, self.info_check

    def _evaluate(self) -> dict[str, Tensor]:
        self._loader_warnings.restore()
        if self.norm_obs and not self._policy.normaliser.has_seen_obs:
            raise RuntimeError(
                "norm_obs is True, but the policy has no statistics of observations yet: evaluate a checkpoint with "
                "ckpt_path, or a policy from load_from_checkpoint, which contain them"
            )
        return self._evaluation.run()

    def _dropping_faults(self, wrappers: tuple[Callable[[Any], Any], ...]) -> tuple[Callable[[Any], Any], ...]:
        """Return the wrappers with one that turns faults into dropped episodes, if ``env_fault`` is ``"drop"``."""
        if self._policy.config.collect.collector.env_fault != "drop":
            return wrappers
        allowed = f'one of {SEPARATE_MODES} if collect.collector.env_fault is "drop"'
        require(MODES[self.mode].has_separate_envs, "mode", allowed, self.mode)
        from lightning_ding.envs import FaultBarrier

        return (*wrappers, FaultBarrier)

    def _make_env(
        self,
        env_id: EnvLike,
        num_envs: int,
        wrappers: Sequence[Callable[[Any], Any]],
        env_kwargs: Mapping[str, Any],
        autoreset: AutoresetName | None = None,
    ) -> VectorEnv:
        if self.mode == "tensor":
            from lightning_ding.envs.tensor.make import with_device

            env_kwargs = with_device(find_env(env_id), env_kwargs, cast(Trainer, self.trainer).strategy.root_device)
        restarts = MODES[self.mode].has_processes and self._policy.config.collect.collector.env_fault == "drop"
        return self._envs.make(env_id, num_envs, wrappers, env_kwargs, autoreset, restarts)


def _check_numbers(arguments: Mapping[str, Any]) -> None:
    """Raise ValueError for a number that is out of its range or has no effect given the others."""
    for name in COUNTS:
        require(arguments[name] is None or arguments[name] >= 1, name, ">= 1", arguments[name])
    require(arguments["seed"] >= 0, "seed", ">= 0", arguments["seed"])
    eval_every, checkpoint_every = arguments["eval_every"], arguments["checkpoint_every"]
    allowed = "None with rounds_per_epoch, which also says when a run evaluates"
    require(eval_every is None or arguments["rounds_per_epoch"] is None, "eval_every", allowed, eval_every)
    is_used = checkpoint_every is None or eval_every is not None
    require(is_used, "checkpoint_every", "None without eval_every", checkpoint_every)
