"""The config sections of collectors, buffers and learners, which are parts of a policy's config.

This module is below both packages, so that a policy may set other defaults and the workers do not depend on a policy. A
section has the keys of all workers of its kind; a worker refuses a key that would have no effect in it. The section of
the evaluators is in ``worker/evaluator/config.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lightning_ding.config import moved, require


@dataclass(frozen=True)
class CollectorConfig:
    """Keys of a serial collector."""

    MOVED: ClassVar[dict[str, str]] = moved(
        deepcopy_obs="observations of an env that reuses its memory are copied automatically",
        transform_obs="observations always reach the policy as tensors",
    )

    type: str = "sample"
    """Registered name: sample, episode, sample_1v1, episode_1v1 or your own; a ReplayDataModule needs sample."""
    import_names: tuple[str, ...] = ()
    """Modules to import first, which register further collectors."""
    collect_print_freq: int = 100
    """Updates between two reports of a collector that is used without a Trainer, >= 1."""
    env_fault: Literal["raise", "drop"] = "raise"
    """At a fault of an env: raise, or drop the episode, count it and continue."""
    get_train_sample: bool = False
    """Episode collectors: return training samples of all episodes together instead of a list of episodes."""
    reward_shaping: bool = False
    """Episode collector: pass every finished episode through the vector env's ``reward_shaping(env_id, episode)``."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(self.collect_print_freq >= 1, "collect_print_freq", ">= 1", self.collect_print_freq)


@dataclass(frozen=True)
class PushSampleRateConfig:
    """Bounds of the ratio of pushed to sampled transitions."""

    max: float | None = None
    """Upper bound, > 0: a push that would exceed it waits; None for no bound."""
    min: float = 0.0
    """Lower bound, >= 0: a sample that would fall below it waits."""


@dataclass(frozen=True)
class ThroughputConfig:
    """Limits of the rates at which an advanced buffer is filled and sampled."""

    push_sample_rate_limit: PushSampleRateConfig = field(default_factory=PushSampleRateConfig)
    """Bounds of pushed / sampled over the window; the faster side waits for the other."""
    window_seconds: float = 30.0
    """Seconds after which a push or a sample counts only 1 % in the ratio, > 0."""
    sample_min_limit_ratio: float = 1.0
    """Multiple of the batch size that the buffer must hold before sampling, >= 1."""
    timeout_seconds: float = 60.0
    """Longest wait in seconds, > 0; after it an error names the reason."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        limit, path = self.push_sample_rate_limit, "thruput_controller.push_sample_rate_limit"
        require(limit.max is None or limit.max > 0, f"{path}.max", "> 0 or None", limit.max)
        require(limit.min >= 0, f"{path}.min", ">= 0", limit.min)
        above = limit.max is None or limit.max > limit.min
        require(above, f"{path}.max", f"above min ({limit.min}), or both sides wait for each other", limit.max)
        require(self.window_seconds > 0, "thruput_controller.window_seconds", "> 0", self.window_seconds)
        ratio = self.sample_min_limit_ratio
        require(ratio >= 1, "thruput_controller.sample_min_limit_ratio", ">= 1", ratio)
        require(self.timeout_seconds > 0, "thruput_controller.timeout_seconds", "> 0", self.timeout_seconds)


@dataclass(frozen=True)
class ReplayBufferConfig:
    """Keys of a replay buffer."""

    MOVED: ClassVar[dict[str, str]] = moved(
        deepcopy="a buffer always stores and returns copies",
        monitor="use monitor_freq, or call pop_metrics(); in a Trainer, MetricsLogger writes them",
        periodic_thruput_seconds="use monitor_freq, or call pop_metrics(); in a Trainer, MetricsLogger writes them",
    )

    type: str = "naive"
    """Registered name of the buffer: naive, advanced, sequence, episode or your own."""
    import_names: tuple[str, ...] = ()
    """Modules to import first, which register further buffers."""
    replay_buffer_size: int = 10_000
    """Transitions stored on each rank, >= 1; new ones overwrite the oldest. Memory grows as they arrive."""
    frame_stack: int = 1
    """Frames that an image observation stacks along its first axis, >= 1; each frame is then stored once."""
    memmap_dir: str | None = None
    """Folder for files that hold the transitions instead of memory; None for memory."""
    enable_track_used_data: bool = False
    """Remember the ``data_id`` of transitions that leave, for ``pop_used_data``."""
    monitor_freq: int = 200
    """Updates between two reports of a buffer that is used without a Trainer, >= 1."""
    alpha: float = 0.6
    """Advanced buffer: exponent of the priorities, in [0, 1]; 0 draws uniformly."""
    beta: float = 0.4
    """Advanced buffer: exponent of the importance weights at the start, in [0, 1]; 1 corrects the bias fully."""
    anneal_step: float = 100_000
    """Advanced buffer: time at which beta reaches 1, in anneal_unit, >= 0; 0 keeps beta constant."""
    anneal_unit: Literal["train_iter", "env_step", "budget"] = "train_iter"
    """Advanced buffer: unit of anneal_step: updates, env steps, or shares of the run's max_env_step."""
    max_use: int | None = None
    """Advanced buffer: number of times a transition is sampled before it leaves, >= 1; None for no limit."""
    max_staleness: int | None = None
    """Advanced buffer: age in updates of its policy at which a transition leaves, >= 1; None for no limit."""
    thruput_controller: ThroughputConfig = field(default_factory=ThroughputConfig)
    """Advanced buffer: limits of the rates at which it is filled and sampled."""
    sequence_length: int | None = None
    """Sequence and episode buffer: steps of a sequence, burn-in included, >= 1; None returns whole episodes."""
    burn_in: int = 0
    """Sequence and episode buffer: first steps of a sequence that are not learned from, in [0, sequence_length)."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(self.replay_buffer_size >= 1, "replay_buffer_size", ">= 1", self.replay_buffer_size)
        require(self.frame_stack >= 1, "frame_stack", ">= 1", self.frame_stack)
        require(self.monitor_freq >= 1, "monitor_freq", ">= 1", self.monitor_freq)
        require(0 <= self.alpha <= 1, "alpha", "in [0, 1]", self.alpha)
        require(0 <= self.beta <= 1, "beta", "in [0, 1]", self.beta)
        require(self.anneal_step >= 0, "anneal_step", ">= 0", self.anneal_step)
        anneals = self.anneal_step > 0 or self.anneal_unit == "train_iter"
        require(anneals, "anneal_unit", "left alone with anneal_step 0", self.anneal_unit)
        for name in ("max_use", "max_staleness", "sequence_length"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, ">= 1 or None", value)
        length = self.sequence_length
        allowed = f"in [0, sequence_length) = [0, {length})" if length else "0 without sequence_length"
        require(0 <= self.burn_in < (length or 1), "burn_in", allowed, self.burn_in)


@dataclass(frozen=True)
class HookConfig:
    """Hooks of a learner: the built-in ones by their short keys, and further ones by name."""

    load_ckpt_before_run: str = ""
    """Checkpoint to load at the start of a run; '' for none."""
    log_show_after_iter: int | Literal[False] | None = 100
    """Updates between two reports, each the mean since the one before, >= 1; False or None for none."""
    save_ckpt_after_iter: int | Literal[False] | None = 10_000
    """Updates between two checkpoints, >= 1; False or None for none."""
    save_ckpt_after_run: bool = True
    """Write a checkpoint at the end of a run."""
    log_reduce_after_iter: bool | None = None
    """Average the reports over the ranks; None does so if there are several."""
    custom: Mapping[str, Any] = field(default_factory=dict)
    """Further hooks by name, each a mapping: type, position, and optionally name, priority and ext_args."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("log_show_after_iter", "save_ckpt_after_iter"):
            value = getattr(self, name)
            allowed = value is None or value is False or (value is not True and value >= 1)
            require(allowed, f"hook.{name}", ">= 1, or False or None for no such hook", value)


@dataclass(frozen=True)
class LearnerLoaderConfig:
    """Loading of a learner's batches."""

    num_workers: int = 0
    """Only 0: batches are fetched one by one in the learner's process, each after the previous update."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        allowed = "0, batches are fetched in the learner's own process"
        require(self.num_workers == 0, "dataloader.num_workers", allowed, self.num_workers)


@dataclass(frozen=True)
class LearnerConfig:
    """Keys of a learner."""

    MOVED: ClassVar[dict[str, str]] = moved(
        is_multitask_pipeline="set only_monitor_rank0=False to report on every rank",
    )

    type: str = "base"
    """Registered name of the learner: base or your own."""
    import_names: tuple[str, ...] = ()
    """Modules to import first, which register further learners and hooks."""
    train_iterations: int = 1_000_000_000
    """Number of updates of a ``start()``, >= 1."""
    dataloader: LearnerLoaderConfig = field(default_factory=LearnerLoaderConfig)
    """Loading of the batches."""
    log_policy: bool = True
    """Describe the policy in Python's logging when the learner gets it."""
    only_monitor_rank0: bool = True
    """Report only on the first rank."""
    hook: HookConfig = field(default_factory=HookConfig)
    """Hooks that are called around iterations and runs."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(self.train_iterations >= 1, "train_iterations", ">= 1", self.train_iterations)


@dataclass(frozen=True)
class AggregatorConfig:
    """Keys of a learner aggregator."""

    MOVED: ClassVar[dict[str, str]] = moved(
        slave="learners are objects of this process, or the ranks of torch.distributed",
        master="learners are objects of this process, or the ranks of torch.distributed",
        learner="pass the learners to the constructor",
    )

    timeout_seconds: float = 600.0
    """Longest wait for the other ranks in seconds, > 0; after it an error."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(self.timeout_seconds > 0, "timeout_seconds", "> 0", self.timeout_seconds)
