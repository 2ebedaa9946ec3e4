"""Trains on two forked ranks, as a notebook does, and reports the state of the policy in this process afterwards."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy

CONFIG = {
    "random_collect_size": 16,
    "model": {"encoder_hidden_size_list": [16], "dueling": False},
    "collect": {"n_sample": 8},
    "learn": {"update_per_collect": 2, "batch_size": 8},
    "eval": {"evaluator": {"n_episode": 2}},
    "other": {"replay_buffer": {"replay_buffer_size": 500}},
}


def main(folder: Path) -> None:
    """Fit, and print."""
    torch.set_num_threads(1)
    flags: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp_notebook", default_root_dir=folder, **flags)
    policy = DQNPolicy(CONFIG)
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, rounds_per_epoch=2, max_env_step=64)
    trainer.fit(policy, datamodule)
    saved = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    weights = policy.state_dict()
    same = saved.keys() == weights.keys() and all(torch.equal(saved[name], weights[name]) for name in saved)
    print(json.dumps({"env_step": policy.progress.env_step, "has_trained_weights": same}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
