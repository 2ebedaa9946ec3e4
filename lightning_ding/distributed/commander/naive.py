"""A commander for tests, whose policy and buffer have constant ids."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from lightning_ding.distributed.commander.base import BaseParallelCommander, TaskInfo
from lightning_ding.registry import PARALLEL_COMMANDER_REGISTRY

POLICY_ID = "policy_test"
BUFFER_ID = "buffer_test"


@PARALLEL_COMMANDER_REGISTRY.register("naive")
class NaiveParallelCommander(BaseParallelCommander):
    """Returns tasks while the limit on concurrent tasks allows it. It makes no evaluations."""

    @override
    def get_collector_task(self) -> TaskInfo | None:
        task_id = self._take_room(self.collector_task_space, "collector_task")
        return None if task_id is None else self._collector_task(task_id, BUFFER_ID, [POLICY_ID], [True])

    @override
    def get_learner_task(self) -> TaskInfo | None:
        task_id = self._take_room(self.learner_task_space, "learner_task")
        has_learned = self._train_iter > 0
        return None if task_id is None else self._learner_task(task_id, POLICY_ID, BUFFER_ID, resume=has_learned)

    @override
    def needed_policies(self) -> set[str]:
        return {POLICY_ID}

    @override
    def collect_setting(self, env_step: int) -> dict[str, Any]:
        return {"eps": 0.9}
