"""Hooks that take notes, and learners and Trainers that call them."""

from __future__ import annotations

from typing import Any

from lightning_ding.worker import LearnerEngine, LearnerHook

POSITIONS = ("before_run", "after_run", "before_iter", "after_iter")


class NoteHook(LearnerHook):
    """Notes its name and the completed updates when it is called."""

    notes: list[tuple[str, int]]

    def __init__(self, notes: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.notes = [] if notes is None else notes

    def __call__(self, engine: LearnerEngine) -> None:
        self.notes.append((self.name, engine.train_iter))


def hook(name: str = "a", priority: int = 100, position: Any = "after_iter", notes: Any = None) -> NoteHook:
    return NoteHook(notes, name=name, priority=priority, position=position)


def names(hooks: Any) -> dict[str, list[str]]:
    return {position: [one.name for one in of_position] for position, of_position in hooks.items()}
