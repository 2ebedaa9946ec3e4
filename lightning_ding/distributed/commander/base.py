"""The interface of commanders: limits on tasks, contents of a task, and settings for collecting."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from lightning_ding.config import ConfigLike, require, to_dict
from lightning_ding.distributed.config import CommanderConfig, ParallelConfig, read_run
from lightning_ding.distributed.coordinator.settings import rollout_size
from lightning_ding.policy.factory import create_policy
from lightning_ding.registry import PARALLEL_COMMANDER_REGISTRY
from lightning_ding.worker.base import get_class

TaskInfo = dict[str, Any]


class BaseParallelCommander(ABC):
    """Decides on the next tasks; the coordinator assigns them to workers, and reports their ends to the commander.

    Must not be called from several threads at once. Evaluations do not count as concurrent tasks.

    Args:
        cfg: Config of the whole run, also in a format that :func:`read_run` translates.

    Raises:
        ValueError: If the config does not fit the policy.
        KeyError: If the policy is not registered.
    """

    def __init__(self, cfg: ConfigLike[ParallelConfig] = None) -> None:
        self.config: ParallelConfig = read_run(cfg)
        commander = self.config.system.coordinator.commander
        space = commander.collector_task_space
        self.collector_task_space = TaskSpace(self.config.system.collector.number if space is None else space)
        self.learner_task_space = TaskSpace(commander.learner_task_space)
        self._policy: Any = create_policy(self.config.main.policy, enable_field=["command"])
        self._policy.progress.budget = self.config.main.max_env_step
        self._n_sample = self._find_n_sample()
        self._train_iter = 0
        self._task_number = 0

    # ------------------------------------------------------------------ for subclasses

    @abstractmethod
    def get_collector_task(self) -> TaskInfo | None:
        """Return the next task for a collector and count it as running; None if there is none now."""

    @abstractmethod
    def get_learner_task(self) -> TaskInfo | None:
        """Return the next task for a learner and count it as running; None if there is none now."""

    @abstractmethod
    def needed_policies(self) -> set[str]:
        """Return the ids of the policies whose weights may still be needed."""

    # ------------------------------------------------------------------ ends of tasks

    def finish_collector_task(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Record the end of a collecting or evaluating task.

        Args:
            task_id: Id of the task; ignored if it is not running.
            info: Finish info of the collector.

        Returns:
            Whether this ends the run.
        """
        self.collector_task_space.release(task_id)
        return False

    def finish_learner_task(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Record the end of a learning task, or its release before the end (``learner_done`` false).

        Returns:
            Whether this ends the run.
        """
        self.update_learner_info(task_id, info)
        self.learner_task_space.release(task_id)
        return self.judge_learner_finish(task_id, info)

    def notify_fail_collector_task(self, task_id: str) -> None:
        """Record the failure of a collecting or evaluating task, which is not repeated unchanged."""
        self.collector_task_space.release(task_id)

    def notify_fail_learner_task(self, task_id: str) -> None:
        """Record the failure of a learning task; the next one continues from its checkpoint."""
        self.learner_task_space.release(task_id)

    def update_learner_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        """Record the progress of a learner."""
        self._train_iter = max(self._train_iter, int(info.get("learner_step", 0)))

    def judge_collector_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Return whether the finish info of a collector marks its task as done."""
        return bool(info.get("collector_done", False))

    def judge_learner_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Return whether the info of a learner marks its task as done."""
        return bool(info.get("learner_done", False))

    # ------------------------------------------------------------------ settings

    def collect_setting(self, env_step: int) -> dict[str, Any]:
        """Return the arguments of the policy's forward for collecting, such as ``eps``.

        Args:
            env_step: Env steps of all collectors together.
        """
        info = {"envstep": env_step, "learner_step": self._train_iter}
        return dict(self._policy.command_mode.get_setting_collect(info))

    def increase_collector_task_space(self, n: int = 1) -> int:
        """Allow ``n`` >= 1 more concurrent collecting tasks, and return the new number."""
        require(n >= 1, "n", ">= 1", n)
        return self.collector_task_space.change(n)

    def decrease_collector_task_space(self, n: int = 1) -> int:
        """Allow ``n`` >= 1 fewer concurrent collecting tasks, down to 0, and return the new number."""
        require(n >= 1, "n", ">= 1", n)
        return self.collector_task_space.change(-n)

    def evaluation_is_due(self) -> bool:
        """Return whether the next task for a collector is an evaluation."""
        return False

    def wants_snapshot(self, policy_id: str, policy_version: int) -> str | None:
        """Record published weights, and return the id under which to keep them as a snapshot; None for no snapshot."""
        return None

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return everything that later decisions depend on, as builtins."""
        return {
            "collector_task_space": self.collector_task_space.state_dict(),
            "learner_task_space": self.learner_task_space.state_dict(),
            "learner_step": self._train_iter,
            "task_number": self._task_number,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""
        self.collector_task_space.load_state_dict(state["collector_task_space"])
        self.learner_task_space.load_state_dict(state["learner_task_space"])
        self._train_iter = state["learner_step"]
        self._task_number = state["task_number"]

    def reopen(self) -> None:
        """Forget what ended the run; called when a finished run continues, after ``load_state_dict``."""
        return

    # ------------------------------------------------------------------ contents of a task

    def _next_task_id(self, kind: str) -> str:
        self._task_number += 1
        return f"{kind}_{self._task_number}"

    def _take_room(self, space: TaskSpace, kind: str) -> str | None:
        """Return the id of a task that counts as running from now on; None if there is no room for one."""
        if not space.has_room:
            return None
        task_id = self._next_task_id(kind)
        space.take(task_id)
        return task_id

    def _collector_task(
        self,
        task_id: str,
        buffer_id: str,
        paths: list[str],
        flags: list[bool],
        n_episode: int | None = None,
        evaluates: bool = False,
    ) -> TaskInfo:
        """Return a task for a collector, the main player's path first; its seed depends on the number of the task."""
        main, collector = self.config.main, self.config.system.collector
        seed = np.random.SeedSequence([main.seed, self._task_number]).generate_state(1).tolist()[0]
        collector_cfg = {
            "type": collector.type,
            "import_names": list(collector.import_names),
            "eval_flag": evaluates,
            "policy": dict(main.policy),
            "env": to_dict(main.env),
            "n_sample": self._n_sample,
            "n_episode": main.env.n_evaluator_episode if evaluates else n_episode,
            "policy_update_path": paths,
            "policy_update_flag": flags,
            "collect_setting": {} if evaluates else self.collect_setting(0),
            "update_policy_second": collector.update_policy_second,
            "print_freq": collector.print_freq,
            "env_fault": collector.env_fault,
            "seed": seed,
            "exp_name": main.exp_name,
        }
        opponent = paths[1] if len(paths) > 1 else None
        return {"task_id": task_id, "buffer_id": buffer_id, "collector_cfg": collector_cfg, "opponent": opponent}

    def _learner_task(self, task_id: str, policy_id: str, buffer_id: str, resume: bool) -> TaskInfo:
        main = self.config.main
        buffer = None if self._policy.on_policy else self._policy.config.other.replay_buffer
        return {
            "task_id": task_id,
            "policy_id": policy_id,
            "buffer_id": buffer_id,
            "learner_cfg": to_dict(self.config.system.learner),
            "replay_buffer_cfg": {} if buffer is None else to_dict(buffer),
            "policy": dict(main.policy),
            "main": to_dict(main),
            "resume": resume,
        }

    def _find_n_sample(self) -> int:
        asked = self.config.system.collector.n_sample or self._policy.config.collect.n_sample
        if self._policy.on_policy:
            size, _ = rollout_size(self._policy)
            return self.config.system.collector.n_sample or math.ceil(size / max(1, self.collector_task_space.size))
        allowed = "set, as the policy's collect.n_sample is not"
        require(asked is not None, "system.collector.n_sample", allowed, asked)
        return int(asked)


class TaskSpace:
    """The running tasks of one kind, at most ``size`` of them.

    Args:
        size: Maximum number of concurrent tasks, >= 0. If it is reduced, surplus tasks are closed and may end later.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._tasks: dict[str, None] = {}  # a set that keeps its order

    @property
    def has_room(self) -> bool:
        """Whether another task may be added."""
        return len(self._tasks) < self.size

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._tasks

    def take(self, task_id: str) -> None:
        """Add a task."""
        self._tasks[task_id] = None

    def release(self, task_id: str) -> None:
        """Remove a task; do nothing if it is not running, so that its end cannot count twice."""
        self._tasks.pop(task_id, None)

    def change(self, amount: int) -> int:
        """Change the size by an amount, down to 0, and return the new size."""
        self.size = max(0, self.size + amount)
        return self.size

    def state_dict(self) -> dict[str, Any]:
        """Return the size and the tasks as builtins."""
        return {"size": self.size, "tasks": list(self._tasks)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""
        self.size = int(state["size"])
        self._tasks = dict.fromkeys(state["tasks"])


def create_parallel_commander(cfg: ConfigLike[ParallelConfig] = None) -> BaseParallelCommander:
    """Return the commander that ``system.coordinator.commander.type`` of a whole run's config names.

    Raises:
        KeyError: If the type is not registered.
        ValueError: If the config does not fit it.
    """
    config = read_run(cfg)
    return get_parallel_commander_cls(config.system.coordinator.commander)(config)


def get_parallel_commander_cls(cfg: ConfigLike[CommanderConfig] | Any = None) -> type[BaseParallelCommander]:
    """Return the class of the commander that a commander section describes.

    Raises:
        KeyError: If the type is not registered.
    """
    found: type[BaseParallelCommander] = get_class(PARALLEL_COMMANDER_REGISTRY, cfg, default_type="solo")
    return found
