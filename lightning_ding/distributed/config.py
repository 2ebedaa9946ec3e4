"""The config of a distributed run: what is learned (``main``), and by which processes (``system``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from lightning_ding.config import ConfigLike, require, resolve
from lightning_ding.datamodules.replay import check_demonstrations
from lightning_ding.envs.vector import VectorMode
from lightning_ding.envs.wrapper_names import for_evaluation
from lightning_ding.policy.base.attributes import NO_CONFIG_CLASS
from lightning_ding.policy.base.older_configs import renewed
from lightning_ding.policy.factory import get_policy_cls
from lightning_ding.utils.foreign import foreign
from lightning_ding.utils.protocols import RETURN, Direction, Monitor
from lightning_ding.worker.episodes import Statistic, info_statistics

MadeOf = tuple["str | Mapping[str, Any]", "dict[str, Any]", "tuple[str | Mapping[str, Any], ...]"]
"""Id, arguments and wrappers of an env."""


def _require_least(config: Any, section: str, least: int, *names: str) -> None:
    """Check that settings are at least ``least``, or None if their type allows it."""
    for name in names:
        value, or_none = getattr(config, name), "None" in type(config).__annotations__[name]
        allowed = f">= {least} or None" if or_none else f">= {least}"
        require(value >= least if value is not None else or_none, f"{section}.{name}", allowed, value)


@dataclass(frozen=True)
class EnvConfig:
    """The envs for collecting and evaluating."""

    env_id: str | Mapping[str, Any] = "CartPole-v1"
    """A registered gymnasium id, ``module:id``, the dotted path of a class or function, or a mapping with
    ``class_path`` and ``init_args``; for ``marine`` collectors, the path of a function that makes a PettingZoo env."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the env."""
    wrappers: tuple[str | Mapping[str, Any], ...] = ()
    """Wrappers of each env, applied in order: short names, short names with arguments, dotted paths, or mappings with
    ``class_path`` and ``init_args``; none in games."""
    train_wrappers: tuple[str | Mapping[str, Any], ...] = ()
    """Wrappers around ``wrappers`` for collecting only; none in games."""
    eval_wrappers: tuple[str | Mapping[str, Any], ...] = ()
    """Wrappers around ``wrappers`` for evaluations only, by the learner and by collectors; none in games."""
    eval_env_id: str | Mapping[str, Any] | None = None
    """Env for evaluations, with the same spaces; None means ``env_id``. Must be None for games."""
    eval_env_kwargs: dict[str, Any] | None = None
    """Arguments of the env for evaluations; None means ``env_kwargs``. Must be None for games."""
    import_names: tuple[str, ...] = ()
    """Modules that register envs, imported first."""
    mode: VectorMode = "sync"
    """How the envs are stepped: ``"sync"`` in the process of the collector, ``"async"`` each env in a separate process,
    ``"native"`` by the vector env that is registered for ``env_id``."""
    collector_env_num: int = 4
    """Number of envs of each collector."""
    evaluator_env_num: int = 4
    """Number of envs for an evaluation."""
    n_evaluator_episode: int = 20
    """Number of episodes of an evaluation."""
    stop_value: float | None = None
    """Mean return of an evaluation, by the learner or a collector, at which the run ends; None for no limit. With
    another ``main.monitor``, its value after an evaluation by the learner."""
    info_keys: dict[str, Statistic] | tuple[str, ...] = ()
    """Names of numbers in the info of the env that are logged, or a mapping from each to ``last``, ``mean``, ``sum`` or
    ``max`` over the steps of an episode; ``last`` without a mapping."""

    def __post_init__(self) -> None:
        allowed = "one of 'sync', 'async', 'native', because collectors send arrays"
        require(self.mode != "tensor", "main.env.mode", allowed, self.mode)
        _require_least(self, "main.env", 1, "collector_env_num", "evaluator_env_num", "n_evaluator_episode")
        info_statistics(self.info_keys)

    @property
    def collecting(self) -> MadeOf:
        """Id, arguments and wrappers of the envs for collecting."""
        return self.env_id, self.env_kwargs, (*self.wrappers, *self.train_wrappers)

    @property
    def evaluating(self) -> MadeOf:
        """Id, arguments and wrappers of the envs for evaluations."""
        env_id = self.env_id if self.eval_env_id is None else self.eval_env_id
        kwargs = self.env_kwargs if self.eval_env_kwargs is None else self.eval_env_kwargs
        return env_id, kwargs, (*for_evaluation(self.wrappers), *self.eval_wrappers)


@dataclass(frozen=True)
class MainConfig:
    """The policy, its env, and the end of the run."""

    exp_name: str = "runs/parallel"
    """Folder of the run, on a disk that all machines of the run share."""
    seed: int = 0
    """Seed of the run, from which the seed of each task is derived, >= 0."""
    policy: Mapping[str, Any] = field(default_factory=lambda: {"type": "dqn"})
    """``type`` and the config of the policy."""
    env: EnvConfig = field(default_factory=EnvConfig)
    max_env_step: int | None = None
    """Number of collected env steps at which the run ends; None for no limit."""
    max_train_iter: int | None = None
    """Number of updates at which the run ends; None for no limit."""
    keep_data: bool = True
    """Whether a finished run keeps its replay buffer and newest weights in the folder ``coordinator``, from which
    ``--resume`` with a larger limit continues it."""
    norm_obs: bool = False
    """Whether to normalise observations by statistics of the training data, which are published with the weights."""
    norm_reward: bool = False
    """Whether to divide rewards by the standard deviation of the discounted return; only on-policy algorithms do."""
    demonstrations: str | None = None
    """Data set that the learner mixes into minibatches: a path, or the id of one of Minari; None for none."""
    demonstration_share: float = 0.5
    """Share of a minibatch that is drawn from the demonstrations, in (0, 1)."""
    imitation_reward: bool = False
    """Whether to learn from a reward of 1 for each step of the demonstrations and 0 for each collected one."""
    monitor: str | dict[str, Direction] = RETURN
    """Metric after an evaluation by the learner that chooses its best checkpoint: the name of one to maximise, or a
    mapping of it to ``max`` or ``min``."""

    def __post_init__(self) -> None:
        Monitor.of(self.monitor)
        _require_least(self, "main", 0, "seed")
        _require_least(self, "main", 1, "max_env_step", "max_train_iter")
        check_demonstrations(self.demonstrations, self.demonstration_share, self.imitation_reward, "main.")
        require("type" in self.policy, "main.policy", "a mapping with a 'type'", sorted(self.policy))


@dataclass(frozen=True)
class LeagueConfig:
    """The league of the one-versus-one commander."""

    snapshot_interval: int = 2000
    """Updates between two snapshots of the main player, which become historical players."""
    max_players: int = 10
    """Number of historical players to keep; the one that loses most often is removed first."""
    self_play: float = 0.5
    """Share of collecting tasks against the player's own newest weights; tasks beyond ``self_play`` and ``random_play``
    are against historical players."""
    random_play: float = 0.25
    """Share of collecting tasks against a player that moves at random."""
    win_rate: float = 0.7
    """Share of games that must be won against a player for it to count as beaten."""
    task_episodes: int = 400
    """Games in a collecting task; the next task may have another opponent."""

    def __post_init__(self) -> None:
        _require_least(self, "league", 1, "snapshot_interval", "max_players", "task_episodes")
        for name in ("self_play", "random_play", "win_rate"):
            require(0 <= getattr(self, name) <= 1, f"league.{name}", "in [0, 1]", getattr(self, name))
        total = self.self_play + self.random_play
        require(total <= 1, "league.self_play + league.random_play", "<= 1", total)


@dataclass(frozen=True)
class CommanderConfig:
    """The commander, which decides on the next tasks."""

    type: str = "solo"
    """Registered name: naive, solo, one_vs_one."""
    import_names: tuple[str, ...] = ()
    """Modules that register commanders, imported first."""
    collector_task_space: int | None = None
    """Number of concurrent collecting tasks, which ``increase_collector`` and ``decrease_collector`` change; None means
    ``collector.num``."""
    learner_task_space: int = 1
    """Number of concurrent learning tasks."""
    eval_interval: float | None = 60.0
    """Seconds between two evaluations by a collector; None means that only the learner evaluates."""
    league: LeagueConfig = field(default_factory=LeagueConfig)

    def __post_init__(self) -> None:
        _require_least(self, "commander", 0, "collector_task_space")
        _require_least(self, "commander", 1, "learner_task_space")
        good = self.eval_interval is None or self.eval_interval > 0
        require(good, "commander.eval_interval", "> 0 seconds or None", self.eval_interval)


@dataclass(frozen=True)
class CoordinatorConfig:
    """The coordinator, which assigns tasks and keeps the data."""

    host: str = "127.0.0.1"
    """Address to listen at; any other than a loopback address needs a token."""
    port: int = 0
    """Port to listen at; 0 means any free port, which is written to ``coordinator.json`` in the folder of the run."""
    channel: int = 0
    """Channel number of the run; messages with a different number are refused."""
    token_file: str | None = None
    """File with the token that every message must carry; None means ``LIGHTNING_DING_TOKEN`` from the environment, or
    the file ``token`` in the folder of the run, if there is one."""
    certificate_file: str | None = None
    """PEM file with a certificate for the coordinator's address, for HTTPS over ``flask_fs``; None for no TLS."""
    key_file: str | None = None
    """PEM file with its key; None means that ``certificate_file`` contains it."""
    ca_file: str | None = None
    """PEM file with the certificates that workers trust; None means those of the system."""
    max_message: int = 1_000_000
    """Maximum size of a control message, in bytes."""
    max_block: int = 2_000_000_000
    """Maximum size of a block of tensors, in bytes."""
    collector_task_timeout: float = 30.0
    """Seconds for which a collecting task waits for a collector before a warning is logged."""
    learner_task_timeout: float = 600.0
    """Seconds for which a learning task waits for a learner before a warning is logged."""
    lease: float = 15.0
    """Seconds without a message after which a worker loses its task."""
    snapshot_interval: float = 30.0
    """Seconds between two snapshots of the buffers; newer data are in separate files until the next one."""
    samples_per_insert: float | None = None
    """Ratio of sampled to collected transitions, without demonstrations; None means update_per_collect * batch_size /
    n_sample of the policy, times the share of a minibatch that was collected."""
    tolerance: float = 4.0
    """Rounds by which learning may differ from ``samples_per_insert``, in both directions."""
    max_policy_lag: int | None = None
    """Maximum number of updates between the weights that collected a transition and the newest weights; None for no
    limit."""
    on_policy_lag: Literal["drop", "wait"] = "drop"
    """``"drop"`` drops transitions that are too old; ``"wait"`` makes the learner wait for newer ones."""
    rollout_share: float = 1.0
    """Share of an on-policy rollout with which it is complete, in (0, 1]; below 1, learning does not wait for the
    slowest collectors."""
    late_transitions: Literal["drop", "use"] = "drop"
    """With ``rollout_share`` below 1, ``"drop"`` drops transitions that come after their rollout was learned from, and
    ``"use"`` adds them to the next one, tagged with their version; older ones are always dropped."""
    max_failures: int = 20
    """Consecutive failures of one role, without progress between them, after which the run is given up."""
    commander: CommanderConfig = field(default_factory=CommanderConfig)

    def __post_init__(self) -> None:
        positive = ("max_message", "max_block", "collector_task_timeout", "learner_task_timeout", "lease")
        for name in (*positive, "snapshot_interval", "tolerance", "max_failures"):
            require(getattr(self, name) > 0, f"coordinator.{name}", "> 0", getattr(self, name))
        require(0 <= self.port < 65536, "coordinator.port", "in [0, 65535]", self.port)
        ratio, share = self.samples_per_insert, self.rollout_share
        require(ratio is None or ratio > 0, "coordinator.samples_per_insert", "> 0 or None", ratio)
        _require_least(self, "coordinator", 1, "max_policy_lag")
        require(0 < share <= 1, "coordinator.rollout_share", "in (0, 1]", share)
        drops = self.late_transitions == "drop" or share < 1
        allowed = '"drop" with rollout_share 1, as a rollout is complete when all its transitions are there'
        require(drops, "coordinator.late_transitions", allowed, self.late_transitions)


@dataclass(frozen=True)
class ParallelLearnerConfig:
    """The learner."""

    multi_gpu: bool = False
    """Whether to learn on several ranks, as configured by ``trainer.strategy`` and ``trainer.devices``."""
    trainer: dict[str, Any] = field(default_factory=lambda: {"accelerator": "cpu"})
    """Arguments of Lightning's Trainer; ``callbacks`` is a list of dotted paths, or of mappings with ``class_path`` and
    ``init_args``."""
    send_policy_freq: int = 1
    """Rounds between two publications of the weights; 1 for an on-policy algorithm."""
    prefetch: int = 1
    """Number of rounds to fetch ahead; 0 fetches each round when it is needed, as an on-policy algorithm does."""
    rounds_per_epoch: int | None = None
    """Rounds between two evaluations and checkpoints; None means the policy's ``eval_freq``, in updates."""
    eval_every: int | None = None
    """Env steps of all collectors between two evaluations and checkpoints; None counts rounds."""
    checkpoint_every: int | None = None
    """Env steps of all collectors between two checkpoints; None for one after each evaluation."""
    validate: bool = True
    """Whether the learner evaluates at the end of each epoch, as usual with Lightning; not possible with games."""
    num_threads: int | None = 1
    """Number of torch threads; None means torch's default."""

    def __post_init__(self) -> None:
        _require_least(self, "learner", 0, "prefetch")
        _require_least(self, "learner", 1, "send_policy_freq", "rounds_per_epoch", "num_threads")
        _require_least(self, "learner", 1, "eval_every", "checkpoint_every")


@dataclass(frozen=True)
class ParallelCollectorConfig:
    """The collectors."""

    type: Literal["zergling", "marine"] = "zergling"
    """``"zergling"`` collects with one policy, ``"marine"`` in games of two players."""
    import_names: tuple[str, ...] = ()
    """Modules that register collectors, imported first."""
    num: int | Literal["auto"] = 2
    """Number of collectors that ``lightning-ding parallel`` starts; with the transport ``ray`` also ``"auto"``: one for
    each CPU of the cluster that coordinator and learner leave, as the cluster grows and shrinks."""
    n_sample: int | None = None
    """Transitions in a message, or whole episodes of an on-policy algorithm that collects them; None means the policy's
    ``collect.n_sample``, or for an on-policy algorithm the part of a rollout that falls to one of the collectors."""
    update_policy_second: float = 0.0
    """Minimum number of seconds between two updates of the weights."""
    print_freq: int = 100
    """Messages between two progress messages in the log."""
    env_fault: Literal["raise", "drop"] = "raise"
    """If an env raises or returns non-finite values, ``"raise"`` makes the task fail and ``"drop"`` drops the
    episode, which an evaluation repeats."""
    stall_timeout: float = 120.0
    """Seconds without an env step or an answer after which a collector is considered hung and loses its task."""
    num_threads: int | None = 1
    """Number of torch threads; None means torch's default."""

    def __post_init__(self) -> None:
        _require_least(self, "collector", 0, "update_policy_second")
        _require_least(self, "collector", 1, "n_sample", "print_freq", "num_threads")
        good = self.num == "auto" if isinstance(self.num, str) else self.num >= 1
        require(good, "collector.num", '>= 1 or "auto"', self.num)
        require(self.stall_timeout > 0, "collector.stall_timeout", "> 0 seconds", self.stall_timeout)

    @property
    def number(self) -> int:
        """Number of collectors.

        Raises:
            ValueError: If ``num`` is ``"auto"``, which only a run over Ray replaces by a number.
        """
        if isinstance(self.num, str):
            raise ValueError("system.collector.num must be a number where no Ray cluster decides it, got 'auto'")
        return self.num


@dataclass(frozen=True)
class SystemConfig:
    """The processes of a run and how they communicate."""

    transport: str = "flask_fs"
    """``"flask_fs"``: HTTP and files on a shared disk; ``"ray"``: actors and the object store; or the dotted path of a
    ``Transport``."""
    path_data: str | None = None
    """Folder of collected data, minibatches and priorities over ``flask_fs``; None means ``data`` in the folder of the
    run."""
    path_policy: str | None = None
    """Folder of the published weights over ``flask_fs``; None means ``path_data``."""
    comm_collector: str | None = None
    """Registered name of the class of the collecting workers; None means the one of the transport."""
    comm_learner: str | None = None
    """Registered name of the class of the learner's worker; None means the one of the transport."""
    import_names: tuple[str, ...] = ()
    """Modules to import first, which register further classes of workers."""
    ray_address: str | None = None
    """Address of a Ray cluster, such as ``"auto"``; None starts Ray on this machine."""
    reconnect_timeout: float = 120.0
    """Seconds for which a worker retries while the coordinator does not answer."""
    restarts: int = 20
    """Number of times that ``lightning-ding parallel`` restarts a process before it gives up the run."""
    coordinator: CoordinatorConfig = field(default_factory=CoordinatorConfig)
    learner: ParallelLearnerConfig = field(default_factory=ParallelLearnerConfig)
    collector: ParallelCollectorConfig = field(default_factory=ParallelCollectorConfig)

    def __post_init__(self) -> None:
        require(self.reconnect_timeout > 0, "system.reconnect_timeout", "> 0 seconds", self.reconnect_timeout)
        _require_least(self, "system", 0, "restarts")
        of_files = {"path_data": self.path_data, "path_policy": self.path_policy}
        for name, value in {**of_files, "coordinator.certificate_file": self.coordinator.certificate_file}.items():
            allowed = f'None with the transport {self.transport!r}; only "flask_fs" uses it'
            require(value is None or self.transport == "flask_fs", f"system.{name}", allowed, value)
        if self.collector.num == "auto":
            allowed = f'a number with the transport {self.transport!r}; "auto" follows the size of a Ray cluster'
            require(self.transport == "ray", "system.collector.num", allowed, "auto")
            space, allowed = self.coordinator.commander.collector_task_space, 'None with system.collector.num "auto"'
            require(space is None, "system.coordinator.commander.collector_task_space", allowed, space)


@dataclass(frozen=True)
class ParallelConfig:
    """A whole distributed run."""

    main: MainConfig = field(default_factory=MainConfig)
    system: SystemConfig = field(default_factory=SystemConfig)


def resolve_run(cfg: ConfigLike[ParallelConfig]) -> ParallelConfig:
    """Return the config of a run, which may also name a worker by ``type`` and ``import_names``."""
    if isinstance(cfg, Mapping):
        cfg = {key: value for key, value in cfg.items() if key not in ("type", "import_names")}
    return resolve(ParallelConfig, cfg)


def read_run(cfg: ConfigLike[ParallelConfig]) -> ParallelConfig:
    """Return the config of a run, also of one that :mod:`lightning_ding.di_engine.parallel_config` translates.

    Raises:
        ValueError: If a key is unknown or a value cannot be used here.
        TypeError: If a value has the wrong type.
    """
    if isinstance(cfg, Mapping):
        cfg = foreign("parallel_config").run_of(cfg)
    return cast(ParallelConfig, resolve(ParallelConfig, cfg))


def resolve_policy(policy: Mapping[str, Any]) -> Any:
    """Return the config dataclass of the policy that ``main.policy`` describes.

    Raises:
        ValueError: If a key is unknown or a value out of range.
        TypeError: If a value has the wrong type.
        KeyError: If the policy is not registered.
    """
    options = {name: value for name, value in policy.items() if name not in ("type", "import_names")}
    policy_class = get_policy_cls(policy)
    allowed = f"that of a class with a config_class ({NO_CONFIG_CLASS})"
    require(not policy_class.has_dict_config, "main.policy.type", allowed, policy["type"])
    config_class = policy_class.config_class
    return resolve(config_class, renewed(config_class, options))


@dataclass(frozen=True)
class CollectorTaskConfig:
    """A task of a collector: the ``collector_cfg`` in its ``task_info``."""

    type: str = "zergling"
    """Registered name: zergling, marine."""
    import_names: tuple[str, ...] = ()
    """Modules that register collectors, imported first."""
    eval_flag: bool = False
    """Whether to evaluate ``n_episode`` episodes instead of collecting."""
    policy: Mapping[str, Any] = field(default_factory=lambda: {"type": "dqn"})
    """``type`` and the policy's config."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """Envs for collecting or evaluating."""
    n_sample: int = 1
    """Minimum number of transitions in a message, from each player that learns, or of whole episodes."""
    n_episode: int | None = None
    """Number of episodes after which the task ends; None collects until the task is closed."""
    policy_update_path: tuple[str, ...] = ("policy",)
    """Policy id of each player, that of the main player first; ``"random"`` for a player that moves at random."""
    policy_update_flag: tuple[bool, ...] = (True,)
    """Whether each player learns: its weights are updated during the task, and its transitions are sent."""
    collect_setting: dict[str, Any] = field(default_factory=dict)
    """Arguments of the policy's forward, which answers of the coordinator override."""
    update_policy_second: float = 0.0
    """Minimum number of seconds between two updates of the weights."""
    print_freq: int = 100
    """Messages between two progress messages in the log."""
    env_fault: Literal["raise", "drop"] = "raise"
    """If an env raises or returns non-finite values, ``"raise"`` makes the task fail and ``"drop"`` drops the
    episode, which an evaluation repeats."""
    seed: int = 0
    """Seed of envs and exploration, >= 0."""
    exp_name: str = "runs/parallel"
    """Folder of the run."""

    def __post_init__(self) -> None:
        _require_least(self, "collector_cfg", 0, "seed")
        _require_least(self, "collector_cfg", 1, "n_sample", "print_freq", "n_episode")
        require(not self.eval_flag or self.n_episode is not None, "n_episode", "set with eval_flag", self.n_episode)
        flags, paths = self.policy_update_flag, self.policy_update_path
        require(len(flags) == len(paths) >= 1, "policy_update_flag", f"one for each of {len(paths)} paths", flags)
        require(flags[0], "policy_update_flag", "true for the main player, the first one", flags)


@dataclass(frozen=True)
class LearningTask:
    """A task of a learner: the contents of its ``task_info``."""

    policy: Mapping[str, Any] = field(default_factory=dict)
    """``type`` and the config of the policy."""
    main: MainConfig = field(default_factory=MainConfig)
    learner: ParallelLearnerConfig = field(default_factory=ParallelLearnerConfig)
    policy_id: str = ""
    """Id under which the weights are published."""
    resume: bool = False
    """Whether the task has been started before; it then continues from the newest checkpoint, if there is one."""

    @classmethod
    def read(cls, task_info: Mapping[str, Any]) -> LearningTask:
        """Return the contents of a ``task_info``.

        Raises:
            ValueError: If a key is unknown or a value out of range.
        """
        main, learner = resolve(MainConfig, task_info["main"]), resolve(ParallelLearnerConfig, task_info["learner_cfg"])
        return cls(task_info["policy"], main, learner, task_info["policy_id"], bool(task_info.get("resume", False)))
