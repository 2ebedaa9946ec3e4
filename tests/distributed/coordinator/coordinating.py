"""A coordinator without threads, a manual clock, and scripted workers."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import torch

from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.in_process import InProcessChannel, MemoryStore
from lightning_ding.distributed.messages import version
from lightning_ding.distributed.transport import Store

POLICY = {
    "type": "dqn",
    "random_collect_size": 0,
    "learn": {"batch_size": 4, "update_per_collect": 2},
    "collect": {"n_sample": 4},
}
"""Four transitions in each message and rounds of eight: two sampled transitions for each collected one."""


def config(folder: Path, policy: dict[str, Any] | None = None, main: Any = None, **coordinator: Any) -> dict[str, Any]:
    commander = {"eval_interval": None, **coordinator.pop("commander", {})}
    return {
        "main": {"exp_name": str(folder), "policy": POLICY | (policy or {}), **(main or {})},
        "system": {"coordinator": {"tolerance": 1000.0, **coordinator, "commander": commander}},
    }


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Run:
    """A coordinator that can be killed and made again at any time."""

    def __init__(self, cfg: dict[str, Any], store: Store | None = None) -> None:
        self.cfg = cfg
        self.store: Any = store or MemoryStore()
        self.clock = Clock()
        self.coordinator = Coordinator(cfg, self.store, clock=self.clock)
        self.coordinator.sweep()

    def restart(self) -> None:
        """Forget the coordinator, as a kill would, and make another one."""
        self.coordinator.run.database.close()  # a killed process holds no file
        self.coordinator = Coordinator(self.cfg, self.store, resume=True, clock=self.clock)
        self.coordinator.sweep()

    @property
    def entries(self) -> dict[int, dict[str, Any]]:
        """The entries of the journal by their numbers."""
        return dict(self.coordinator.run.database.read(f"entry of {self.replay.buffer_id}"))

    def change_record(self, kind: str, value: str) -> None:
        """Replace the values of all records of a kind, without their checksums, as a fault of the disk would."""
        database = self.coordinator.run.database
        database._connected().execute("UPDATE records SET value = ? WHERE kind = ?", (value, kind))

    def elapse(self, seconds: float) -> None:
        """Let time go by, with the coordinator looking after leases all along."""
        steps = math.ceil(seconds)
        for _ in range(steps):
            self.clock.now += seconds / steps
            self.coordinator.sweep()

    @property
    def replay(self) -> Any:
        return next(iter(self.coordinator.run.replays.values()))

    @property
    def counts(self) -> Any:
        return self.replay.counts

    def rows(self) -> dict[str, Any]:
        """Return the columns of the buffer."""
        storage = self.replay.buffer._storage
        return {name: column[: storage.count].tolist() for name, column in storage.columns.items()}


class Worker:
    """One end of a channel."""

    _numbers = itertools.count()

    def __init__(self, run: Run, role: str, name: str | None = None) -> None:
        self.run = run
        self.name = name or f"{role}{next(self._numbers)}"
        self.role = role
        self.task: dict[str, Any] = {}
        self.seq = 0
        self.connect()

    def call(self, message: str, **said: Any) -> dict[str, Any]:
        channel = InProcessChannel(self.run.coordinator.handle, self.run.store)
        about: dict[str, Any] = {name: self.task[name] for name in ("task_id", "run_id") if name in self.task}
        return channel.call(message, {"worker_id": self.name, **about, **said})

    def connect(self) -> dict[str, Any]:
        said = {"role": self.role, "version": version(), "resource": {"cpu": 1, "gpu": 0}}
        return self.call("connect", **said)

    def take(self) -> dict[str, Any]:
        """Ask for a task and keep it."""
        self.task, self.seq = {}, 0
        answer = self.call("task")
        self.task = answer["task"] or {}
        return answer

    def info(self) -> dict[str, Any]:
        return dict(self.task["task_info"])

    # ------------------------------------------------------------------ collectors

    def send(
        self, rows: dict[str, Any] | None, seq: int | None = None, serials: Any = None, **metadata: Any
    ) -> dict[str, Any]:
        """Send transitions as the next message of the run."""
        handle = None if rows is None else self.run.store.put("data", rows)
        said = {"env_step": 0 if rows is None else 4, "returns": [], "lengths": [], "dropped_episodes": [], **metadata}
        about = {"seq": self.seq if seq is None else seq, "serials": {} if serials is None else serials}
        answer = self.call("collector_data_task", **about, data_id=handle, metadata=said)
        self.seq += answer["accepted"] and seq is None
        return answer

    # ------------------------------------------------------------------ learners

    def get(self, batch_size: int = 4, num_batches: int = 2, train_iter: int = 0, **options: Any) -> dict[str, Any]:
        said = {"batch_size": batch_size, "num_batches": num_batches, "cur_learner_iter": train_iter, "rank": 0}
        return self.call("learner_get_data_task", **said, options=options)

    def publish(self, version: int) -> int:
        handle = self.run.store.put("policy", {"weight": torch.full((1,), float(version))})
        said = {"policy_id": self.info()["policy_id"], "policy_version": version, "data_id": handle}
        return int(self.call("learner_send_policy", **said)["serial"])


def transitions(size: int = 4, first: int = 0, version: int = 0, episode: int = 0, **changed: Any) -> dict[str, Any]:
    """Return transitions whose observations count on from ``first``."""
    number = torch.arange(first, first + size)
    made = {
        "obs": torch.stack([number, -number], 1).float(),
        "next_obs": torch.stack([number + 1, -number - 1], 1).float(),
        "action": torch.zeros(size, dtype=torch.int64),
        "reward": number.float(),
        "terminated": torch.zeros(size, dtype=torch.bool),
        "truncated": torch.zeros(size, dtype=torch.bool),
        "env_id": torch.arange(size) % 4,
        "episode_id": torch.full((size,), episode),
        "policy_version": torch.full((size,), version),
    }
    return {name: column for name, column in (made | changed).items() if column is not None}


def announced(**changed: Any) -> dict[str, Any]:
    """Return the columns of ``transitions`` as a learner announces them; None leaves a column out."""
    forms: dict[str, Any] = {"obs": ("float32", [2]), "next_obs": ("float32", [2]), "action": ("int64", [], [0], [1])}
    forms |= {"reward": ("float32", []), "terminated": ("bool", []), "truncated": ("bool", []), **changed}
    names = ("type", "shape", "least", "largest")
    columns = {name: dict(zip(names, (*form, [], [])[:4], strict=True)) for name, form in forms.items() if form}
    return {"columns": columns, "is_whole": True}


def both(run: Run) -> tuple[Worker, Worker]:
    """Return a learner and a collector, each with its task."""
    learner, collector = Worker(run, "learner"), Worker(run, "collector")
    learner.take()
    collector.take()
    return learner, collector
