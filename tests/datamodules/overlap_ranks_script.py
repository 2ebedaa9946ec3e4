"""Trains on two ranks whose envs step while they learn, started by test_overlap.py; see two_ranks_script.py."""

from __future__ import annotations

import logging
import os
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
    "collect": {"n_sample": 6},
    "model": {"encoder_hidden_size_list": [16]},
    "learn": {"update_per_collect": 2, "batch_size": 8},
    "other": {"replay_buffer": {"replay_buffer_size": 500}},
}


def train(folder: Path, max_env_step: int, checkpoint: str | None = None) -> dict[str, Any]:
    """Fit with the settings of Lightning, and return what this rank ended with."""
    torch.manual_seed(1)
    policy = DQNPolicy(CONFIG)
    envs: dict[str, Any] = {"num_envs": 2, "mode": "async", "num_workers": 1, "overlap": True}
    datamodule = ReplayDataModule("CartPole-v1", max_env_step=max_env_step, rounds_per_epoch=2, **envs)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "limit_val_batches": 0}
    saves = [RunCheckpoint(folder)]
    trainer = Trainer(strategy="ddp", accelerator="cpu", devices=2, callbacks=saves, **quiet)  # type: ignore[arg-type]
    trainer.fit(policy, datamodule, ckpt_path=checkpoint)
    assert datamodule.buffer is not None
    return {
        "weights": {name: tensor.clone() for name, tensor in policy.state_dict().items()},
        "buffer": datamodule.buffer.state_dict()["tensors"],
        "env_step": policy.progress.env_step,
        "env_step_of_rank": datamodule.collector.envstep,
    }


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    train(root / "broken", 92)
    reports = {"broken": train(root / "broken", 140, str(root / "broken" / "last.ckpt"))}
    reports["unbroken"] = train(root / "unbroken", 140)
    torch.save(reports, root / f"rank_{os.environ['LOCAL_RANK']}.pt")
