"""Trains a Decision Transformer on two ranks, for test_dt.py: python dt_ranks_script.py FOLDER.

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
from lightning_ding.policy import DTPolicy
from tests.policy.test_dt import SMALL
from tests.toys.datasets import counting_steps

if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    rows: list[torch.Tensor] = []

    class Noting(DTPolicy):
        """Notes which sub-sequences it learns from."""

        def _forward_learn(self, batch: dict[str, Any]) -> dict[str, Any]:
            rows.append(batch["obs"][0, :, 0].clone())
            return super()._forward_learn(batch)

    policy = Noting(SMALL)
    datamodule = OfflineDataModule(counting_steps((5,) * 10, (True, False) * 5), max_train_iter=20, norm_obs=True)
    flags: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(strategy="ddp", accelerator="cpu", devices=2, default_root_dir=folder, **flags)
    trainer.fit(policy, datamodule)
    torch.save({"weights": policy.state_dict(), "rows": torch.cat(rows)}, folder / f"rank_{trainer.global_rank}.pt")
