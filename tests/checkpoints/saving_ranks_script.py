"""Trains on two ranks whose disks fail, started by test_folder.py: python saving_ranks_script.py FOLDER.

The disk of rank 0 takes no more in the second epoch, that of rank 1 in the third. Each rank writes what it saw to
FOLDER/rank_R.json.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy

CONFIG: dict[str, Any] = {
    "random_collect_size": 16,
    "model": {"encoder_hidden_size_list": [16]},
    "learn": {"update_per_collect": 2, "batch_size": 8},
    "eval": {"evaluator": {"n_episode": 2, "eval_freq": 20}},
    "other": {"replay_buffer": {"replay_buffer_size": 500}},
}


class FullDisk(RunCheckpoint):
    """Lets no file of one rank have more than some kilobytes in two epochs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.left: list[list[str]] = []

    def save(self, trainer: Trainer, pl_module: Any) -> None:
        is_full = trainer.current_epoch == 1 + trainer.global_rank
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000 if is_full else hard, hard))
        super().save(trainer, pl_module)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        trainer.strategy.barrier()
        assert self._folder is not None
        self.left.append(sorted(path.name for path in self._folder.iterdir()))
        report = {"left": self.left, "env_step": pl_module.progress.env_step}
        (self._folder.parent / f"rank_{trainer.global_rank}.json").write_text(json.dumps(report))
        trainer.strategy.barrier()


def train(folder: Path) -> None:
    """Fit with the settings of Lightning."""
    torch.set_num_threads(1)
    callback = FullDisk(folder / "here")
    flags: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "callbacks": [callback]}
    flags["logger"] = False  # which could not write either
    trainer = Trainer(strategy="ddp", accelerator="cpu", devices=2, default_root_dir=folder, max_epochs=4, **flags)
    trainer.fit(DQNPolicy(CONFIG), ReplayDataModule("CartPole-v1", num_envs=2, rounds_per_epoch=2))


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    train(Path(sys.argv[1]))
