"""The interface of commanders, which name the next task: contents of a task, and settings for collecting."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from lightning_ding.config import ConfigLike, require, to_dict
from lightning_ding.distributed.config import CommanderConfig, ParallelConfig, read_run
from lightning_ding.distributed.coordinator.settings import number_of_ranks, rollout_size
from lightning_ding.distributed.transport import Role
from lightning_ding.policy.factory import create_policy
from lightning_ding.registry import PARALLEL_COMMANDER_REGISTRY
from lightning_ding.utils.foreign import foreign
from lightning_ding.worker.base import get_class

TaskInfo = dict[str, Any]


class BaseParallelCommander(ABC):
    """Names the next tasks and the end of a run; the coordinator counts tasks and assigns them to workers.

    Must not be called from several threads at once.

    Args:
        cfg: Config of the whole run, also in a format that :func:`read_run` translates.

    Raises:
        ValueError: If the config does not fit the policy.
        KeyError: If the policy is not registered.
    """

    def __init__(self, cfg: ConfigLike[ParallelConfig] = None) -> None:
        self.config: ParallelConfig = read_run(cfg)
        self._policy: Any = create_policy(self.config.main.policy, enable_field=["command"])
        self._policy.progress.budget = self.config.main.max_env_step
        self._n_sample = self._find_n_sample()
        self._train_iter = 0
        self._task_number = 0

    # ------------------------------------------------------------------ for subclasses

    @abstractmethod
    def next_task(self, role: Role, tasks: Collection[TaskInfo], has_room: bool) -> TaskInfo | None:
        """Return the next task of a role; None if there is none now.

        Args:
            role: Role of the workers that it is for.
            tasks: The tasks of this role that have not ended.
            has_room: Whether there are fewer of them than allowed, evaluations aside, which do not count.
        """

    @abstractmethod
    def needed_policies(self, tasks: Collection[TaskInfo]) -> set[str]:
        """Return the ids of the policies whose weights may still be needed.

        Args:
            tasks: The tasks of collectors that have not ended.
        """

    def finish(self, role: Role, task: TaskInfo, info: Mapping[str, Any]) -> bool:
        """Record the end of a task, and return whether it ends the run.

        Args:
            role: Role of the worker.
            task: The task.
            info: Finish info of the worker.
        """
        return role == "learner"

    def fail(self, role: Role, task: TaskInfo) -> None:
        """Record the loss of a task, which is not repeated unchanged."""
        return

    def note_learner(self, info: Mapping[str, Any]) -> None:
        """Record the progress of a learner."""
        self._train_iter = max(self._train_iter, int(info.get("learner_step", 0)))

    def wants_snapshot(self, policy_id: str, policy_version: int) -> str | None:
        """Record published weights, and return the id under which to keep them as a snapshot; None for no snapshot."""
        return None

    def collect_setting(self, env_step: int) -> dict[str, Any]:
        """Return the arguments of the policy's forward for collecting, such as ``eps``.

        Args:
            env_step: Env steps of all collectors together.
        """
        info = {"envstep": env_step, "learner_step": self._train_iter}
        return dict(self._policy.command_mode.get_setting_collect(info))

    def __getattr__(self, name: str) -> Any:
        """Return a method that counts tasks itself, see :mod:`lightning_ding.di_engine.parallel_commanders`."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return foreign("parallel_commanders").method_of(self, name)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return everything that later decisions depend on, as builtins."""
        return {"learner_step": self._train_iter, "task_number": self._task_number}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""
        self._train_iter = state["learner_step"]
        self._task_number = state["task_number"]

    def reopen(self) -> None:
        """Forget what ended the run; called when a finished run continues, after ``load_state_dict``."""
        return

    # ------------------------------------------------------------------ contents of a task

    def _next_task_id(self, kind: str) -> str:
        self._task_number += 1
        return f"{kind}_{self._task_number}"

    def _collector_task(
        self, buffer_id: str, paths: list[str], flags: list[bool], n_episode: int | None = None, evaluates: bool = False
    ) -> TaskInfo:
        """Return a task for a collector, the main player's path first; its seed depends on the number of the task."""
        task_id = self._next_task_id("evaluator_task" if evaluates else "collector_task")
        main, collector = self.config.main, self.config.system.collector
        seed = np.random.SeedSequence([main.seed, self._task_number]).generate_state(1).tolist()[0]
        players = sum(flags) if self._policy.on_policy else 1  # which deliver a part of a rollout together
        collector_cfg = {
            "type": collector.type,
            "import_names": list(collector.import_names),
            "eval_flag": evaluates,
            "policy": dict(main.policy),
            "env": to_dict(main.env),
            "n_sample": math.ceil(self._n_sample / players),
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

    def _learner_task(self, policy_id: str, buffer_id: str, resume: bool) -> TaskInfo:
        main, task_id = self.config.main, self._next_task_id("learner_task")
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
            size, _ = rollout_size(self._policy, number_of_ranks(self.config))
            part = math.ceil(size / max(1, spaces_of(self.config)["collector"]))
            return self.config.system.collector.n_sample or part
        allowed = "set, as the policy's collect.n_sample is not"
        require(asked is not None, "system.collector.n_sample", allowed, asked)
        return int(asked)


def evaluates(task: TaskInfo) -> bool:
    """Return whether a task is an evaluation by a collector, which sends no data."""
    return bool(task.get("collector_cfg", {}).get("eval_flag"))


def spaces_of(config: ParallelConfig) -> dict[Role, int]:
    """Return the number of concurrent tasks of each role in a config; evaluations do not count."""
    commander = config.system.coordinator.commander
    collectors = commander.collector_task_space
    number = config.system.collector.number if collectors is None else collectors
    return {"collector": number, "learner": commander.learner_task_space}


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
