"""Workers with leases, tasks with owners, and a run id for each attempt at a task."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lightning_ding.distributed.commander.base import evaluates
from lightning_ding.distributed.transport import LeaseLostError, Refusal, Role

REMEMBERED = 1000  # ended attempts that are remembered, because their last message may arrive twice


@dataclass
class Task:
    """A task, its current attempt and its owner."""

    role: Role
    task_id: str
    info: dict[str, Any]
    """The ``task_info`` that the worker receives."""
    run_id: str | None = None
    """Id of the current attempt; None while the task waits for a worker."""
    owner: str | None = None
    run_number: int = 0
    """Number of the current attempt, counted over all tasks from 1."""
    slot: int = 0
    """Smallest index from 0 that no other running collecting task has."""
    is_closing: bool = False
    """Whether its owner should close it."""
    is_touched: bool = True
    """Whether its owner has sent a message about it."""
    has_progressed: bool = False
    """Whether its owner has made progress."""
    waiting_since: float = 0.0

    @property
    def buffer_id(self) -> str:
        """Id of the buffer that the task fills or learns from."""
        return str(self.info["buffer_id"])

    @property
    def is_evaluation(self) -> bool:
        """Whether the task is an evaluation, which sends no data."""
        return evaluates(self.info)


@dataclass
class WorkerRecord:
    """The coordinator's record of a worker: its role, its lease and its task."""

    worker_id: str
    role: Role
    deadline: float
    """Time at which its lease ends."""
    task_id: str | None = None
    knows_end: bool = False
    """Whether it has been notified that the run is over."""


class TaskBook:
    """The workers and tasks of a run; must not be used from several threads at once.

    Args:
        lease: Seconds without a message after which a worker loses its task.
        clock: Function that returns the time in seconds.
    """

    def __init__(self, lease: float, clock: Callable[[], float]) -> None:
        self.lease = lease
        self.workers: dict[str, WorkerRecord] = {}
        self.tasks: dict[str, Task] = {}
        self._clock = clock
        self._runs = 0
        self.over: deque[str] = deque(maxlen=REMEMBERED)
        """Ids of the attempts that have ended most recently."""

    def connect(self, worker_id: str, role: Role) -> None:
        """Add a worker, or renew its lease.

        Raises:
            Refusal: 400, if the worker previously had another role.
        """
        known = self.workers.get(worker_id)
        if known is None:
            self.workers[worker_id] = known = WorkerRecord(worker_id, role, 0.0)
        if known.role != role:
            raise Refusal(400, f"the worker {worker_id} connected as a {known.role} before, not as a {role}")
        known.deadline = self._clock() + self.lease

    def renew(self, worker_id: str) -> WorkerRecord:
        """Renew the lease of a worker and return its record.

        Raises:
            LeaseLostError: If there is no such worker.
        """
        worker = self.workers.get(worker_id)
        if worker is None:
            raise LeaseLostError("no such worker is connected: connect and request a task")
        worker.deadline = self._clock() + self.lease
        return worker

    def remove(self, worker_id: str) -> Task | None:
        """Remove a worker, and return the task that it owned."""
        worker = self.workers.pop(worker_id, None)
        return self.tasks.get(worker.task_id) if worker is not None and worker.task_id is not None else None

    def silent(self) -> list[WorkerRecord]:
        """Return the workers whose lease has expired."""
        now = self._clock()
        return [worker for worker in self.workers.values() if worker.deadline < now]

    def add(self, role: Role, info: Mapping[str, Any]) -> Task:
        """Put a task into the queue."""
        task = Task(role, str(info["task_id"]), dict(info), waiting_since=self._clock())
        self.tasks[task.task_id] = task
        return task

    def waiting(self, role: Role) -> list[Task]:
        """Return the tasks without an owner, evaluations first, then the oldest."""
        found = [task for task in self.tasks.values() if task.role == role and task.owner is None]
        return sorted(found, key=lambda task: (not task.is_evaluation, task.waiting_since))

    def running(self, role: Role) -> list[Task]:
        """Return the tasks with an owner."""
        return [task for task in self.tasks.values() if task.role == role and task.owner is not None]

    def idle(self, role: Role) -> list[WorkerRecord]:
        """Return the workers that own no task."""
        return [worker for worker in self.workers.values() if worker.role == role and worker.task_id is None]

    def hand_out(self, worker: WorkerRecord) -> Task | None:
        """Make a worker the owner of the next task for it, if there is one."""
        waiting = self.waiting(worker.role)
        if not waiting:
            return None
        task = waiting[0]
        self._runs += 1
        taken = {one.slot for one in self.running("collector")}
        task.slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
        task.run_id, task.owner, task.run_number = secrets.token_hex(8), worker.worker_id, self._runs
        task.is_touched = task.has_progressed = False
        worker.task_id = task.task_id
        return task

    def owned(self, worker_id: str, task_id: str, run_id: str) -> Task:
        """Return the task that a message of a worker is about.

        Raises:
            Refusal: 404, if there is no such task.
            LeaseLostError: If the task has another owner now, or this attempt has ended.
        """
        if run_id in self.over:
            raise LeaseLostError(f"the attempt {run_id} at the task {task_id} is over")
        task = self.tasks.get(task_id)
        if task is None:
            raise Refusal(404, f"there is no task {task_id[:100]!r}")
        if task.owner != worker_id or task.run_id != run_id:
            raise LeaseLostError(f"the task {task_id} has another owner or attempt")
        task.is_touched = True
        return task

    def release(self, task: Task) -> None:
        """Take a task from its owner, and let it wait for another one."""
        worker = self.workers.get(task.owner) if task.owner is not None else None
        if worker is not None and worker.task_id == task.task_id:
            worker.task_id = None
        if task.run_id is not None:
            self.over.append(task.run_id)
        task.run_id = task.owner = None
        task.is_closing = False
        task.waiting_since = self._clock()

    def end(self, task: Task) -> None:
        """Remove a task."""
        self.release(task)
        self.tasks.pop(task.task_id, None)

    def described(self) -> dict[str, dict[str, Any]]:
        """Return ``tasks`` without their contents, and ``contents``, both as builtins and by the ids of the tasks."""
        tasks = {task_id: dict(vars(task)) for task_id, task in self.tasks.items()}  # asdict() is far slower
        return {"contents": {task_id: task.pop("info") for task_id, task in tasks.items()}, "tasks": tasks}

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the tasks as builtins."""
        return {"runs": self._runs, "over": list(self.over)}

    def load_state_dict(self, state: Mapping[str, Any], described: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore what ``state_dict`` and ``described`` returned; the leases of the owners start now."""
        now = self._clock()
        self._runs = int(state["runs"])
        self.over.extend(state["over"])
        for name, saved in described["tasks"].items():
            task = Task(**{**saved, "info": described["contents"][name], "is_touched": True, "waiting_since": now})
            self.tasks[task.task_id] = task
            if task.owner is not None:
                worker = WorkerRecord(task.owner, task.role, now + self.lease, task_id=task.task_id)
                self.workers[worker.worker_id] = worker
