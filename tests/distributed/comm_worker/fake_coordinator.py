"""A coordinator for tests of workers: it assigns given tasks and records all messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lightning_ding.distributed.in_process import InProcessChannel, MemoryStore
from lightning_ding.distributed.transport import Refusal


class FakeCoordinator:
    """Shuts the run down when its tasks are over.

    Args:
        tasks: ``task_info`` of each.
        num_messages: Number of data messages after which a task is closed.
        lease: Seconds.
    """

    def __init__(self, tasks: Sequence[dict[str, Any]] = (), num_messages: int = 3, lease: float = 15.0) -> None:
        self.store = MemoryStore()
        self.tasks = list(tasks)
        self.num_messages = num_messages
        self.lease = lease
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.policies: dict[str, tuple[Any, int, int]] = {}  # handle, serial and version
        self.answers: dict[str, Callable[[dict[str, Any]], Any]] = {}  # None is the usual one
        self.setting: dict[str, Any] = {"told": 7}
        self.random = False
        self.owner: int | None = None
        self.run = 0
        self.is_closing = False
        self.asks_for_weights = False  # whether answers only contain the numbers of newer weights
        self._lock = threading.RLock()

    def channel(self) -> InProcessChannel:
        return InProcessChannel(self.handle, self.store)

    def publish(self, policy_id: str, version: int, value: float | None = None) -> None:
        value = float(version) if value is None else value
        model = {"first": torch.full((1,), value), "second": torch.full((1,), value)}
        with self._lock:
            serial = self.policies[policy_id][1] + 1 if policy_id in self.policies else 0
            self.policies[policy_id] = (self.store.put("policy", {"model": model}), serial, version)

    def said(self, name: str) -> list[dict[str, Any]]:
        with self._lock:
            return [message for sent, message in self.messages if sent == name]

    def blocks(self) -> list[dict[str, Any]]:
        handles = [message["data_id"] for message in self.said("collector_data_task")]
        return [self.store.get(handle).tensors for handle in handles if handle is not None]

    def handle(self, name: str, message: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.messages.append((name, message))
            if name in self.answers and (answer := self.answers[name](message)) is not None:
                return answer  # type: ignore[no-any-return]
            return getattr(self, f"_{name}", lambda _: {})(message)

    def _connect(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"lease": self.lease}

    def _heartbeat(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"close": self.is_closing}

    def _task(self, message: dict[str, Any]) -> dict[str, Any]:
        if not self.tasks:
            return {"task": None, "shutdown": True}
        self.run += 1
        info = self.tasks.pop(0)
        task = {"name": "collector_start_task", "task_id": info["task_id"], "run_id": self.run, "task_info": info}
        return {"task": task, "shutdown": False}

    def _get_policy(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["policy_id"] not in self.policies:
            raise Refusal(404, "no such policy")
        handle, serial, version = self.policies[message["policy_id"]]
        return {"handle": handle if serial > message["serial"] else None, "serial": serial, "policy_version": version}

    def _collector_data_task(self, message: dict[str, Any]) -> dict[str, Any]:
        with_weights = {} if self.asks_for_weights else self._newer(message.get("serials", {}))
        return self.data_answer(close=message["seq"] >= self.num_messages, **with_weights)

    def _newer(self, serials: dict[str, int]) -> dict[str, Any]:
        newer = {name: self.policies[name] for name, serial in serials.items() if self.policies[name][1] > serial}
        weights, versions = ({name: one[part] for name, one in newer.items()} for part in (0, 2))
        return {"weights": weights, "policy_version": versions}

    def data_answer(self, **changes: Any) -> dict[str, Any]:
        serials = {policy_id: serial for policy_id, (_, serial, _) in self.policies.items()}
        answer = {"accepted": True, "duplicate": False, "wait": 0.0, "close": False, "policy": serials}
        return {**answer, "collect_setting": self.setting, "random": self.random, **changes}
