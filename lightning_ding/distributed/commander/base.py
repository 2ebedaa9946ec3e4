"""What all commanders have in common: room for tasks, what a task says, and the settings for collecting."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from lightning_ding.config import ConfigLike, require, resolve, to_dict
from lightning_ding.distributed.commander.task_space import TaskSpace
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.policy.command import CommandModePolicy
from lightning_ding.policy.factory import create_policy, get_policy_cls

TaskInfo = dict[str, Any]


class BaseParallelCommander(ABC):
    """Says what is to be done next; the coordinator hands it out, and tells the commander how it went.

    One thread at a time may call it. Evaluations take no task space.

    Args:
        cfg: The whole run's config.

    Raises:
        ValueError: If the config does not fit the policy.
        KeyError: If the policy is not registered.
    """

    def __init__(self, cfg: ConfigLike[ParallelConfig] = None) -> None:
        self.config: ParallelConfig = resolve(ParallelConfig, cfg)
        commander = self.config.system.coordinator.commander
        space = commander.collector_task_space
        self.collector_task_space = TaskSpace(self.config.system.collector.num if space is None else space)
        self.learner_task_space = TaskSpace(commander.learner_task_space)
        policy = self.config.main.policy
        policy_class = get_policy_cls(policy)
        plain = {name: value for name, value in policy.items() if name not in ("type", "import_names", "cfg_type")}
        self._policy_config: Any = resolve(policy_class.config_class, plain)
        commands = issubclass(policy_class, CommandModePolicy)
        self._policy: Any = create_policy(policy, enable_field=["command"]) if commands else None
        if self._policy is not None:
            self._policy.progress.budget = self.config.main.max_env_step
        self._n_sample = self._find_n_sample()
        self._learner_step = 0
        self._task_number = 0

    # ------------------------------------------------------------------ to implement

    @abstractmethod
    def get_collector_task(self) -> TaskInfo | None:
        """Return the next task of a collector, which is then under way; None if there is none now."""

    @abstractmethod
    def get_learner_task(self) -> TaskInfo | None:
        """Return the next task of a learner, which is then under way; None if there is none now."""

    @abstractmethod
    def needed_policies(self) -> set[str]:
        """Return whose weights somebody may still ask for."""

    # ------------------------------------------------------------------ what becomes of tasks

    def finish_collector_task(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Note that a collecting or evaluating task is over.

        Args:
            task_id: Of the task; one that is not under way is passed over.
            info: The finish info of the collector.

        Returns:
            Whether the run is over with it.
        """
        self.collector_task_space.release(task_id)
        return False

    def finish_learner_task(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Note that a learning task is over, or let go before its end (``learner_done`` false).

        Returns:
            Whether the run is over with it.
        """
        self.update_learner_info(task_id, info)
        self.learner_task_space.release(task_id)
        return self.judge_learner_finish(task_id, info)

    def notify_fail_collector_task(self, task_id: str) -> None:
        """Note that a collecting or evaluating task failed, and will not be tried again as it is."""
        self.collector_task_space.release(task_id)

    def notify_fail_learner_task(self, task_id: str) -> None:
        """Note that a learning task failed; the next one goes on with what it made."""
        self.learner_task_space.release(task_id)

    def update_learner_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        """Note how far a learner is."""
        self._learner_step = max(self._learner_step, int(info.get("learner_step", 0)))

    def judge_collector_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Return whether a collector's info says that its task is over."""
        return bool(info.get("collector_done", False))

    def judge_learner_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Return whether a learner's info says that its task is over."""
        return bool(info.get("learner_done", False))

    # ------------------------------------------------------------------ settings

    def collect_setting(self, env_step: int) -> dict[str, Any]:
        """Return the arguments of the policy's forward in collecting, such as ``eps``.

        Args:
            env_step: Env steps of all collectors together.
        """
        if self._policy is None:
            return {}
        info = {"envstep": env_step, "learner_step": self._learner_step}
        return dict(self._policy.command_mode.get_setting_collect(info))

    def increase_collector_task_space(self, n: int = 1) -> int:
        """Let there be ``n`` >= 1 more collecting tasks at a time, and return how many."""
        require(n >= 1, "n", ">= 1", n)
        return self.collector_task_space.change(n)

    def decrease_collector_task_space(self, n: int = 1) -> int:
        """Let there be ``n`` >= 1 fewer collecting tasks at a time, down to none, and return how many."""
        require(n >= 1, "n", ">= 1", n)
        return self.collector_task_space.change(-n)

    def evaluation_is_due(self) -> bool:
        """Return whether the next collector's task would be an evaluation."""
        return False

    def wants_snapshot(self, policy_id: str, version: int) -> str | None:
        """Note weights that were published, and return under which other id they are to be kept for ever, if at all."""
        return None

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides how it goes on, as builtins."""
        return {
            "collector_task_space": self.collector_task_space.state_dict(),
            "learner_task_space": self.learner_task_space.state_dict(),
            "learner_step": self._learner_step,
            "task_number": self._task_number,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what ``state_dict`` returned."""
        self.collector_task_space.load_state_dict(state["collector_task_space"])
        self.learner_task_space.load_state_dict(state["learner_task_space"])
        self._learner_step = state["learner_step"]
        self._task_number = state["task_number"]

    # ------------------------------------------------------------------ what a task says

    def _next_task_id(self, kind: str) -> str:
        self._task_number += 1
        return f"{kind}_{self._task_number}"

    def _collector_task(
        self, task_id: str, buffer_id: str, paths: list[str], flags: list[bool], n_episode: int | None, evaluates: bool
    ) -> TaskInfo:
        """Return a task of a collector; it is the ``task_number``-th task, and has a seed of its own."""
        main, collector = self.config.main, self.config.system.collector
        seed = np.random.SeedSequence([main.seed, self._task_number]).generate_state(1).tolist()[0]
        collector_cfg = {
            "type": collector.type,
            "import_names": list(collector.import_names),
            "eval_flag": evaluates,
            "policy": dict(main.policy),
            "env": to_dict(main.env),
            "n_sample": self._n_sample,
            "n_episode": n_episode,
            "policy_update_path": paths,
            "policy_update_flag": flags,
            "collect_setting": {} if evaluates else self.collect_setting(0),
            "update_policy_second": collector.update_policy_second,
            "print_freq": collector.print_freq,
            "env_fault": collector.env_fault,
            "seed": seed,
            "exp_name": main.exp_name,
        }
        return {"task_id": task_id, "buffer_id": buffer_id, "collector_cfg": collector_cfg, "opponent": None}

    def _learner_task(self, task_id: str, policy_id: str, buffer_id: str, resume: bool) -> TaskInfo:
        main = self.config.main
        other = getattr(self._policy_config, "other", None)
        buffer = getattr(other, "replay_buffer", None)
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
        asked = self.config.system.collector.n_sample
        if asked is None:
            asked = getattr(self._policy_config.collect, "n_sample", None)
        allowed = "set, as the policy's collect.n_sample is not"
        require(asked is not None, "system.collector.n_sample", allowed, asked)
        return int(asked or 0)
