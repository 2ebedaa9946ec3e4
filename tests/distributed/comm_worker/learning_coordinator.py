"""A coordinator that sends learning tasks and artificial rounds, and records the messages of the learner."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning_ding.distributed.comm_worker.learner import CommLearner
from lightning_ding.distributed.in_process import InProcessChannel, MemoryStore
from lightning_ding.distributed.transport import Channel, Refusal, Store
from tests.datamodules.remote_source import minibatches

SMALL: dict[str, Any] = {
    "type": "dqn",
    "model": {"encoder_hidden_size_list": [16], "dueling": False},
    "learn": {"update_per_collect": 2, "batch_size": 8},
    "eval": {"evaluator": {"n_episode": 2, "eval_freq": 20}},
    "other": {"replay_buffer": {"replay_buffer_size": 500}},
}
TRAINER = {"accelerator": "cpu", "logger": False}


class Learner(CommLearner):
    """A comm learner that is given its channel."""

    def _make_channel(self) -> Channel:
        raise AssertionError("the channel is given")


class LearningCoordinator:
    """Answers a learner's messages, and shuts the run down after the last task.

    Args:
        folder: ``exp_name`` of the run.
        rounds: Number of rounds to send before a task ends.
        policy: Policy config of the task.
        learner: Learner config of the task.
        tasks: Learning tasks, one after the other; the later ones say ``resume``.
        store: Store for the tensors of the rounds.
    """

    def __init__(
        self,
        folder: Path,
        rounds: int,
        policy: Mapping[str, Any] = SMALL,
        learner: Mapping[str, Any] | None = None,
        tasks: int = 1,
        store: Store | None = None,
    ) -> None:
        self.rounds = rounds
        self.tasks = tasks
        self.store = store or MemoryStore()
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.before: Callable[[str, dict[str, Any]], None] = lambda name, message: None
        self.started = 0
        self.asked = 0
        self.ends = True
        self.first_round = 0
        self.prioritised = False
        self.published: dict[str, Any] = {}
        self._lock = threading.Lock()
        self.task_info: dict[str, Any] = {
            "task_id": "t",
            "policy_id": "main",
            "buffer_id": "b",
            "policy": dict(policy),
            "learner_cfg": {"trainer": TRAINER, **(learner or {})},
            "main": {"exp_name": str(folder), "env": {"n_evaluator_episode": 2}, "policy": dict(policy)},
            "resume": False,
        }

    @property
    def channel(self) -> InProcessChannel:
        """A channel to it."""
        return InProcessChannel(self.handle, self.store)

    def said(self, name: str) -> list[dict[str, Any]]:
        """Return the messages of a name."""
        return [message for one, message in self.messages if one == name]

    def handle(self, name: str, message: dict[str, Any]) -> dict[str, Any]:
        """Answer a message."""
        with self._lock:
            if name != "heartbeat":
                self.messages.append((name, message))
            self.before(name, message)
            answer: dict[str, Any] = getattr(self, f"_{name}", lambda message: {})(message)
            return answer

    def _connect(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"lease": 15.0}

    def _heartbeat(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"close": False}

    def _task(self, message: dict[str, Any]) -> dict[str, Any]:
        if self.started == self.tasks:
            return {"task": None, "shutdown": True}
        self.started += 1
        info = {**self.task_info, "resume": self.started > 1 or self.task_info["resume"]}
        task = {"name": "learner_start_task", "task_id": "t", "run_id": f"r{self.started}", "task_info": info}
        return {"task": task, "shutdown": False}

    def _learner_get_data_task(self, message: dict[str, Any]) -> dict[str, Any]:
        if message.get("run_id") != f"r{self.started}":
            raise Refusal(409, "another run")
        number, self.asked = self.asked, self.asked + 1
        progress = {"env_step": 100 + 10 * self.asked, "episode": self.asked, "sample": 50 + self.asked}
        episodes = {"returns": [float(number)], "lengths": [number + 1], "dropped": 0}
        told = {"progress": progress, "episodes": episodes, "stats": {"policy_lag": 1.0}}
        if number >= self.rounds:
            return {"data": None, "wait": 0.05, "stop": self.ends, **told}
        data = minibatches(self.first_round + number, message["num_batches"], self.prioritised)
        return {"data": self.store.put("batch", data), "wait": 0.0, "stop": False, **told}

    def _learner_send_policy(self, message: dict[str, Any]) -> dict[str, Any]:
        self.published = self.store.get(message["data_id"]).tensors
        return {"serial": len(self.said("learner_send_policy"))}
