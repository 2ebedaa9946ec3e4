"""The config sections of collectors, buffers and learners, which are parts of a policy's config.

This module is below both packages, so that a policy may set other defaults and the workers do not depend on a policy. A
section has the keys of all workers of its kind; a worker refuses a key that would have no effect in it. The section of
the evaluators is in ``worker/evaluator/config.py``, and the keys that only one replay buffer has are in its own file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from lightning_ding.config import moved, require, require_type, type_hints, without_defaults
from lightning_ding.registry import BUFFER_REGISTRY, import_modules


@dataclass(frozen=True)
class CollectorConfig:
    """Keys of a serial collector."""

    type: str = "sample"
    """Registered name: sample, episode, sample_1v1, episode_1v1 or your own; a ReplayDataModule needs sample."""
    import_names: tuple[str, ...] = ()
    """Modules to import first, which register further collectors."""
    collect_print_freq: int = 100
    """Updates between two reports of a collector that is used without a Trainer, >= 1."""
    env_fault: Literal["raise", "drop"] = "raise"
    """If an env fails: ``raise`` raises an error; ``drop`` drops and counts the episode, and continues. In a Trainer an
    evaluation repeats the episode."""
    get_train_sample: bool = False
    """Episode collectors: return training samples of all episodes together instead of a list of episodes."""
    reward_shaping: bool = False
    """Episode collector: pass every finished episode through the vector env's ``reward_shaping(env_id, episode)``."""
    deepcopy_obs: bool = False
    """Only for a policy that acts on ``{env_id: observation}``: give it copies, and share no ``next_obs`` with the next
    ``obs``."""
    transform_obs: bool = False
    """Only for a policy that acts on ``{env_id: observation}``: give it float32 tensors instead of arrays."""

    def __post_init__(self) -> None:
        require(self.collect_print_freq >= 1, "collect_print_freq", ">= 1", self.collect_print_freq)


@dataclass(frozen=True)
class ReplayBufferConfig:
    """Keys of every replay buffer. A buffer with further keys extends this class in its own file."""

    MOVED: ClassVar[dict[str, str]] = moved(
        deepcopy="a buffer always stores and returns copies",
        monitor="use monitor_freq, or call pop_metrics(); in a Trainer, MetricsLogger writes them",
        periodic_thruput_seconds="use monitor_freq, or call pop_metrics(); in a Trainer, MetricsLogger writes them",
    )

    type: str = "naive"
    """Name under which the class of the buffer is registered; ``docs/workers.md`` lists the package's own."""
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

    def __post_init__(self) -> None:
        require(self.replay_buffer_size >= 1, "replay_buffer_size", ">= 1", self.replay_buffer_size)
        require(self.frame_stack >= 1, "frame_stack", ">= 1", self.frame_stack)
        require(self.monitor_freq >= 1, "monitor_freq", ">= 1", self.monitor_freq)

    @classmethod
    def for_section(cls, section: Mapping[str, Any], path: str) -> tuple[Any, Mapping[str, Any]]:
        """Return the config class of the buffer that a section's ``type`` names, and the section's keys for it.

        The buffer need not be registered yet, if all keys but those of every buffer are at the default of some buffer.

        Args:
            section: Keys and values.
            path: Start of the section's keys in error messages, such as ``"other.replay_buffer."``.

        Raises:
            KeyError: If no buffer of this type is registered.
            ValueError: If a key of another buffer is not at its default.
            TypeError: If a value has the wrong type.
        """
        shared = {one.name for one in fields(cls)}
        if cls is not ReplayBufferConfig or section.keys() <= shared:
            return cls, section
        selection = {"type": cls.type, "import_names": (), **section}
        for key in ("type", "import_names"):
            require_type(f"{path}{key}", selection[key], type_hints(cls)[key])
        import_modules(selection["import_names"])
        name = selection["type"]
        buffer: Any = BUFFER_REGISTRY.get(name) if name in BUFFER_REGISTRY else None
        if hasattr(buffer, "own_keys"):
            return buffer.config_class, buffer.own_keys(section, path)
        kept = without_defaults(section, shared, cls.variants())
        if buffer is None and not kept.keys() <= shared:
            BUFFER_REGISTRY.get(name)  # raises the error of an unknown name
        return cls, kept

    @staticmethod
    def variants() -> set[Any]:
        """Return the config classes of all registered buffers."""
        return set(BUFFER_REGISTRY.config_classes())


OFF: dict[str, Any] = {
    "load_ckpt_before_run": "",
    "log_show_after_iter": False,
    "save_ckpt_after_iter": False,
    "save_ckpt_after_run": False,
    "log_reduce_after_iter": False,
}
"""Values of the short keys of hooks that mean no hook."""


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

    @classmethod
    def for_section(cls, section: Mapping[str, Any], path: str) -> tuple[type[HookConfig], dict[str, Any]]:
        """Return this class, and a section whose hooks in full form, under any name, are entries of ``custom``.

        Args:
            section: Keys and values; a mapping under any other key than ``custom`` is a hook in full form, and replaces
                the built-in hook if the key is a short one.
            path: Start of the section's keys in error messages.
        """
        full = {key: value for key, value in section.items() if key != "custom" and isinstance(value, Mapping)}
        short = {key: value for key, value in section.items() if key not in full}
        if full:
            short["custom"] = {**short.get("custom", {}), **full}
            short |= {key: OFF[key] for key in full if key in OFF}
        return cls, short

    def __post_init__(self) -> None:
        for name in ("log_show_after_iter", "save_ckpt_after_iter"):
            value = getattr(self, name)
            allowed = value is None or value is False or (value is not True and value >= 1)
            require(allowed, f"hook.{name}", ">= 1, or False or None for no such hook", value)


@dataclass(frozen=True)
class LearnerLoaderConfig:
    """Loading of a learner's batches."""

    MOVED: ClassVar[dict[str, str]] = moved(chunk_size="leave it out: a batch is fetched as a whole")

    num_workers: int = 0
    """Only 0: batches are fetched one by one in the learner's process, each after the previous update."""

    def __post_init__(self) -> None:
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
        require(self.train_iterations >= 1, "train_iterations", ">= 1", self.train_iterations)


@dataclass(frozen=True)
class AggregatorConfig:
    """Keys of a learner aggregator."""

    MOVED: ClassVar[dict[str, str]] = moved(
        slave="no learner listens: pass objects of this process as learners, or use system.learner.multi_gpu",
        master="no learner listens: pass objects of this process as learners, or use system.learner.multi_gpu",
        learner="no learner listens: pass objects of this process as learners, or use system.learner.multi_gpu",
    )

    timeout_seconds: float = 600.0
    """Longest wait for the other ranks in seconds, > 0; after it an error."""

    def __post_init__(self) -> None:
        require(self.timeout_seconds > 0, "timeout_seconds", "> 0", self.timeout_seconds)
