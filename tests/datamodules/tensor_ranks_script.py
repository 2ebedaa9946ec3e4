"""Trains PPO and DQN in tensor envs on two ranks, started by test_tensor_mode.py; rank R writes FOLDER/rank_R.pt."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer

from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.policy import DQNPolicy, PPOPolicy


def train(folder: Path) -> None:
    """Fit, and write what this rank ended with."""
    torch.set_num_threads(1)
    found = {"ppo": train_ppo(folder), "dqn": train_dqn(folder)}
    torch.save(found, folder / f"rank_{os.environ['LOCAL_RANK']}.pt")


def train_ppo(folder: Path) -> dict[str, Any]:
    """Return what a rank of PPO ended with."""
    policy = PPOPolicy({"collect": {"n_sample": 128}, "learn": {"epoch_per_collect": 2}})
    datamodule = RolloutDataModule("CartPole-v1", num_envs=8, mode="tensor", max_env_step=512, n_evaluator_episode=2)
    trainer = Trainer(strategy="ddp", accelerator="cpu", devices=2, default_root_dir=folder, logger=False)
    trainer.fit(policy, datamodule)
    return {
        "weights": {name: tensor.clone() for name, tensor in policy.state_dict().items()},
        "env_step": policy.progress.env_step,
        "episode": policy.progress.episode,
        "env_step_of_rank": datamodule.collector.envstep,
        "episodes_of_rank": datamodule.collector.episode,
        "obs": datamodule.collector._obs.contiguous(),
    }


def train_dqn(folder: Path) -> dict[str, Any]:
    """Return what a rank of DQN ended with."""
    policy = DQNPolicy({"random_collect_size": 32, "collect": {"n_sample": 8}, "learn": {"batch_size": 16}})
    datamodule = ReplayDataModule("CartPole-v1", num_envs=8, mode="tensor", max_env_step=320, n_evaluator_episode=2)
    trainer = Trainer(strategy="ddp", accelerator="cpu", devices=2, default_root_dir=folder, logger=False)
    trainer.fit(policy, datamodule)
    buffer: Any = datamodule.buffer
    return {
        "weights": {name: tensor.clone() for name, tensor in policy.state_dict().items()},
        "env_step": policy.progress.env_step,
        "updates": policy.progress.train_iter,
        "obs": buffer.transitions()["obs"],
        "drawn": buffer.sample(16)["obs"],
        "rows": buffer._draw(1, 16, False),
    }


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    train(Path(sys.argv[1]))
