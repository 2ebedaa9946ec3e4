"""The order of the callbacks of a Trainer, by their priorities."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar
from weakref import WeakKeyDictionary

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import Checkpoint

from lightning_ding.config import require

DEFAULT_PRIORITY = 100
CallbackT = TypeVar("CallbackT", bound=Callback)
_PRIORITIES: WeakKeyDictionary[Callback, int] = WeakKeyDictionary()
"""Priorities of the callbacks that ``with_priority`` was given."""


class HasPriority(Callback):
    """A callback with its own priority: a ``LearnerHook``."""

    @property
    def priority(self) -> int:
        """Order among the callbacks of a Trainer, lower first; >= 0."""
        raise NotImplementedError


def with_priority(callback: CallbackT, priority: int) -> CallbackT:
    """Return a callback after giving it a priority among the callbacks of a Trainer.

    Args:
        callback: Any callback but a ``LearnerHook``, which has its priority from its constructor.
        priority: Order among the callbacks, lower first; >= 0. A callback without a priority counts as 100.

    Raises:
        ValueError: If ``priority`` is negative.
        TypeError: If ``callback`` is a ``LearnerHook`` or not a callback.
    """
    require(priority >= 0, "priority", ">= 0", priority)
    if isinstance(callback, HasPriority) or not isinstance(callback, Callback):
        raise TypeError(f"with_priority takes a callback that is not a LearnerHook, got {type(callback).__name__}")
    _PRIORITIES[callback] = priority
    return callback


def sort_callbacks(callbacks: Iterable[Callback]) -> list[Callback]:
    """Return callbacks by priority, in their order where it is equal; checkpoints stay last, as in Lightning."""

    def place(callback: Callback) -> tuple[bool, int]:
        given = _PRIORITIES.get(callback, DEFAULT_PRIORITY)
        return isinstance(callback, Checkpoint), callback.priority if isinstance(callback, HasPriority) else given

    return sorted(callbacks, key=place)
