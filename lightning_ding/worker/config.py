"""The config sections of collectors and buffers, which are parts of a policy's config.

This module is below both packages, so that a policy may set other defaults and the workers do not depend on a policy. A
section has the keys of all workers of its kind; a worker refuses a key that would have no effect in it. The sections of
evaluators and learners are in ``worker/evaluator/config.py`` and ``worker/learner/config.py``, and the keys that only
one replay buffer has are in its own file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from lightning_ding.config import moved, require, require_type, type_hints, without_defaults
from lightning_ding.registry import BUFFER_REGISTRY, import_modules


@dataclass(frozen=True)
class CollectorConfig:
    """Keys of a serial collector."""

    type: str = "sample"
    """Registered name: sample, episode, sample_1v1, episode_1v1 or your own."""
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
