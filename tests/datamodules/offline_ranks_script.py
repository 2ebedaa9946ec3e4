"""Trains on a data set on two ranks, for test_offline.py and test_dt.py: python offline_ranks_script.py FOLDER POLICY.

Each rank writes what it ended with to FOLDER/rank_R.pt.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer

from lightning_ding.datamodules import OfflineDataModule
from lightning_ding.policy import DQNPolicy, DTPolicy
from tests.policy.test_dt import SMALL
from tests.toys.datasets import counting_steps

if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    rows: list[torch.Tensor] = []

    class Noting(DQNPolicy):
        """Notes which transitions it learns from."""

        def _prepare_round(self, data: dict[str, Any]) -> dict[str, Any]:
            rows.append(data["obs"][..., 0].clone())
            return super()._prepare_round(data)

    class NotingDT(DTPolicy):
        """Notes which sub-sequences it learns from."""

        def _forward_learn(self, batch: dict[str, Any]) -> dict[str, Any]:
            rows.append(batch["obs"][0, :, 0].clone())
            return super()._forward_learn(batch)

    config: dict[str, Any] = {
        "model": {"encoder_hidden_size_list": [8]},
        "learn": {"batch_size": 8, "update_per_collect": 5},
    }
    policy: Any = NotingDT(SMALL) if sys.argv[2] == "dt" else Noting(config)
    datamodule = OfflineDataModule(counting_steps((5,) * 10, (True, False) * 5), max_train_iter=10, norm_obs=True)
    names = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    off: dict[str, Any] = dict.fromkeys(names, False)
    trainer = Trainer(strategy="ddp", accelerator="cpu", devices=2, **off)
    trainer.fit(policy, datamodule)
    report = {"weights": policy.state_dict(), "rows": torch.cat(rows), "mean": datamodule.statistics.obs_mean.tolist()}
    torch.save(report, folder / f"rank_{trainer.global_rank}.pt")
