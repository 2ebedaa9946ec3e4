"""Who works on what: workers with leases, tasks with owners, and a run id for each attempt at a task."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from lightning_ding.distributed.errors import LeaseLostError, Refusal

Role = Literal["collector", "learner"]
ROLES: tuple[Role, ...] = ("collector", "learner")
REMEMBERED = 1000  # attempts that are over, whose last message may come a second time


@dataclass
class Task:
    """Something to be done, and by whom."""

    role: Role
    task_id: str
    info: dict[str, Any]
    """What the worker gets."""
    run_id: str | None = None
    """Of the attempt that goes on; None while the task waits for a worker."""
    owner: str | None = None
    attempts: int = 0
    run_number: int = 0
    """Counts the attempts at all tasks, from 1 on."""
    slot: int = 0
    """The smallest number that no other collecting task of the time has."""
    is_closing: bool = False
    """Whether its owner is told to close it."""
    is_touched: bool = True
    """False until its owner has said something of it."""
    has_progressed: bool = False
    """Whether its owner has done something that counts."""
    waiting_since: float = 0.0

    @property
    def buffer_id(self) -> str:
        """Of the buffer that it fills or learns from."""
        return str(self.info["buffer_id"])

    @property
    def is_evaluation(self) -> bool:
        """Whether it evaluates and gives no data."""
        return self.role == "collector" and bool(self.info["collector_cfg"]["eval_flag"])


@dataclass
class Worker:
    """A process that asks for tasks."""

    worker_id: str
    role: Role
    deadline: float
    """When its lease ends."""
    resource: dict[str, Any] = field(default_factory=dict)
    task_id: str | None = None
    is_told: bool = False
    """Whether it knows that the run is over."""


class TaskBook:
    """The workers and tasks of a run; not safe to use from several threads.

    Args:
        lease: Seconds of silence after which a worker loses its task.
        clock: Returns seconds.
    """

    def __init__(self, lease: float, clock: Callable[[], float]) -> None:
        self.lease = lease
        self.workers: dict[str, Worker] = {}
        self.tasks: dict[str, Task] = {}
        self._clock = clock
        self._runs = 0
        self._over: deque[str] = deque(maxlen=REMEMBERED)

    # ------------------------------------------------------------------ workers

    def connect(self, worker_id: str, role: Role, resource: Mapping[str, Any]) -> None:
        """Enter a worker, or renew its lease.

        Raises:
            Refusal: 400, if it was of another role before.
        """
        known = self.workers.get(worker_id)
        if known is None:
            self.workers[worker_id] = known = Worker(worker_id, role, 0.0)
        if known.role != role:
            raise Refusal(400, f"the worker {worker_id} connected as a {known.role} before, not as a {role}")
        known.resource = dict(resource)
        known.deadline = self._clock() + self.lease

    def renew(self, worker_id: str) -> Worker:
        """Return a worker whose lease begins anew.

        Raises:
            LeaseLostError: If there is no such worker.
        """
        worker = self.workers.get(worker_id)
        if worker is None:
            raise LeaseLostError("no such worker is connected; connect, and ask for a task")
        worker.deadline = self._clock() + self.lease
        return worker

    def remove(self, worker_id: str) -> Task | None:
        """Forget a worker, and return the task that it owned."""
        worker = self.workers.pop(worker_id, None)
        return self.tasks.get(worker.task_id) if worker is not None and worker.task_id is not None else None

    def renew_all(self) -> None:
        """Let every worker's lease begin anew."""
        for worker in self.workers.values():
            worker.deadline = self._clock() + self.lease

    def silent(self) -> list[Worker]:
        """Return the workers whose lease is over."""
        now = self._clock()
        return [worker for worker in self.workers.values() if worker.deadline < now]

    # ------------------------------------------------------------------ tasks

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

    def idle(self, role: Role) -> list[Worker]:
        """Return the workers that own no task."""
        return [worker for worker in self.workers.values() if worker.role == role and worker.task_id is None]

    def seconds_waited(self, task: Task) -> float:
        """Return how long a task has waited for a worker."""
        return self._clock() - task.waiting_since

    def hand_out(self, worker: Worker) -> Task | None:
        """Make a worker the owner of the next task for it, if there is one."""
        waiting = self.waiting(worker.role)
        if not waiting:
            return None
        task = waiting[0]
        self._runs += 1
        task.slot = self._free_slot()
        task.run_id, task.owner, task.run_number = secrets.token_hex(8), worker.worker_id, self._runs
        task.attempts += 1
        task.is_touched = task.has_progressed = False
        worker.task_id = task.task_id
        return task

    def owned(self, worker_id: str, task_id: str, run_id: str) -> Task:
        """Return the task that a worker speaks of.

        Raises:
            Refusal: 404, if there is no such task and never was.
            LeaseLostError: If it belongs to another by now, or is over.
        """
        if self.is_over(run_id):
            raise LeaseLostError(f"the run {run_id} of the task {task_id} is over")
        task = self.tasks.get(task_id)
        if task is None:
            raise Refusal(404, f"there is no task {task_id[:100]!r}")
        if task.owner != worker_id or task.run_id != run_id:
            raise LeaseLostError(f"the task {task_id} has another owner or run")
        task.is_touched = True
        return task

    def is_over(self, run_id: str) -> bool:
        """Return whether an attempt came to its end, not long ago."""
        return run_id in self._over

    def runs_over(self) -> set[str]:
        """Return the ids of the newest attempts that came to their end."""
        return set(self._over)

    def release(self, task: Task) -> None:
        """Take a task from its owner; it waits for another."""
        worker = self.workers.get(task.owner) if task.owner is not None else None
        if worker is not None and worker.task_id == task.task_id:
            worker.task_id = None
        if task.run_id is not None:
            self._over.append(task.run_id)
        task.run_id = task.owner = None
        task.is_closing = False
        task.waiting_since = self._clock()

    def end(self, task: Task) -> None:
        """Forget a task."""
        self.release(task)
        self.tasks.pop(task.task_id, None)

    def _free_slot(self) -> int:
        taken = {task.slot for task in self.running("collector")}
        return next(slot for slot in range(len(taken) + 1) if slot not in taken)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return tasks and their owners as builtins."""
        return {"runs": self._runs, "over": list(self._over), "tasks": [asdict(task) for task in self.tasks.values()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what ``state_dict`` returned; owners get a lease that begins now."""
        now = self._clock()
        self._runs = int(state["runs"])
        self._over.extend(state["over"])
        for saved in state["tasks"]:
            task = Task(**{**saved, "is_touched": True, "waiting_since": now})
            self.tasks[task.task_id] = task
            if task.owner is not None:
                worker = Worker(task.owner, task.role, now + self.lease, task_id=task.task_id)
                self.workers[worker.worker_id] = worker
