"""Learns on gloo ranks, started by test_reference_ranks.py: python ranks_script.py FOLDER RANK WORLD_SIZE.

Each rank writes its weights to FOLDER/rank_R.pt.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.toys.reference_policies import PlainDQN


def samples_of(rank: int) -> list[dict[str, Any]]:
    """Return four samples of a rank."""
    generator = torch.Generator().manual_seed(rank)
    obs = torch.randn(2, 4, 4, generator=generator)
    ends = {"reward": torch.tensor([float(rank)]), "done": False}
    return [
        {"obs": obs[0, row], "next_obs": obs[1, row], "action": torch.tensor([row % 2]), **ends} for row in range(4)
    ]


def learn(samples: list[dict[str, Any]], multi_gpu: bool) -> dict[str, Any]:
    """Return the weights after three updates."""
    torch.manual_seed(0)
    policy: Any = PlainDQN({"multi_gpu": multi_gpu})
    for _ in range(3):
        policy.learn_mode.forward(samples)
    return dict(policy.model.state_dict())


def main(folder: Path, rank: int, world_size: int) -> None:
    """Learn with and without a call of ``sync_gradients``."""
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", store, timedelta(seconds=60), world_size=world_size, rank=rank)
    found = [learn(samples_of(rank), multi_gpu) for multi_gpu in (False, True)]
    torch.save(found, folder / f"rank_{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
