"""One learner; collectors collect with its policy and evaluate it regularly."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import override

from lightning_ding.config import ConfigLike, require
from lightning_ding.distributed.commander.base import BaseParallelCommander, TaskInfo
from lightning_ding.distributed.config import LeagueConfig, ParallelConfig
from lightning_ding.registry import PARALLEL_COMMANDER_REGISTRY
from lightning_ding.utils.protocols import Monitor

logger = logging.getLogger(__name__)

POLICY_ID = "policy_test"
BUFFER_ID = "buffer_test"
"""Ids of the policy and of the buffer of the naive commander."""
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
        self._evaluation: str | None = None  # task id of the running evaluation
        self._evaluated_at = time.monotonic()

    # ------------------------------------------------------------------ tasks

    @override
    def get_learner_task(self) -> TaskInfo | None:
        task_id = self._take_room(self.learner_task_space, "learner_task")
        if task_id is None:
            return None
        resume = self._policy_id is not None
        if not resume:
            name = uuid.uuid4().hex[:12]
            self._policy_id, self._buffer_id = f"policy_{name}", f"buffer_{name}"
        return self._learner_task(task_id, str(self._policy_id), str(self._buffer_id), resume)

    @override
    def get_collector_task(self) -> TaskInfo | None:
        if self._policy_id is None or self._buffer_id is None:
            return None
        if self.evaluation_is_due():
            self._evaluation = self._next_task_id("evaluator_task")
            self._evaluated_at = time.monotonic()
            return self._evaluation_task(self._evaluation, self._policy_id, self._buffer_id)
        task_id = self._take_room(self.collector_task_space, "collector_task")
        return None if task_id is None else self._collecting_task(task_id, self._policy_id, self._buffer_id)

    @override
    def evaluation_is_due(self) -> bool:
        interval = self.config.system.coordinator.commander.eval_interval
        if interval is None or self._evaluation is not None or self._policy_version <= 0:
            return False
        return time.monotonic() - self._evaluated_at >= interval

    @override
    def needed_policies(self) -> set[str]:
        return set() if self._policy_id is None else {self._policy_id}

    @override
    def wants_snapshot(self, policy_id: str, policy_version: int) -> str | None:
        if policy_id == self._policy_id:
            self._policy_version = max(self._policy_version, policy_version)
        return None

    # ------------------------------------------------------------------ ends of tasks

    @override
    def finish_collector_task(self, task_id: str, info: Mapping[str, Any]) -> bool:
        if task_id != self._evaluation:
            return super().finish_collector_task(task_id, info)
        self._evaluation = None
        if not info.get("collector_done", False):  # it was closed before its end
            self._evaluate_soon()
            return False
        logger.info(
            "evaluation of policy version %s: mean return %.3f, standard deviation %.3f, %d episodes",
            *(info["train_iter"], info["reward_mean"], info["reward_std"], info["real_episode_count"]),
        )
        return self._is_over(info)

    @override
    def notify_fail_collector_task(self, task_id: str) -> None:
        if task_id == self._evaluation:
            self._evaluation = None
            self._evaluate_soon(PAUSE)
        super().notify_fail_collector_task(task_id)

    # ------------------------------------------------------------------ state

    @override
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "policy_id": self._policy_id,
            "buffer_id": self._buffer_id,
            "newest_version": self._policy_version,
            "evaluation": self._evaluation,
            "since_evaluation": time.monotonic() - self._evaluated_at,
        }

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._policy_id, self._buffer_id = state["policy_id"], state["buffer_id"]
        self._policy_version = state["newest_version"]
        self._evaluation = state["evaluation"]
        self._evaluated_at = time.monotonic() - state["since_evaluation"]

    # ------------------------------------------------------------------ for subclasses

    def _collecting_task(self, task_id: str, policy_id: str, buffer_id: str) -> TaskInfo:
        return self._collector_task(task_id, buffer_id, [policy_id], [True])

    def _evaluation_task(self, task_id: str, policy_id: str, buffer_id: str) -> TaskInfo:
        return self._collector_task(task_id, buffer_id, [policy_id], [True], evaluates=True)

    def _is_over(self, info: Mapping[str, Any]) -> bool:
        """Return whether an evaluation ends the run."""
        main, stop_value = self.config.main, self.config.main.env.stop_value
        is_return = Monitor.of(main.monitor) == Monitor()  # collectors report no other metric
        reached = stop_value is not None and is_return and info["reward_mean"] >= stop_value
        return bool(reached and info["train_iter"] > 0)

    def _evaluate_soon(self, pause: float = 0.0) -> None:
        """Repeat an unfinished evaluation, at most ``pause`` seconds from now."""
        interval = self.config.system.coordinator.commander.eval_interval or 0.0
        self._evaluated_at = time.monotonic() - max(0.0, interval - pause)


@PARALLEL_COMMANDER_REGISTRY.register("naive")
class NaiveParallelCommander(BaseParallelCommander):
    """A commander for tests: it returns tasks while the limit on concurrent tasks allows it, and makes no evaluations.

    Its policy and buffer have constant ids.
    """

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
