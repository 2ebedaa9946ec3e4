"""The config section of a learner, and its hooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lightning_ding.config import moved, require

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
