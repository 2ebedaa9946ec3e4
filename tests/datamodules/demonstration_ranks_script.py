"""Trains with demonstrations on two ranks, for test_demonstrations.py: python demonstration_ranks_script.py FOLDER.

Each rank writes what it learned from to FOLDER/rank_R.pt.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import SQILPolicy
from tests.algorithms.table import random_episodes

if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    rounds: list[dict[str, torch.Tensor]] = []

    class Noting(SQILPolicy):
        """Notes which transitions it learns from."""

        def _prepare_round(self, data: dict[str, Any]) -> dict[str, Any]:
            rounds.append({"rows": data["obs"][..., 0].clone(), "is_expert": data["is_expert"]})
            return super()._prepare_round(data)

    policy = Noting({"model": {"encoder_hidden_size_list": [8]}, "learn": {"batch_size": 8}, "random_collect_size": 8})
    data: dict[str, Any] = {"num_envs": 2, "max_env_step": 64, "demonstrations": random_episodes("CartPole-v1")}
    flags: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    flags |= {"limit_val_batches": 0, "default_root_dir": folder}
    trainer = Trainer(strategy="ddp", accelerator="cpu", devices=2, **flags)
    trainer.fit(policy, ReplayDataModule("CartPole-v1", **data))
    report: dict[str, Any] = {name: torch.cat([one[name] for one in rounds]) for name in ("rows", "is_expert")}
    torch.save(report | {"weights": policy.state_dict()}, folder / f"rank_{trainer.global_rank}.pt")
