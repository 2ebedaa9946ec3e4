"""Learns and collects on two gloo ranks, started by test_own_policies.py: python own_ranks_script.py FOLDER RANK RANKS.

Each rank writes what it found to FOLDER/rank_R.pt.
"""

from __future__ import annotations

import logging
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from lightning_ding.callbacks.metrics import _of_episodes
from lightning_ding.policy.base import ddp
from lightning_ding.policy.base.metrics import MeanMetrics
from tests.policy.own_policies import AveragedUpdates, OwnUpdates

EPOCH = 3  # rounds


class Messages(logging.Handler):
    """Keeps the messages."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


def learn(policy: Any, rank: int, first_round: int = 0) -> dict[str, Any]:
    """Make two epochs of updates, from other data on each rank, and return the weights and the messages by round."""
    generator, messages = torch.Generator().manual_seed(rank), Messages()
    ddp.logger.addHandler(messages)
    comparison, counts = ddp.WeightComparison(), []
    with patch.object(ddp, "attached_trainer", lambda _: SimpleNamespace(num_training_batches=EPOCH)):
        for number in range(2 * EPOCH):
            if number >= first_round:
                obs = torch.randn(2, 8, 3, generator=generator)
                batch = {"obs": obs[0], "next_obs": obs[1], "action": torch.arange(8) % 2, "reward": obs[0, :, 0]}
                policy.learn_mode.forward({**batch, "terminated": torch.zeros(8, dtype=torch.bool)})
            comparison.after_round(policy, number % EPOCH)
            counts.append(len(messages.found))
    ddp.logger.removeHandler(messages)
    return {"weights": dict(policy.model.state_dict()), "counts": counts, "messages": messages.found}


def make(policy_class: Any) -> Any:
    """Return a policy with the same weights on each rank."""
    torch.manual_seed(0)
    return policy_class({"model": {"obs_shape": 3, "action_shape": 2, "encoder_hidden_size_list": [8]}, "nstep": 1})


def main(folder: Path, rank: int, world_size: int) -> None:
    """Learn in both ways, and average metrics of which a rank lacks one."""
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", store, timedelta(seconds=60), world_size=world_size, rank=rank)
    metrics = MeanMetrics()
    metrics.add({"both": torch.tensor([1.0, 3.0]) + rank, **({"first": torch.tensor(5.0)} if rank == 0 else {})})
    updates = MeanMetrics()
    updates.add({"both": torch.tensor(1.0 + rank), **({"second": torch.tensor(5.0)} if rank == 1 else {})})
    found = {
        "apart": learn(make(OwnUpdates), rank),
        "late": learn(make(OwnUpdates), rank, first_round=1),
        "together": learn(make(AveragedUpdates), rank),
        "metrics": metrics.flush_over_ranks(),
        "nothing": MeanMetrics().flush_over_ranks(),
        "updates": updates.flush_over_ranks(),
        "episodes": _of_episodes(10.0 * rank, 1.0, 1, {}),
    }
    torch.save(found, folder / f"rank_{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
