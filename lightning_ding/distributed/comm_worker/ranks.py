"""Sharing the task of rank zero with the other ranks of a learner.

Only rank zero is a worker of the coordinator; the other ranks use its worker id. Ranks that Lightning starts find the
task in their environment. Ranks that torchrun has started get it through torchrun's store, and ranks that Ray has
started through a store in rank zero.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Trainer

from lightning_ding.callbacks.watchdog import started_here
from lightning_ding.distributed.comm_worker.loop import AssignedTask

TASK = "LIGHTNING_DING_TASK"
LAUNCHED = ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that Lightning sets in the environment of the process that starts the other ranks."""
EXIT_TIMEOUT = 30.0  # seconds for another rank to end after the task
POLL = 0.5  # seconds between two looks for a task
STORE_TIMEOUT = timedelta(seconds=60)


def open_store(host: str) -> Any:
    """Return a store in this process, which takes the place of torchrun's; its attribute ``port`` is where it listens.

    Args:
        host: Address of this machine that the other ranks can reach.
    """
    return dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=STORE_TIMEOUT)  # type: ignore[attr-defined]


def environment_of_rank(rank: int, ranks: int, host: str, port: int) -> dict[str, str]:
    """Return the environment in which torchrun would start a rank that is the only one on its machine.

    Args:
        rank: Index of the rank, in [0, ranks).
        ranks: Number of ranks.
        host: Address of the store of :func:`open_store`.
        port: Its port.

    Example:
        >>> found = environment_of_rank(1, 2, "10.0.0.1", 29500)
        >>> found["RANK"], found["LOCAL_RANK"], found["WORLD_SIZE"], found["MASTER_ADDR"]
        ('1', '0', '2', '10.0.0.1')
    """
    numbers = {"RANK": rank, "GROUP_RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    numbers |= {"WORLD_SIZE": ranks, "GROUP_WORLD_SIZE": ranks, "ROLE_WORLD_SIZE": ranks, "MASTER_PORT": port}
    numbers |= {"TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0}
    texts = {"MASTER_ADDR": host, "TORCHELASTIC_RUN_ID": "lightning_ding", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    return {name: str(value) for name, value in {**numbers, **texts}.items()}


OwnedTask = tuple[str, AssignedTask]
"""Id of the worker that owns a task, and the task."""


def global_rank() -> int:
    """Return the rank of this process from its environment; 0 if it was not started as a rank."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))


class RankZero:
    """Shares the tasks of rank zero with the other ranks, through torchrun's store if there is one."""

    def __init__(self) -> None:
        self._store = _torchrun_store()
        self._tasks = 0

    @property
    def are_started_elsewhere(self) -> bool:
        """Whether torchrun or Ray has started the other ranks."""
        return self._store is not None

    def share(self, worker_id: str, task: AssignedTask) -> None:
        """Make the other ranks do a task together with this one; ranks that start later find it, too."""
        text = json.dumps([worker_id, task])
        os.environ[TASK] = text
        self._set(text)

    def end_task(self, trainer: Trainer | None, has_failed: bool) -> None:
        """Wait for the ranks that Lightning has started, or kill them, so that the next task can start new ones."""
        os.environ.pop(TASK, None)
        if self._store is not None or trainer is None:
            return
        for process in started_here(trainer):
            try:
                process.wait(timeout=0.0 if has_failed else EXIT_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
        if trainer.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()
            for name in LAUNCHED:
                os.environ.pop(name, None)

    def close(self) -> None:
        """Notify the other ranks that there are no more tasks."""
        self._set("null")
        self._store = None

    def _set(self, text: str) -> None:
        if self._store is not None:
            self._store.set(f"{TASK}/{self._tasks}", text)
            self._tasks += 1


def tasks_of_rank_zero() -> Iterator[OwnedTask]:
    """Yield the tasks of rank zero, each as soon as rank zero publishes it.

    Raises:
        RuntimeError: If this process was started as a rank by a program that cannot pass tasks on.
    """
    store, number, agent = _torchrun_store(), 0, os.getppid()
    if store is None:
        if TASK not in os.environ:
            raise RuntimeError(
                f"rank {global_rank()} has no task: let Lightning start the ranks of a learner "
                '(learner.trainer.strategy="ddp"), or torchrun'
            )
        yield _read(os.environ[TASK])
        return
    while os.getppid() == agent:  # which ends this process if rank zero has died
        key = f"{TASK}/{number}"
        if not store.check([key]):
            time.sleep(POLL)
            continue
        text = store.get(key).decode()
        if text == "null":
            return
        yield _read(text)
        number += 1


def _read(text: str) -> OwnedTask:
    worker_id, task = json.loads(text)
    return worker_id, AssignedTask(*task)


def _torchrun_store() -> Any:
    """Return a client of torchrun's store; None if torchrun has not started this process."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(address, port, is_master=False, timeout=STORE_TIMEOUT)  # type: ignore[attr-defined]
