"""Hooks of a learner: Lightning callbacks with a name, a position and a priority."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint
from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.worker.learner.engine import LearnerEngine

Position = Literal["before_run", "after_run", "before_iter", "after_iter"]
POSITIONS: tuple[Position, ...] = get_args(Position)
DEFAULT_PRIORITY = 100
CallbackT = TypeVar("CallbackT", bound=Callback)
Hooks = dict[str, list["LearnerHook"]]


class LearnerHook(Callback, ABC):
    """Something that happens at one position of a learner's run; a subclass implements ``__call__(engine)``.

    A learner that is used by hand calls its hooks itself. In a Trainer a hook is a callback: a run is a fit, an
    iteration is a round, and the engine is the Trainer's :class:`LearnerEngine`.

    Args:
        name: Name of the hook.
        priority: Among the hooks of a position, and among the callbacks of a Trainer, lower comes first; >= 0.
        position: When it is called; behind an iteration the counter holds the updates that are completed.
        ext_args: What the hook needs beside; a hook takes what it knows out of it.

    Raises:
        ValueError: If ``priority`` is negative, ``position`` is no position, or ``ext_args`` are unknown.
    """

    def __init__(
        self,
        name: str,
        priority: int = DEFAULT_PRIORITY,
        position: Position = "after_iter",
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        require(priority >= 0, "priority", ">= 0", priority)
        require(position in POSITIONS, "position", f"one of {', '.join(POSITIONS)}", position)
        self._name = name
        self._priority = priority
        self._position: Position = position
        self.ext_args = dict(ext_args or {})

    @property
    def name(self) -> str:
        """Name of the hook."""
        return self._name

    @property
    def priority(self) -> int:
        """Lower comes first."""
        return self._priority

    @property
    def position(self) -> Position:
        """When it is called."""
        return self._position

    @abstractmethod
    def __call__(self, engine: LearnerEngine) -> None:
        """Do what the hook is for."""

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Call a hook of ``before_run``."""
        LearnerEngine.of(trainer).begin_run()
        self._call_at("before_run", trainer)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Call a hook of ``before_iter``."""
        LearnerEngine.of(trainer).begin_iteration()
        self._call_at("before_iter", trainer)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Call a hook of ``after_iter``."""
        LearnerEngine.of(trainer).finish_iteration([outputs] if outputs else [])
        self._call_at("after_iter", trainer)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Call a hook of ``after_run``."""
        LearnerEngine.of(trainer).end_run()
        self._call_at("after_run", trainer)

    def _call_at(self, position: Position, trainer: Trainer) -> None:
        if self._position == position:
            self(LearnerEngine.of(trainer))


def with_priority(callback: CallbackT, priority: int) -> CallbackT:
    """Return a callback after giving it a priority among the callbacks of a Trainer.

    Args:
        callback: Any callback but a ``LearnerHook``, which has its priority from its constructor.
        priority: Lower comes first; >= 0. A callback that has none counts as 100.

    Raises:
        ValueError: If ``priority`` is negative.
        TypeError: If ``callback`` is a ``LearnerHook`` or no callback.
    """
    require(priority >= 0, "priority", ">= 0", priority)
    if isinstance(callback, LearnerHook) or not isinstance(callback, Callback):
        raise TypeError(f"with_priority takes a callback that is no LearnerHook, got {type(callback).__name__}")
    callback.hook_priority = priority  # type: ignore[attr-defined]
    return callback


def sort_callbacks(callbacks: Iterable[Callback]) -> list[Callback]:
    """Return callbacks by priority, those of equal priority as they stood; checkpoints stay last, as in Lightning."""
    return sorted(callbacks, key=lambda callback: (isinstance(callback, Checkpoint), _priority_of(callback)))


def add_learner_hook(hooks: Hooks, hook: LearnerHook) -> None:
    """Put a hook into its position's list, behind those of equal priority; ``hooks`` is changed.

    Raises:
        TypeError: If ``hook`` is no ``LearnerHook``.
    """
    if not isinstance(hook, LearnerHook):
        raise TypeError(f"hook must be a LearnerHook, got {type(hook).__name__}")
    there = hooks.setdefault(hook.position, [])
    place = sum(other.priority <= hook.priority for other in there)
    there.insert(place, hook)


def merge_hooks(hooks1: Mapping[str, Sequence[LearnerHook]], hooks2: Mapping[str, Sequence[LearnerHook]]) -> Hooks:
    """Return the hooks of both by position and priority; of equal ones, those of ``hooks1`` come first.

    Raises:
        ValueError: If they do not have the same positions.
    """
    require(hooks1.keys() == hooks2.keys(), "hooks2", f"hooks at {sorted(hooks1)}, as hooks1", sorted(hooks2))
    return {
        position: sorted([*hooks, *hooks2[position]], key=lambda hook: hook.priority)
        for position, hooks in hooks1.items()
    }


def _priority_of(callback: Callback) -> int:
    if isinstance(callback, LearnerHook):
        return callback.priority
    return int(getattr(callback, "hook_priority", DEFAULT_PRIORITY))
