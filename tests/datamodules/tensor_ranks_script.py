"""Trains PPO in tensor envs on two ranks, started by test_tensor_mode.py; rank R writes FOLDER/rank_R.pt."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import torch
from lightning import Trainer

from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.policy import PPOPolicy


def train(folder: Path) -> None:
    """Fit, and write what this rank ended with."""
    torch.set_num_threads(1)
    policy = PPOPolicy({"collect": {"n_sample": 128}, "learn": {"epoch_per_collect": 2}})
    datamodule = RolloutDataModule("CartPole-v1", num_envs=8, mode="tensor", max_env_step=512, n_evaluator_episode=2)
    trainer = Trainer(strategy="ddp", accelerator="cpu", devices=2, default_root_dir=folder, logger=False)
    trainer.fit(policy, datamodule)
    report = {
        "weights": {name: tensor.clone() for name, tensor in policy.state_dict().items()},
        "env_step": policy.progress.env_step,
        "episode": policy.progress.episode,
        "env_step_of_rank": datamodule.collector.envstep,
        "episodes_of_rank": datamodule.collector.episode,
        "obs": datamodule.collector._obs.contiguous(),
    }
    torch.save(report, folder / f"rank_{trainer.global_rank}.pt")


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    train(Path(sys.argv[1]))
