"""One learner; collectors collect with its policy and evaluate it regularly."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from typing_extensions import override

from lightning_ding.config import ConfigLike, require
from lightning_ding.distributed.commander.base import BaseParallelCommander, TaskInfo, evaluates
from lightning_ding.distributed.config import LeagueConfig, ParallelConfig
from lightning_ding.distributed.transport import Role
from lightning_ding.registry import PARALLEL_COMMANDER_REGISTRY
from lightning_ding.utils.protocols import Monitor

logger = logging.getLogger(__name__)

PAUSE = 10.0  # seconds at most from a failed evaluation to the next one, so that collecting can continue


@PARALLEL_COMMANDER_REGISTRY.register("solo")
class SoloParallelCommander(BaseParallelCommander):
    """Makes one learning task, and collecting tasks and evaluations of its policy.

    The learning task comes first and fixes the ids of policy and buffer for the whole run. If a learner fails or ends
    early, the next one continues from the last checkpoint.

    The run is over when the learner is done, or when the mean return of an evaluation reaches ``main.env.stop_value``
    (with another ``main.monitor``, which collectors do not report, only the learner ends the run by it).
    Evaluations are ``eval_interval`` seconds apart and start as soon as there are weights after an update.
    """

    collector_type: ClassVar[str] = "zergling"
    has_league: ClassVar[bool] = False

    def __init__(self, cfg: ConfigLike[ParallelConfig] = None) -> None:
        super().__init__(cfg)
        commander, kind = self.config.system.coordinator.commander, self.config.system.collector.type
        space, allowed = commander.learner_task_space, "1, as there is one policy to learn"
        require(space == 1, "commander.learner_task_space", allowed, space)
        allowed = f"{self.collector_type!r} with this commander"
        require(kind == self.collector_type, "system.collector.type", allowed, kind)
        is_used = self.has_league or commander.league == LeagueConfig()
        require(is_used, "commander.league", "at its defaults without a league", commander.league)
        self._policy_id: str | None = None
        self._buffer_id: str | None = None
        self._policy_version = 0
        self._evaluated_at = time.monotonic()

    @override
    def next_task(self, role: Role, tasks: Collection[TaskInfo], has_room: bool) -> TaskInfo | None:
        if role == "learner":
            return self._next_learner_task() if has_room else None
        if self._policy_id is None or self._buffer_id is None:
            return None
        interval, now = self.config.system.coordinator.commander.eval_interval, time.monotonic()
        is_due = interval is not None and self._policy_version > 0 and now - self._evaluated_at >= interval
        if is_due and not any(map(evaluates, tasks)):
            self._evaluated_at = now
            return self._evaluation_task(self._policy_id, self._buffer_id)
        return self._collecting_task(self._policy_id, self._buffer_id) if has_room else None

    @override
    def needed_policies(self, tasks: Collection[TaskInfo]) -> set[str]:
        return set() if self._policy_id is None else {self._policy_id}

    @override
    def wants_snapshot(self, policy_id: str, policy_version: int) -> str | None:
        if policy_id == self._policy_id:
            self._policy_version = max(self._policy_version, policy_version)
        return None

    @override
    def finish(self, role: Role, task: TaskInfo, info: Mapping[str, Any]) -> bool:
        if not evaluates(task):
            return super().finish(role, task, info)
        logger.info(
            "evaluation of policy version %s: mean return %.3f, standard deviation %.3f, %d episodes",
            *(info["train_iter"], info["reward_mean"], info["reward_std"], info["real_episode_count"]),
        )
        return self._is_over(task, info)

    @override
    def fail(self, role: Role, task: TaskInfo) -> None:
        if evaluates(task):  # the next one starts in ``PAUSE`` seconds at most
            interval = self.config.system.coordinator.commander.eval_interval or 0.0
            self._evaluated_at = time.monotonic() - max(0.0, interval - PAUSE)

    @override
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "policy_id": self._policy_id,
            "buffer_id": self._buffer_id,
            "newest_version": self._policy_version,
            "since_evaluation": time.monotonic() - self._evaluated_at,
        }

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._policy_id, self._buffer_id = state["policy_id"], state["buffer_id"]
        self._policy_version = state["newest_version"]
        self._evaluated_at = time.monotonic() - state["since_evaluation"]

    def _collecting_task(self, policy_id: str, buffer_id: str) -> TaskInfo:
        return self._collector_task(buffer_id, [policy_id], [True])

    def _evaluation_task(self, policy_id: str, buffer_id: str) -> TaskInfo:
        return self._collector_task(buffer_id, [policy_id], [True], evaluates=True)

    def _is_over(self, task: TaskInfo, info: Mapping[str, Any]) -> bool:
        """Return whether an evaluation ends the run."""
        main, stop_value = self.config.main, self.config.main.env.stop_value
        is_return = Monitor.of(main.monitor) == Monitor()  # collectors report no other metric
        reached = stop_value is not None and is_return and info["reward_mean"] >= stop_value
        return bool(reached and info["train_iter"] > 0)

    def _next_learner_task(self) -> TaskInfo:
        resume = self._policy_id is not None
        if not resume:
            name = uuid.uuid4().hex[:12]
            self._policy_id, self._buffer_id = f"policy_{name}", f"buffer_{name}"
        return self._learner_task(str(self._policy_id), str(self._buffer_id), resume)
