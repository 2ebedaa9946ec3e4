"""What all workers tell the coordinator, and what they are told."""

from __future__ import annotations

import time
from typing import Any

from lightning_ding import __version__
from lightning_ding.distributed import fields
from lightning_ding.distributed.channel import Message
from lightning_ding.distributed.desk import Desk
from lightning_ding.distributed.errors import Refusal
from lightning_ding.distributed.run_state import RunState
from lightning_ding.distributed.tasks import ROLES, Task
from lightning_ding.distributed.wire import SCHEMA

TASK_WAIT = 1.0  # seconds that a question for a task is kept waiting for one
MOST_ASKING = 8  # questions for a task that are kept waiting at a time


class WorkerDesk(Desk):
    """The coordinator's answers to workers, whatever they do.

    Args:
        run: All that is known of the run.
    """

    def __init__(self, run: RunState) -> None:
        super().__init__(run)
        self._asking = 0  # workers whose questions for a task are kept waiting

    def deal_with_connect(self, message: Message) -> Message:
        """Let a worker in, if it speaks the same language."""
        theirs = (fields.text(message, "version"), fields.whole(message, "schema"))
        if theirs != (__version__, SCHEMA):
            raise Refusal(426, f"this run is of version {__version__}, schema {SCHEMA}, not {theirs[0]}, {theirs[1]}")
        role: Any = fields.text(message, "role")
        if role not in ROLES:
            raise Refusal(400, f"role must be one of {', '.join(ROLES)}, got {role[:100]!r}")
        with self.run.lock:
            self.scheduler.book.connect(fields.text(message, "worker_id"), role, fields.mapping(message, "resource"))
        return {"lease": self.scheduler.book.lease}

    def deal_with_heartbeat(self, message: Message) -> Message:
        """Renew a lease, and say whether the task is to be closed."""
        with self.run.lock:
            self.scheduler.book.renew(fields.text(message, "worker_id"))
            return {"close": self._owned(message).is_closing if message.get("task_id") is not None else False}

    def deal_with_task(self, message: Message) -> Message:
        """Give a worker something to do, as soon as there is something.

        Only some may wait here for it, as each keeps a thread of the server; others are told to ask again.
        """
        worker_id = fields.text(message, "worker_id")
        with self.run.lock:
            before, may_wait = self._owners(), self._asking < MOST_ASKING
            self._asking += 1
            try:
                task, is_over = self._next_task(worker_id, TASK_WAIT if may_wait else 0.0)
            finally:
                self._asking -= 1
            if is_over or self._owners() != before:
                self.run.changed()
            wait = 0.0 if may_wait or task is not None else TASK_WAIT
            return {"task": None if task is None else _about(task), "shutdown": is_over, "wait": wait}

    def deal_with_fail(self, message: Message) -> Message:
        """Take a task back whose worker met an error."""
        with self.run.lock:
            if not self._is_over(message):
                self.scheduler.fail(self._owned(message), fields.text(message, "error"))
                self.run.changed()
        return {}

    def deal_with_disconnect(self, message: Message) -> Message:
        """Let a worker go, and its task to another."""
        with self.run.lock:
            self.scheduler.disconnect(fields.text(message, "worker_id"))
            self.run.changed()
        return {}

    def deal_with_get_policy(self, message: Message) -> Message:
        """Say where newer weights of a policy are, if there are any."""
        serial = message.get("serial", -1)
        known = serial if isinstance(serial, int) else fields.whole(message, "serial")
        with self.run.lock:
            self.scheduler.book.renew(fields.text(message, "worker_id"))
            return self.run.weights.newer(fields.text(message, "policy_id"), known)

    def _next_task(self, worker_id: str, seconds: float) -> tuple[Task | None, bool]:
        """Return a task, waiting for one up to some seconds, and whether the run is over."""
        until = time.monotonic() + seconds
        while True:
            worker = self.scheduler.book.renew(worker_id)
            task = self.scheduler.next_task(worker)
            worker.is_told = self.scheduler.is_over
            left = until - time.monotonic()
            if task is not None or worker.is_told or left <= 0:
                return task, worker.is_told
            self.run.lock.wait(left)

    def _owners(self) -> tuple[Any, ...]:
        """Return what a look for silent workers and new tasks may change."""
        book = self.scheduler.book
        return (*book.workers, *((task.task_id, task.run_id, task.is_closing) for task in book.tasks.values()))


def _about(task: Task) -> dict[str, Any]:
    """Return a task as its worker gets it."""
    name = f"{task.role}_start_task"
    return {"name": name, "task_id": task.task_id, "run_id": task.run_id, "task_info": task.info}
