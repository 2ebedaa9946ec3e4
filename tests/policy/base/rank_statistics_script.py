"""Learns on gloo ranks, started by test_rank_statistics.py: python rank_statistics_script.py FOLDER RANK WORLD_SIZE.

Each rank writes what it found to FOLDER/rank_R.pt.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lightning_ding.policy import PPOPolicy
from lightning_ding.policy.base.rank_statistics import standardise_over_ranks, update_over_ranks
from lightning_ding.rl import RunningMeanStd
from lightning_ding.utils.ranks import mean_over_ranks, min_over_ranks

SIZES = (10, 9)  # rows of each rank; in three minibatches they are 4, 3, 3 and 3, 3, 3
CONFIG: dict[str, Any] = {
    "model": {"obs_shape": 3, "action_shape": 2, "action_space": "discrete", "encoder_hidden_size_list": [8]},
    "learn": {"batch_size": 3, "epoch_per_collect": 2},
}


def tables_of(rank: int) -> list[torch.Tensor]:
    """Return minibatches of a rank: two, three and four rows long on one, all of three on the other."""
    generator = torch.Generator().manual_seed(rank)
    shapes = [(1, 4), (2, 3)] if rank == 0 else [(3, 3)]
    return [5 + 2 * torch.randn(shape, generator=generator) for shape in shapes]


def items_of(rank: int) -> list[torch.Tensor]:
    """Return what a rank hands to running statistics in two rounds."""
    generator = torch.Generator().manual_seed(10 + rank)
    return [100 + torch.randn(size, generator=generator) for size in (SIZES[rank], 3 + rank)]


def rollout_of(rank: int) -> dict[str, Any]:
    """Return a rollout of a rank."""
    generator, size = torch.Generator().manual_seed(20 + rank), SIZES[rank]
    obs = torch.randn(size + 1, 3, generator=generator)
    flags = {"terminated": torch.zeros(size, dtype=torch.bool), "truncated": torch.zeros(size, dtype=torch.bool)}
    ids = {"env_id": torch.zeros(size, dtype=torch.long), "episode_id": torch.zeros(size, dtype=torch.long)}
    acted = {"action": torch.arange(size) % 2, "log_prob": torch.full((size,), 0.5).log()}
    return {"obs": obs[:-1], "next_obs": obs[1:], "reward": torch.arange(size) + 10.0 * rank} | flags | ids | acted


def learn(rank: int, target_kl: float | None) -> dict[str, Any]:
    """Learn from rollouts of unequal size; return weights, statistics and the number of updates."""
    torch.manual_seed(0)
    policy = PPOPolicy({**CONFIG, "learn": {**CONFIG["learn"], "target_kl": target_kl, "learning_rate": 0.1}})
    policy.seed(rank)
    for _ in range(2):
        policy._learn(rollout_of(rank))
    return {"state": policy.state_dict(), "train_iter": policy.progress.train_iter}


def report(rank: int) -> dict[str, Any]:
    """Return what this rank finds."""
    running = RunningMeanStd()
    for items in items_of(rank):
        update_over_ranks(running, items)
    return {
        "standardised": standardise_over_ranks(tables_of(rank)),
        "running": running.state_dict(),
        "smallest": min_over_ranks(7 - rank),
        "mean": mean_over_ranks(1.0 + rank),
        "learned": learn(rank, None),
        "stopped": learn(rank, 1e-9),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    target, own, world_size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    store = f"file://{target / 'store'}"
    dist.init_process_group("gloo", store, timedelta(seconds=60), world_size=world_size, rank=own)
    torch.save(report(own), target / f"rank_{own}.pt")
    dist.destroy_process_group()
