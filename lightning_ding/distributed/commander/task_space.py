"""How many tasks of a kind there may be at a time."""

from __future__ import annotations

from typing import Any


class TaskSpace:
    """The tasks that are under way, at most ``size`` of them.

    Args:
        size: >= 0; it may be changed while tasks are under way, and those above it then end in their own time.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._tasks: dict[str, None] = {}  # a set that keeps its order

    @property
    def has_room(self) -> bool:
        """Whether there may be one more."""
        return len(self._tasks) < self.size

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._tasks

    def take(self, task_id: str) -> None:
        """Note a task that begins."""
        self._tasks[task_id] = None

    def release(self, task_id: str) -> None:
        """Note that a task is over; nothing happens if it is not under way, so that none is counted twice."""
        self._tasks.pop(task_id, None)

    def change(self, amount: int) -> int:
        """Grow, or shrink down to 0, and return the new size."""
        self.size = max(0, self.size + amount)
        return self.size

    def state_dict(self) -> dict[str, Any]:
        """Return the size and the tasks."""
        return {"size": self.size, "tasks": list(self._tasks)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what ``state_dict`` returned."""
        self.size = int(state["size"])
        self._tasks = dict.fromkeys(state["tasks"])
