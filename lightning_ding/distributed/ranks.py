"""How the ranks of one learner get to know the task that rank zero was given.

Only rank zero talks to the coordinator as a worker; the others act in its name. Those that Lightning starts are
processes of the same command and find the task in their environment; those of torchrun get it through torchrun's store.
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

from lightning_ding.callbacks.ranks import started_here
from lightning_ding.distributed.worker_loop import Task

TASK = "LIGHTNING_DING_TASK"
LAUNCHED = ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What Lightning leaves in the environment of the process that has started the others."""
LEAVES = 30.0  # seconds that another rank has to end when the task is done
POLL = 0.5  # seconds
STORE = timedelta(seconds=60)

OwnedTask = tuple[str, Task]
"""The worker that owns a task, and the task."""


def global_rank() -> int:
    """Return this process's rank as the environment says it; 0 for a process that nobody has started as a rank."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))


class RankZero:
    """Tells the other ranks of the tasks."""

    def __init__(self) -> None:
        self._store = _torchrun_store()
        self._tasks = 0

    def tell(self, worker_id: str, task: Task) -> None:
        """Let the others do a task together with this rank; those that are not there yet find it when they start."""
        text = json.dumps([worker_id, task])
        os.environ[TASK] = text
        self._set(text)

    def end_task(self, trainer: Trainer, has_failed: bool) -> None:
        """Wait for the ranks that Lightning has started, or end them, and let a later task start others."""
        os.environ.pop(TASK, None)
        if self._store is not None:
            return
        for process in started_here(trainer):
            try:
                process.wait(timeout=0.0 if has_failed else LEAVES)
            except subprocess.TimeoutExpired:
                process.kill()
        if trainer.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()
            for name in LAUNCHED:
                os.environ.pop(name, None)

    def close(self) -> None:
        """Tell the others that there are no more tasks."""
        self._set("null")
        self._store = None

    def _set(self, text: str) -> None:
        if self._store is not None:
            self._store.set(f"{TASK}/{self._tasks}", text)
            self._tasks += 1


def tasks_of_rank_zero() -> Iterator[OwnedTask]:
    """Yield the tasks that rank zero was given, each when it comes.

    Raises:
        RuntimeError: If this process was started as a rank by something that cannot hand tasks on.
    """
    store, number, agent = _torchrun_store(), 0, os.getppid()
    if store is None:
        if TASK not in os.environ:
            raise RuntimeError(
                f"rank {global_rank()} knows of no task: let Lightning start the ranks of a learner "
                '(learner.trainer.strategy="ddp"), or torchrun'
            )
        yield _read(os.environ[TASK])
        return
    while os.getppid() == agent:  # who ends this process when rank zero has died
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
    return worker_id, Task(*task)


def _torchrun_store() -> Any:
    """Return a client of the store that torchrun serves; None if torchrun has not started this process."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(address, port, is_master=False, timeout=STORE)  # type: ignore[attr-defined]
