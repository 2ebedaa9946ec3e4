"""Learns in a separate process, started by test_comm_learner.py: python learner_script.py WHAT FOLDER.

WHAT is ``signal``: while it waits for data a SIGTERM comes; or ``ranks``: two ranks learn, over files.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer
from lightning.pytorch import Callback

from lightning_ding.distributed.comm_worker.ranks import global_rank
from lightning_ding.distributed.file_store import FileStore
from lightning_ding.distributed.transport import Channel
from tests.distributed.comm_worker.learning_coordinator import TRAINER, Learner, LearningCoordinator

ROUNDS = 6


def be_signalled(folder: Path) -> None:
    """Learn four rounds, and get a SIGTERM while waiting for a fifth, which does not come."""
    coordinator = LearningCoordinator(folder, rounds=4, learner={"validate": False})

    def interrupt(name: str, message: dict[str, Any]) -> None:
        if name == "learner_get_data_task" and coordinator.asked == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        if name == "learner_close_task":
            print("closed", message["info"]["learner_done"], flush=True)

    coordinator.before, coordinator.ends = interrupt, False
    sys.exit(Learner(channel=coordinator.channel).start())


class FirstObservation(Callback):
    """Notes what the rank learned from first."""

    value = 0.0

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            self.value = float(next(iter(batch))["obs"][0, 0])


class RankLearner(Learner):
    """Writes down what its rank ends with."""

    first = FirstObservation()

    def _callbacks(self) -> list[Callback]:
        return [*super()._callbacks(), self.first]

    def _create_learner(self, task_info: Any) -> Any:
        self.made = super()._create_learner(task_info)
        return self.made


def learn_on_ranks(folder: Path) -> None:
    """Learn on two ranks; each has a separate coordinator and separate rounds."""
    learner = {"validate": False, "multi_gpu": True, "trainer": {**TRAINER, "devices": 2, "strategy": "ddp"}}
    store = FileStore(folder / "data")
    coordinator = LearningCoordinator(folder, ROUNDS + global_rank(), learner=learner, store=store)
    if global_rank() > 0:
        coordinator.started = 1
        coordinator.before = lambda name, message: time.sleep(0.01)
        coordinator.first_round = 1000
    channel: Channel = coordinator.channel
    comm = RankLearner(channel=channel)
    assert comm.start() == 0
    made: Any = comm.made
    policy = made.module
    report = {
        "weights": {name: tensor.clone() for name, tensor in policy.state_dict().items()},
        "train_iter": policy.progress.train_iter,
        "env_step": policy.progress.env_step,
        "first_obs": comm.first.value,
    }
    rank = made.trainer.global_rank
    torch.save(report, folder / f"rank_{rank}.pt")
    names = [name for name, _ in coordinator.messages]
    if rank > 0:  # it acts in the name of rank zero and is no worker
        assert not {"connect", "task", "learner_send_policy", "learner_learn_task", "disconnect"} & set(names), names
        assert coordinator.messages[0][1]["task_id"] == "t"


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    {"signal": be_signalled, "ranks": learn_on_ranks}[sys.argv[1]](Path(sys.argv[2]))
