"""Trains policies with reward models on two ranks: python -m tests.reward_model.two_ranks_script FOLDER.

Each rank writes what it ended with to FOLDER/rank_R.pt.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch

from tests.reward_model.cases import CASES, fit, make


def train(case: str, folder: Path) -> dict[str, Any]:
    """Fit, and return what this rank ended with."""
    rank = int(os.environ.get("LOCAL_RANK", 0))
    torch.manual_seed(rank)  # so the ranks make different weights
    own = folder / str(rank)
    own.mkdir(exist_ok=True)
    policy, datamodule = make(case, own)
    fit(policy, datamodule, folder, 3, strategy="ddp", devices=2)
    model: Any = policy.reward_model
    return {
        "weights": {name: tensor.clone() for name, tensor in policy.state_dict().items()},
        "seen": float(model.return_statistics.count) if hasattr(model, "return_statistics") else None,
        "env_step": policy.progress.env_step,
    }


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    report = {case: train(case, place) for case in CASES}
    torch.save(report, place / f"rank_{torch.distributed.get_rank()}.pt")
