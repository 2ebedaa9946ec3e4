"""Trains on two ranks, started by test_two_ranks.py: python two_ranks_script.py FOLDER MAX_ENV_STEP [CHECKPOINT].

Each rank writes what it ended with to FOLDER/rank_R.pt.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from lightning import Trainer

from lightning_ding.callbacks import EpisodeRecord
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy

SEED = 3
N_EPISODE = 5  # one rank runs three of them, the other two
CONFIG: dict[str, Any] = {
    "random_collect_size": 16,
    "model": {"encoder_hidden_size_list": [16]},
    "learn": {"update_per_collect": 2, "batch_size": 8},
    "eval": {"evaluator": {"n_episode": N_EPISODE, "eval_freq": 20}},
    "other": {"replay_buffer": {"replay_buffer_size": 500}},
}


class Counted(gym.Wrapper[Any, Any, Any, Any]):
    """Gives the number of the step in the info, which at the end is the length of the episode."""

    def reset(self, **kwargs: Any) -> Any:
        """Begin an episode."""
        self.count = 0
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        """Count a step."""
        self.count += 1
        *answer, info = super().step(action)
        return *answer, {**info, "count": self.count}


def train(folder: Path, max_env_step: int, checkpoint: str | None) -> None:
    """Fit with the settings of Lightning, and write what this rank ended with."""
    torch.set_num_threads(1)
    policy = DQNPolicy(CONFIG)  # with different weights on each rank
    arguments: dict[str, Any] = {"wrappers": [Counted], "info_keys": ["count"], "max_env_step": max_env_step}
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, seed=SEED, **arguments)
    record = EpisodeRecord()
    trainer = Trainer(strategy="ddp", accelerator="cpu", devices=2, default_root_dir=folder, callbacks=[record])
    trainer.fit(policy, datamodule, ckpt_path=checkpoint)
    assert datamodule.collector is not None
    assert datamodule.buffer is not None
    report = {
        "weights": {name: tensor.clone() for name, tensor in policy.state_dict().items()},
        "buffer": datamodule.buffer.state_dict()["tensors"],
        "env_step_of_rank": datamodule.collector.envstep,
        "progress": policy.progress.state_dict(),
        "global_step": trainer.global_step,
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "episodes": str(record.file or ""),
        "last_model_path": [path for c in trainer.checkpoint_callbacks if (path := getattr(c, "last_model_path", ""))],
    }
    torch.save(report, folder / f"rank_{trainer.global_rank}.pt")


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    train(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
