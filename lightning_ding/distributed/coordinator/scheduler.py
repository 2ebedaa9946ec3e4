"""The scheduler: assigns the commander's tasks to workers, reassigns them after failures, and ends the run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from lightning_ding.distributed.commander.base import BaseParallelCommander, TaskInfo, evaluates, spaces_of
from lightning_ding.distributed.config import CoordinatorConfig
from lightning_ding.distributed.coordinator.resume import renew_learning
from lightning_ding.distributed.coordinator.tasks import Task, TaskBook, WorkerRecord
from lightning_ding.distributed.transport import ROLES, Role

logger = logging.getLogger(__name__)


class Scheduler:
    """Assigns tasks to workers; must not be used from several threads at once.

    Args:
        commander: Commander that decides on tasks.
        config: Leases and limits.
        clock: Function that returns the time in seconds.
    """

    def __init__(self, commander: BaseParallelCommander, config: CoordinatorConfig, clock: Callable[[], float]) -> None:
        self.commander = commander
        self.book = TaskBook(config.lease, clock)
        self.is_over = False
        self.error: str | None = None
        """The reason why the run was given up."""
        self.ended_by: str | None = None
        """Cause of the run's end: "max_env_step", "evaluation", "learner" or "shutdown"; None if it was given up."""
        self.restarts = 0
        """Attempts at tasks that failed or whose worker was lost, and restarts of the coordinator."""
        self._config = config
        self.spaces = spaces_of(commander.config)
        """Number of concurrent tasks of each role; evaluations do not count."""
        self._asked_space = self.spaces["collector"]
        self._failures: dict[Role, int] = dict.fromkeys(ROLES, 0)
        self._clock = clock
        self._swept_at = clock()
        self._silence_counted_at: dict[Role, float] = dict.fromkeys(ROLES, -math.inf)
        self._warned: set[str] = set()
        self._idle_since: float | None = None  # since when there are more collectors than tasks for them

    # ------------------------------------------------------------------ assigning tasks

    def produce(self) -> None:
        """Get new tasks from the commander, and close a collecting task if an evaluation waits."""
        if self.is_over:
            return
        roles: tuple[Role, ...] = ("learner", "collector")  # a learner's task comes first
        for role in roles:
            tasks = self.contents(role)
            room = self.spaces[role] - sum(not evaluates(task) for task in tasks)
            while (info := self.commander.next_task(role, tasks, room > 0)) is not None:
                self.book.add(role, info)
                tasks.append(info)
                room -= not evaluates(info)
        waits = any(task.is_evaluation for task in self.book.waiting("collector"))
        closing = any(task.is_closing for task in self.book.running("collector"))
        if waits and not closing and not self.book.idle("collector") and (running := self._collecting()):
            running[-1].is_closing = True  # makes room for the evaluation, as no collector is or will be free

    def contents(self, role: Role) -> list[TaskInfo]:
        """Return the contents of the tasks of a role that have not ended."""
        return [task.info for task in self.book.tasks.values() if task.role == role]

    def next_task(self, worker: WorkerRecord) -> Task | None:
        """Return a task for a worker, if there is one.

        A worker that has sent no message about its task has not received it, and gets it again. A worker that has sent
        a message and requests another task has abandoned the first one.
        """
        if worker.task_id is not None:
            task = self.book.tasks[worker.task_id]
            if not task.is_touched:
                return task
            self.fail(task, f"the {task.role} requested another task")
        self.produce()
        return None if self.is_over else self.book.hand_out(worker)

    # ------------------------------------------------------------------ ends of tasks

    def fail(self, task: Task, why: str) -> None:
        """Take a task away from an owner that failed; too many failures in a row end the run."""
        logger.warning("the task %s failed: %s", task.task_id, why)
        self.restarts += 1
        self.release(task)
        self._count_failure(task.role, why)

    def release(self, task: Task) -> None:
        """Take a task from its owner: another worker continues a learner's task; a collector's task is replaced."""
        if task.role == "learner" and not self.is_over:
            task.info = {**task.info, "resume": True}
            self.book.release(task)
            return
        self.book.end(task)
        if task.role == "learner" and self.error is None:
            self.error = "the learner was lost after the end of the run, before it could report its results"
            logger.error(self.error)
        self.commander.fail(task.role, task.info)

    def finish(self, task: Task, info: Mapping[str, Any]) -> None:
        """Record that a task is done."""
        is_over = self.commander.finish(task.role, task.info, info)
        self.note_progress(task)
        self.book.end(task)
        if is_over:
            self.end("evaluation" if task.role == "collector" else "learner")

    def note_progress(self, task: Task) -> None:
        """Record progress, after which earlier failures do not count any more."""
        self._failures[task.role] = 0
        task.has_progressed = True

    def disconnect(self, worker_id: str) -> None:
        """Remove a worker that disconnects, and release its task."""
        task = self.book.remove(worker_id)
        if task is not None:
            self.restarts += not self.is_over
            self.release(task)

    def sweep(self) -> None:
        """Release the tasks of silent workers, and look for new tasks.

        If the last call was more than a lease ago, for example because this process was suspended, messages could not
        be received. Then all leases start again.
        """
        now = self._clock()
        if now - self._swept_at > self.book.lease:
            for worker_id in self.book.workers:
                self.book.renew(worker_id)
        self._swept_at = now
        for worker in self.book.silent():
            logger.warning("the %s %s was silent for %s s", worker.role, worker.worker_id, self.book.lease)
            task = self.book.remove(worker.worker_id)
            if task is not None:
                self._lose(task, now)
        self.produce()
        self._warn_of_long_waits(now)
        self._warn_of_idle_collectors(now)

    # ------------------------------------------------------------------ the run

    def end(self, by: str | None) -> None:
        """End the run: close all tasks.

        Args:
            by: Cause of the end, see ``ended_by``, which keeps the first one.
        """
        self.ended_by = self.ended_by if self.is_over else by
        self.is_over = True
        for task in self.book.tasks.values():
            task.is_closing = True

    def give_up(self, why: str) -> None:
        """End the run with an error."""
        if self.error is None and not self.is_over:
            self.error = why
            logger.error("giving up the run: %s", why)
        self.end(None)

    def is_known_to_all(self) -> bool:
        """Return whether the run is over and every worker with a valid lease has been notified."""
        silent = self.book.silent()
        return self.is_over and all(one.knows_end or one in silent for one in self.book.workers.values())

    def change_space(self, amount: int) -> int:
        """Change the number of concurrent collecting tasks, close the surplus, and return the new number."""
        self.spaces["collector"] = max(0, self.spaces["collector"] + amount)
        self._close_surplus()
        self.produce()
        return self.spaces["collector"]

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the tasks as builtins."""
        return {
            **self.book.state_dict(),
            "commander": self.commander.state_dict(),
            "space": self.spaces["collector"],
            "asked_space": self._asked_space,
            "ended_by": self.ended_by,
            "restarts": self.restarts,
            "is_over": self.is_over and self.error is None,  # a run that was given up may be resumed
        }

    def load_state_dict(
        self, state: Mapping[str, Any], described: Mapping[str, Mapping[str, Any]], continues: bool = False
    ) -> None:
        """Restore the state that ``state_dict`` returned; new tasks follow the current config.

        The number of collecting tasks follows it too, if it is different from that of the previous config.

        Args:
            state: State as builtins.
            described: Tasks as ``TaskBook.described`` returned them.
            continues: Whether a run that is over continues, with new tasks for new workers.
        """
        self.book.load_state_dict(state, described)
        self.commander.load_state_dict(state["commander"])
        self.spaces["collector"] = state["space"]
        self.restarts = state["restarts"] + 1
        if continues:  # without what was left at the end of the run, whose workers have ended
            self.commander.reopen()
            for task in list(self.book.tasks.values()):
                self.release(task)
            self.book.workers.clear()
        renew_learning(self.book.tasks.values(), self.commander.config)
        for task in self.book.waiting("collector"):
            self.release(task)  # the commander makes a new one
        if state["is_over"] and not continues:
            self.end(state["ended_by"])
        else:
            for task in self.book.tasks.values():  # tasks of a run that was given up were being closed
                task.is_closing = False
            if state["asked_space"] != self._asked_space:
                self.spaces["collector"] = self._asked_space
                self._close_surplus()

    # ------------------------------------------------------------------ helpers

    def _lose(self, task: Task, now: float) -> None:
        """Release the task of a silent worker.

        Several silent workers at the same time count as one failure, and workers that have made progress do not count.
        """
        self.release(task)
        self.restarts += not self.is_over
        if not task.has_progressed and now - self._silence_counted_at[task.role] >= self.book.lease:
            self._silence_counted_at[task.role] = now
            self._count_failure(task.role, f"the {task.role} of {task.task_id} was silent for {self.book.lease} s")

    def _count_failure(self, role: Role, why: str) -> None:
        self._failures[role] += 1
        if self._failures[role] > self._config.max_failures:
            allowed = f"max_failures is {self._config.max_failures}"
            reason = why.partition("\n")[0]  # without the stack, which is in the log
            self.give_up(f"{self._failures[role]} {role} tasks in a row failed ({allowed}), the last: {reason}")

    def _collecting(self) -> list[Task]:
        """Return the running collecting tasks that are not being closed, the newest last."""
        running = [task for task in self.book.running("collector") if not task.is_evaluation and not task.is_closing]
        return sorted(running, key=lambda task: task.run_number)

    def working(self) -> int:
        """Return the number of collectors that collect."""
        return len(self._collecting())

    def _close_surplus(self) -> None:
        waiting = [task for task in self.book.waiting("collector") if not task.is_evaluation]
        running = self._collecting()
        surplus = max(0, len(waiting) + len(running) - self.spaces["collector"])
        for task in waiting[:surplus]:
            self.release(task)
        for task in running[: max(0, surplus - len(waiting))]:
            task.is_closing = True

    def _warn_of_long_waits(self, now: float) -> None:
        limits = {"collector": self._config.collector_task_timeout, "learner": self._config.learner_task_timeout}
        for task in (*self.book.waiting("collector"), *self.book.waiting("learner")):
            waited = now - task.waiting_since
            if waited > limits[task.role] and task.task_id not in self._warned:
                self._warned.add(task.task_id)
                logger.warning("the task %s has waited %.0f s for a %s", task.task_id, waited, task.role)

    def _warn_of_idle_collectors(self, now: float) -> None:
        """Log once if there are more collectors than tasks for longer than a task may wait for a collector."""
        number = sum(worker.role == "collector" for worker in self.book.workers.values())
        if number <= self.spaces["collector"] or self.is_over:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif self._idle_since + self._config.collector_task_timeout < now < math.inf:
            self._idle_since = math.inf  # until their number fits again
            logger.warning(
                "%d collectors are connected, and there are collecting tasks for %d of them: set system.collector.num, "
                "or run `lightning-ding ask set_collectors`",
                *(number, self.spaces["collector"]),
            )
