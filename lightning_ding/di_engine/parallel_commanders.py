"""Forms of parallel commanders: methods that count tasks without a coordinator, and the naive commander."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.distributed.commander.base import BaseParallelCommander, TaskInfo, evaluates, spaces_of
from lightning_ding.distributed.transport import Role
from lightning_ding.registry import PARALLEL_COMMANDER_REGISTRY

POLICY_ID = "policy_test"
BUFFER_ID = "buffer_test"
"""Ids of the policy and of the buffer of the naive commander."""


def method_of(commander: BaseParallelCommander, name: str) -> Any:
    """Return a method of :class:`CountedTasks`, of which a commander has one from its first use on.

    Raises:
        AttributeError: If there is no such method.
    """
    if not hasattr(CountedTasks, name):
        raise AttributeError(f"{type(commander).__name__!r} object has no attribute {name!r}")
    counted = vars(commander).setdefault("counted", CountedTasks(commander))
    return getattr(counted, name)


class CountedTasks:
    """The tasks of a commander that is used without a coordinator, which counts them otherwise.

    Args:
        commander: The commander.
    """

    def __init__(self, commander: BaseParallelCommander) -> None:
        self._commander = commander
        self._spaces = spaces_of(commander.config)
        self._tasks: dict[str, tuple[Role, TaskInfo]] = {}

    def get_collector_task(self) -> TaskInfo | None:
        """Return the next task for a collector and count it as running; None if there is none now."""
        return self._next("collector")

    def get_learner_task(self) -> TaskInfo | None:
        """Return the next task for a learner and count it as running; None if there is none now."""
        return self._next("learner")

    def finish_collector_task(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Record the end of a collecting or evaluating task, and return whether it ends the run."""
        return self._finish(task_id, info, is_done=not info.get("eval_flag") or self.judge_collector_finish("", info))

    def finish_learner_task(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Record the end of a learning task, or its release before the end, and return whether it ends the run."""
        self.update_learner_info(task_id, info)
        return self._finish(task_id, info, is_done=self.judge_learner_finish(task_id, info))

    def notify_fail_collector_task(self, task_id: str) -> None:
        """Record the failure of a collecting or evaluating task."""
        self._finish(task_id, {}, is_done=False)

    def notify_fail_learner_task(self, task_id: str) -> None:
        """Record the failure of a learning task; the next one continues from its checkpoint."""
        self._finish(task_id, {}, is_done=False)

    def update_learner_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        """Record the progress of a learner."""
        self._commander.note_learner(info)

    def judge_collector_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Return whether the finish info of a collector marks its task as done."""
        return bool(info.get("collector_done", False))

    def judge_learner_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Return whether the info of a learner marks its task as done."""
        return bool(info.get("learner_done", False))

    def increase_collector_task_space(self, n: int = 1) -> int:
        """Allow ``n`` >= 1 more concurrent collecting tasks, and return the new number."""
        require(n >= 1, "n", ">= 1", n)
        self._spaces["collector"] += n
        return self._spaces["collector"]

    def decrease_collector_task_space(self, n: int = 1) -> int:
        """Allow ``n`` >= 1 fewer concurrent collecting tasks, down to 0, and return the new number."""
        require(n >= 1, "n", ">= 1", n)
        self._spaces["collector"] = max(0, self._spaces["collector"] - n)
        return self._spaces["collector"]

    def tasks(self, role: Role) -> list[TaskInfo]:
        """Return the tasks of a role that have not ended."""
        return [task for known, task in self._tasks.values() if known == role]

    def _next(self, role: Role) -> TaskInfo | None:
        tasks = self.tasks(role)
        has_room = sum(not evaluates(task) for task in tasks) < self._spaces[role]
        task = self._commander.next_task(role, tasks, has_room)
        if task is not None:
            self._tasks[task["task_id"]] = role, task
        return task

    def _finish(self, task_id: str, info: Mapping[str, Any], is_done: bool) -> bool:
        """Remove a task; do nothing if it is not running, so that its end cannot count twice."""
        role, task = self._tasks.pop(task_id, (None, {}))
        if role is None:
            return False
        if not is_done:
            self._commander.fail(role, task)
            return False
        return self._commander.finish(role, task, info)


@PARALLEL_COMMANDER_REGISTRY.register("naive")
class NaiveParallelCommander(BaseParallelCommander):
    """A commander for tests: it names tasks while the limit on concurrent tasks allows it, and makes no evaluations.

    Its policy and buffer have constant ids.
    """

    @override
    def next_task(self, role: Role, tasks: Collection[TaskInfo], has_room: bool) -> TaskInfo | None:
        if not has_room:
            return None
        if role == "learner":
            return self._learner_task(POLICY_ID, BUFFER_ID, resume=self._train_iter > 0)
        return self._collector_task(BUFFER_ID, [POLICY_ID], [True])

    @override
    def needed_policies(self, tasks: Collection[TaskInfo]) -> set[str]:
        return {POLICY_ID}

    @override
    def collect_setting(self, env_step: int) -> dict[str, Any]:
        return {"eps": 0.9}
