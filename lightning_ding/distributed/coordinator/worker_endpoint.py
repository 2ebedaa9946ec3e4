"""The answers of the coordinator to all workers, and what its endpoints have in common."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from lightning_ding import __version__
from lightning_ding.distributed import messages
from lightning_ding.distributed.coordinator.run_state import RunState
from lightning_ding.distributed.coordinator.scheduler import Scheduler
from lightning_ding.distributed.coordinator.tasks import Task
from lightning_ding.distributed.transport import ROLES, SCHEMA, Message, Refusal, Role


class Endpoint:
    """Answers some of the messages to the coordinator.

    Args:
        run: State of the run.
    """

    def __init__(self, run: RunState) -> None:
        self.run = run

    @property
    def scheduler(self) -> Scheduler:
        """Tasks and their owners."""
        return self.run.scheduler

    def _owned(self, message: Message, role: Role | None = None) -> Task:
        """Return the task that a message is about, and renew the lease of its owner.

        Raises:
            Refusal: 404 for an unknown task, 400 for a task of the other role.
            LeaseLostError: If the sender does not own the task any more.
        """
        worker_id, run_id = messages.text(message, "worker_id"), messages.text(message, "run_id")
        self.scheduler.book.renew(worker_id)
        task = self.scheduler.book.owned(worker_id, messages.text(message, "task_id"), run_id)
        if role is not None and task.role != role:
            raise Refusal(400, f"this message is for a {role}'s task, got {task.task_id}, which is a {task.role}'s")
        return task

    def _is_over(self, message: Message) -> bool:
        """Return whether the attempt that a message ends has already ended, because an answer was lost."""
        self.scheduler.book.renew(messages.text(message, "worker_id"))
        return self.scheduler.book.is_over(messages.text(message, "run_id"))

    def _finish(self, task: Task, info: Mapping[str, Any], is_done: bool) -> None:
        """End a task, or release it for another worker."""
        if not is_done:
            self.scheduler.release(task)
            return
        try:
            self.scheduler.finish(task, info)
        except (KeyError, TypeError, ValueError) as error:
            raise Refusal(400, f"info is not the finish info of a {task.role}: {error!r}") from error


TASK_WAIT = 1.0  # seconds that the answer to a request for a task is delayed until there is one
MAX_WAITING = 8  # requests for a task that may be delayed at a time


class WorkerEndpoint(Endpoint):
    """Answers the messages that collectors and learners have in common.

    Args:
        run: State of the run.
    """

    def __init__(self, run: RunState) -> None:
        super().__init__(run)
        self._num_waiting = 0  # workers whose requests for a task are being delayed

    def deal_with_connect(self, message: Message) -> Message:
        """Register a worker, if it has the same version as the coordinator."""
        theirs = (messages.text(message, "version"), messages.whole(message, "schema"))
        if theirs != (__version__, SCHEMA):
            raise Refusal(426, f"this run has version {__version__}, schema {SCHEMA}, got {theirs[0]}, {theirs[1]}")
        role: Any = messages.text(message, "role")
        if role not in ROLES:
            raise Refusal(400, f"role must be one of {', '.join(ROLES)}, got {role[:100]!r}")
        with self.run.lock:
            self.scheduler.book.connect(
                messages.text(message, "worker_id"), role, messages.mapping(message, "resource")
            )
        return {"lease": self.scheduler.book.lease}

    def deal_with_heartbeat(self, message: Message) -> Message:
        """Renew a lease, and answer whether the task is to be closed."""
        with self.run.lock:
            self.scheduler.book.renew(messages.text(message, "worker_id"))
            return {"close": self._owned(message).is_closing if message.get("task_id") is not None else False}

    def deal_with_task(self, message: Message) -> Message:
        """Answer with a task; without a task, delay the answer a little.

        Each delayed answer occupies a thread of the server. Above a limit, the answer is immediate and workers
        repeat their request.
        """
        worker_id = messages.text(message, "worker_id")
        with self.run.lock:
            before, may_wait = self._owners(), self._num_waiting < MAX_WAITING
            self._num_waiting += 1
            try:
                task, is_over = self._next_task(worker_id, TASK_WAIT if may_wait else 0.0)
            finally:
                self._num_waiting -= 1
            if is_over or self._owners() != before:
                self.run.changed()
            wait = 0.0 if may_wait or task is not None else TASK_WAIT
            return {"task": None if task is None else _about(task), "shutdown": is_over, "wait": wait}

    def deal_with_fail(self, message: Message) -> Message:
        """Take a task away from a worker that reports an error."""
        with self.run.lock:
            if not self._is_over(message):
                self.scheduler.fail(self._owned(message), messages.text(message, "error"))
                self.run.changed()
        return {}

    def deal_with_disconnect(self, message: Message) -> Message:
        """Remove a worker, and release its task for another worker."""
        with self.run.lock:
            self.scheduler.disconnect(messages.text(message, "worker_id"))
            self.run.changed()
        return {}

    def deal_with_get_policy(self, message: Message) -> Message:
        """Answer with the handle of newer weights of a policy, if there are any."""
        serial = message.get("serial", -1)
        known = serial if isinstance(serial, int) else messages.whole(message, "serial")
        with self.run.lock:
            self.scheduler.book.renew(messages.text(message, "worker_id"))
            return self.run.weights.newer(messages.text(message, "policy_id"), known)

    def _next_task(self, worker_id: str, seconds: float) -> tuple[Task | None, bool]:
        """Return the next task, or None after ``seconds`` without one, and whether the run is over."""
        until = time.monotonic() + seconds
        while True:
            worker = self.scheduler.book.renew(worker_id)
            task = self.scheduler.next_task(worker)
            worker.knows_end = self.scheduler.is_over
            left = until - time.monotonic()
            if task is not None or worker.knows_end or left <= 0:
                return task, worker.knows_end
            self.run.lock.wait(left)

    def _owners(self) -> tuple[Any, ...]:
        """Return everything that expired leases and new tasks can change."""
        book = self.scheduler.book
        return (*book.workers, *((task.task_id, task.run_id, task.is_closing) for task in book.tasks.values()))


def _about(task: Task) -> dict[str, Any]:
    """Return a task in the form in which workers receive it."""
    name = f"{task.role}_start_task"
    return {"name": name, "task_id": task.task_id, "run_id": task.run_id, "task_info": task.info}
