"""Comm workers as a user of DI-engine writes them: exactly its methods, and a way of the data of their own."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import torch

from lightning_ding.di_engine.comm_learner import BaseCommLearner
from lightning_ding.di_engine.comm_workers import BaseCommCollector
from lightning_ding.distributed import SendLearnInfoHook, SendPolicyHook
from lightning_ding.registry import COMM_COLLECTOR_REGISTRY


class Exchange:
    """Weights, transitions and metadata, as a broker of messages would keep them."""

    def __init__(self) -> None:
        self.policies: dict[str, dict[str, Any]] = {}
        self.data: dict[str, dict[str, Any]] = {}
        self.metadata: deque[dict[str, Any]] = deque(maxlen=200)
        self.infos: list[dict[str, Any]] = []
        self.records: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.life: list[str] = []
        self.changed = threading.Condition()


class OwnCollector(BaseCommCollector):
    exchange: Exchange

    def __init__(self, cfg: Any, channel: Any = None) -> None:
        super().__init__(cfg, channel)
        self.uid_at_first = self.collector_uid

    def get_policy_update_info(self, path: str) -> Any:  # type: ignore[override]
        self.exchange.asked.append(path)
        return self.exchange.policies.get(path)

    def send_stepdata(self, path: str, stepdata: Any) -> None:  # type: ignore[override]
        self.exchange.data[path] = stepdata

    def send_metadata(self, metadata: Any) -> None:  # type: ignore[override]
        with self.exchange.changed:
            is_data = {"data_id", "policy_iter"} <= metadata.keys()
            (self.exchange.metadata if is_data else self.exchange.records).append(metadata)
            self.exchange.changed.notify_all()

    def start(self) -> None:  # type: ignore[override]
        super().start()
        self.exchange.life.append("collector started")

    def close(self) -> None:
        super().close()
        self.exchange.life.append("collector closed")


class OwnLearner(BaseCommLearner):
    exchange: Exchange

    def send_policy(self, state_dict: dict[str, Any]) -> None:  # type: ignore[override]
        copy = {name: tensor.clone() for name, tensor in state_dict["model"].items()}
        self.exchange.policies[self._task.policy_id] = {"model": copy, "iter": state_dict["iter"]}

    def get_data(self, batch_size: int) -> list[Any]:
        with self.exchange.changed:
            assert self.exchange.changed.wait_for(lambda: len(self.exchange.metadata) >= batch_size, 60)
            order = torch.randperm(len(self.exchange.metadata))[:batch_size].tolist()
            chosen = [self.exchange.metadata[number] for number in order]
        return [lambda one=one: {**self.exchange.data[one["data_id"]], **one} for one in chosen]

    def send_learn_info(self, learn_info: dict[str, Any]) -> None:  # type: ignore[override]
        self.exchange.infos.append(learn_info)

    def start(self) -> None:  # type: ignore[override]
        super().start()
        self.exchange.life.append("learner started")

    def close(self) -> None:
        super().close()
        self.exchange.life.append("learner closed")


class HookedLearner(OwnLearner):
    @property
    def hooks4call(self) -> list[Any]:
        return [
            SendPolicyHook("send_policy", 100, position="before_run", ext_args={}),
            SendPolicyHook("send_policy", 100, position="after_iter", ext_args={"send_policy_freq": 1}),
            SendLearnInfoHook("send_learn_info", 100, position="after_iter", ext_args={"freq": 10}),
            SendLearnInfoHook("send_learn_info", 100, position="after_run", ext_args={"freq": 1}),
        ]


@COMM_COLLECTOR_REGISTRY.register("own_collector")
class RegisteredCollector(BaseCommCollector):
    """A collector that a config names."""
