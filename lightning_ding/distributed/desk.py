"""What all answers of the coordinator have in common: of whom a message is, and of which task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_ding.distributed import fields
from lightning_ding.distributed.channel import Message
from lightning_ding.distributed.errors import Refusal
from lightning_ding.distributed.run_state import RunState
from lightning_ding.distributed.scheduler import Scheduler
from lightning_ding.distributed.tasks import Role, Task


class Desk:
    """Where messages are answered.

    Args:
        run: All that is known of the run.
    """

    def __init__(self, run: RunState) -> None:
        self.run = run

    @property
    def scheduler(self) -> Scheduler:
        """Who does what."""
        return self.run.scheduler

    def _owned(self, message: Message, role: Role | None = None) -> Task:
        """Return the task that a message is about, and renew its owner's lease.

        Raises:
            Refusal: 404 for an unknown task, 400 for one of the other role.
            LeaseLostError: If it is not the sender's any more.
        """
        worker_id, run_id = fields.text(message, "worker_id"), fields.text(message, "run_id")
        self.scheduler.book.renew(worker_id)
        task = self.scheduler.book.owned(worker_id, fields.text(message, "task_id"), run_id)
        if role is not None and task.role != role:
            raise Refusal(400, f"this message is for the task of a {role}, and {task.task_id} is one of a {task.role}")
        return task

    def _is_over(self, message: Message) -> bool:
        """Return whether the attempt that a message ends came to its end before: the answer to it was lost."""
        self.scheduler.book.renew(fields.text(message, "worker_id"))
        return self.scheduler.book.is_over(fields.text(message, "run_id"))

    def _finish(self, task: Task, info: Mapping[str, Any], is_done: bool) -> None:
        """End a task, or let it go to another."""
        if not is_done:
            self.scheduler.let_go(task)
            return
        try:
            self.scheduler.finish(task, info)
        except (KeyError, TypeError, ValueError) as error:
            raise Refusal(400, f"info is not what ends a {task.role}'s task: {error!r}") from error
