"""The config of a distributed run: what is learned (``main``), and who does what and where (``system``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lightning_ding.config import require

MadeOf = tuple["str | Mapping[str, Any]", "dict[str, Any]", "tuple[str | Mapping[str, Any], ...]"]
"""Id, arguments and wrappers of an env."""


@dataclass(frozen=True)
class EnvConfig:
    """Where data comes from."""

    env_id: str | Mapping[str, Any] = "CartPole-v1"
    """A registered gymnasium id, ``module:id``, the dotted path of a class or function, or a mapping with
    ``class_path`` and ``init_args``; for ``marine`` collectors the path of a function that makes a PettingZoo env."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the env."""
    wrappers: tuple[str | Mapping[str, Any], ...] = ()
    """Applied in order to each env: dotted paths, or mappings with ``class_path`` and ``init_args``; none in games."""
    train_wrappers: tuple[str | Mapping[str, Any], ...] = ()
    """Applied around ``wrappers`` where collectors collect, not in evaluations; none in games."""
    eval_wrappers: tuple[str | Mapping[str, Any], ...] = ()
    """Applied around ``wrappers`` in evaluations, by the learner and by collectors; none in games."""
    eval_env_id: str | Mapping[str, Any] | None = None
    """Env of evaluations, with the same spaces; None takes ``env_id``, as games must."""
    eval_env_kwargs: dict[str, Any] | None = None
    """Arguments of the evaluations' env, in place of ``env_kwargs``; None takes ``env_kwargs``, as games must."""
    import_names: tuple[str, ...] = ()
    """Modules to import first, for the envs that they register."""
    mode: Literal["sync", "async", "native"] = "sync"
    """``"sync"`` steps a collector's envs in its process, ``"async"`` each in its own."""
    collector_env_num: int = 4
    """Envs of each collector."""
    evaluator_env_num: int = 4
    """Envs of an evaluation."""
    n_evaluator_episode: int = 20
    """Episodes of an evaluation."""
    stop_value: float | None = None
    """The run ends when an evaluation's mean return reaches this, by whomever it is made; None for no such end."""

    def __post_init__(self) -> None:
        for name in ("collector_env_num", "evaluator_env_num", "n_evaluator_episode"):
            require(getattr(self, name) >= 1, f"main.env.{name}", ">= 1", getattr(self, name))

    @property
    def collecting(self) -> MadeOf:
        """Id, arguments and wrappers of the envs that training data come from."""
        return self.env_id, self.env_kwargs, (*self.wrappers, *self.train_wrappers)

    @property
    def evaluating(self) -> MadeOf:
        """Id, arguments and wrappers of the envs of evaluations."""
        env_id = self.env_id if self.eval_env_id is None else self.eval_env_id
        kwargs = self.env_kwargs if self.eval_env_kwargs is None else self.eval_env_kwargs
        return env_id, kwargs, (*self.wrappers, *self.eval_wrappers)


@dataclass(frozen=True)
class MainConfig:
    """What is learned."""

    exp_name: str = "runs/parallel"
    """Folder of the run, on a disk that all its machines share."""
    seed: int = 0
    """Of everything; each collector's task makes its own from it."""
    policy: Mapping[str, Any] = field(default_factory=lambda: {"type": "dqn"})
    """``type`` and the policy's config."""
    env: EnvConfig = field(default_factory=EnvConfig)
    max_env_step: int | None = None
    """End the run after so many collected env steps; None for no such end."""
    max_train_iter: int | None = None
    """End the run after so many updates; None for no such end."""
    norm_obs: bool = False
    """Normalise observations by the statistics of those learned from, which collectors get with the weights."""

    def __post_init__(self) -> None:
        require(self.seed >= 0, "main.seed", ">= 0", self.seed)
        require("type" in self.policy, "main.policy", "a mapping with a 'type'", sorted(self.policy))
        for name in ("max_env_step", "max_train_iter"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"main.{name}", ">= 1 or None", value)


@dataclass(frozen=True)
class LeagueConfig:
    """Of the one-versus-one commander."""

    snapshot_interval: int = 2000
    """Updates after which the main player's weights become a historical player."""
    max_players: int = 10
    """Historical players that are kept; the ones it beats most surely go first."""
    self_play: float = 0.5
    """Share of collecting tasks against its own newest weights; the others are against historical players."""
    random_play: float = 0.25
    """Share of collecting tasks against a player that moves at random."""
    win_rate: float = 0.7
    """Share of games that must be won against a player for it to count as beaten."""
    task_episodes: int = 400
    """Games of a collecting task; the next task may have another opponent."""

    def __post_init__(self) -> None:
        for name in ("snapshot_interval", "max_players", "task_episodes"):
            require(getattr(self, name) >= 1, f"league.{name}", ">= 1", getattr(self, name))
        for name in ("self_play", "random_play", "win_rate"):
            require(0 <= getattr(self, name) <= 1, f"league.{name}", "in [0, 1]", getattr(self, name))
        total = self.self_play + self.random_play
        require(total <= 1, "league.self_play + league.random_play", "<= 1", total)


@dataclass(frozen=True)
class CommanderConfig:
    """Who says what is to be done next."""

    type: str = "solo"
    """Registered name: naive, solo, one_vs_one."""
    import_names: tuple[str, ...] = ()
    """Modules to import first."""
    collector_task_space: int | None = None
    """Collecting tasks at a time, which grow and shrink with ``increase_collector`` and ``decrease_collector``; None
    takes ``collector.num``."""
    learner_task_space: int = 1
    """Learning tasks at a time."""
    eval_interval: float | None = 60.0
    """Seconds between two evaluations by a collector; None for none, then the learner's own validation is the only."""
    league: LeagueConfig = field(default_factory=LeagueConfig)

    def __post_init__(self) -> None:
        space = self.collector_task_space
        require(space is None or space >= 0, "commander.collector_task_space", ">= 0 or None", space)
        require(self.learner_task_space >= 1, "commander.learner_task_space", ">= 1", self.learner_task_space)
        good = self.eval_interval is None or self.eval_interval > 0
        require(good, "commander.eval_interval", "> 0 seconds or None", self.eval_interval)


@dataclass(frozen=True)
class CoordinatorConfig:
    """The process that hands out tasks and keeps the data."""

    host: str = "127.0.0.1"
    """Address to listen at; another one than this machine's own needs a token."""
    port: int = 0
    """0 takes a free one and writes it to ``coordinator.json`` in the folder of the run."""
    channel: int = 0
    """Of the run; messages of another one are refused."""
    token_file: str | None = None
    """File with the token that every message must bear; None takes ``LIGHTNING_DING_TOKEN`` of the environment, or
    the file ``token`` in the folder of the run, if there is one."""
    max_message: int = 1_000_000
    """Bytes of a control message."""
    max_block: int = 2_000_000_000
    """Bytes of a block of tensors."""
    collector_task_timeout: float = 30.0
    """Seconds that a collecting task waits for a free collector before a warning."""
    learner_task_timeout: float = 600.0
    """Seconds that a learning task waits for a free learner before a warning."""
    lease: float = 15.0
    """Seconds of silence after which a worker loses its task."""
    snapshot_interval: float = 30.0
    """Seconds between two writings of buffers to the disk; what came since lies in single files until then."""
    samples_per_insert: float | None = None
    """Transitions learned from for each one collected; None takes the policy's update_per_collect * batch_size /
    n_sample."""
    tolerance: float = 4.0
    """How far learning may run behind or ahead of that ratio, in rounds of the learner."""
    max_policy_lag: int | None = None
    """Updates between the weights that collected a transition and the newest ones; None for no limit."""
    on_policy_lag: Literal["drop", "wait"] = "drop"
    """``"drop"`` leaves out what is too old; ``"wait"`` keeps the learner from running further ahead of collecting."""
    max_failures: int = 20
    """Failures of tasks of one kind in a row, with nothing done between them, that end the run with an error."""
    commander: CommanderConfig = field(default_factory=CommanderConfig)

    def __post_init__(self) -> None:
        positive = ("max_message", "max_block", "collector_task_timeout", "learner_task_timeout", "lease")
        for name in (*positive, "snapshot_interval", "tolerance", "max_failures"):
            require(getattr(self, name) > 0, f"coordinator.{name}", "> 0", getattr(self, name))
        require(0 <= self.port < 65536, "coordinator.port", "in [0, 65535]", self.port)
        ratio, lag = self.samples_per_insert, self.max_policy_lag
        require(ratio is None or ratio > 0, "coordinator.samples_per_insert", "> 0 or None", ratio)
        require(lag is None or lag >= 1, "coordinator.max_policy_lag", ">= 1 or None", lag)


@dataclass(frozen=True)
class LearnerConfig:
    """The processes that learn."""

    multi_gpu: bool = False
    """Learn on several ranks: ``trainer.strategy`` and ``trainer.devices`` say how."""
    trainer: dict[str, Any] = field(default_factory=lambda: {"accelerator": "cpu"})
    """Arguments of Lightning's Trainer."""
    send_policy_freq: int = 1
    """Rounds between two publications of the weights."""
    prefetch: int = 1
    """Rounds that are fetched while another one is learned from; 0 fetches each when it is needed."""
    rounds_per_epoch: int | None = None
    """Rounds between two evaluations and checkpoints; None makes it the policy's ``eval_freq`` updates."""
    validate: bool = True
    """Evaluate in the learner's process at the end of each epoch, as Lightning does; needs a gymnasium env."""
    num_threads: int | None = 1
    """Threads of torch; None leaves them."""

    def __post_init__(self) -> None:
        require(self.send_policy_freq >= 1, "learner.send_policy_freq", ">= 1", self.send_policy_freq)
        require(self.prefetch >= 0, "learner.prefetch", ">= 0", self.prefetch)
        require(self.rounds_per_epoch is None or self.rounds_per_epoch >= 1, "learner.rounds_per_epoch", ">= 1 or None",
                self.rounds_per_epoch)  # fmt: skip
        require(self.num_threads is None or self.num_threads >= 1, "learner.num_threads", ">= 1 or None",
                self.num_threads)  # fmt: skip


@dataclass(frozen=True)
class ParallelCollectorConfig:
    """The processes that collect."""

    type: Literal["zergling", "marine"] = "zergling"
    """``"zergling"`` collects with one policy, ``"marine"`` in games of two players."""
    import_names: tuple[str, ...] = ()
    """Modules to import first."""
    num: int = 2
    """Collectors that ``lightning-ding parallel`` starts."""
    n_sample: int | None = None
    """Transitions of a message; None takes the policy's ``collect.n_sample``."""
    update_policy_second: float = 0.0
    """Seconds between two looks for newer weights, at least."""
    print_freq: int = 100
    """Messages between two lines in the log."""
    env_fault: Literal["raise", "drop"] = "raise"
    """What becomes of an episode whose env reports a fault: the task fails, or the episode is dropped."""
    stall_timeout: float = 120.0
    """Seconds without an env step or an answer after which a collector counts as hung and lets its lease go."""
    num_threads: int | None = 1
    """Threads of torch; None leaves them."""

    def __post_init__(self) -> None:
        require(self.num >= 1, "collector.num", ">= 1", self.num)
        require(self.n_sample is None or self.n_sample >= 1, "collector.n_sample", ">= 1 or None", self.n_sample)
        require(self.update_policy_second >= 0, "collector.update_policy_second", ">= 0", self.update_policy_second)
        require(self.print_freq >= 1, "collector.print_freq", ">= 1", self.print_freq)
        require(self.stall_timeout > 0, "collector.stall_timeout", "> 0 seconds", self.stall_timeout)
        require(self.num_threads is None or self.num_threads >= 1, "collector.num_threads", ">= 1 or None",
                self.num_threads)  # fmt: skip


@dataclass(frozen=True)
class SystemConfig:
    """Who does what, and where."""

    transport: Literal["flask_fs", "ray"] = "flask_fs"
    """``"flask_fs"``: HTTP and files on a shared disk; ``"ray"``: actors and the object store."""
    ray_address: str | None = None
    """Of a Ray cluster, such as ``"auto"``; None starts Ray on this machine."""
    reconnect_timeout: float = 120.0
    """Seconds for which a worker looks for a coordinator that does not answer."""
    restarts: int = 20
    """Deaths of one process that ``lightning-ding parallel`` makes good before it gives the run up."""
    coordinator: CoordinatorConfig = field(default_factory=CoordinatorConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    collector: ParallelCollectorConfig = field(default_factory=ParallelCollectorConfig)

    def __post_init__(self) -> None:
        require(self.reconnect_timeout > 0, "system.reconnect_timeout", "> 0 seconds", self.reconnect_timeout)
        require(self.restarts >= 0, "system.restarts", ">= 0", self.restarts)


@dataclass(frozen=True)
class ParallelConfig:
    """A whole distributed run."""

    main: MainConfig = field(default_factory=MainConfig)
    system: SystemConfig = field(default_factory=SystemConfig)
