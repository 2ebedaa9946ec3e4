"""Learns on two gloo ranks in compiled code, started by test_compiled.py: compiled_ranks_script FOLDER NAME RANK.

Each rank writes the weights of an algorithm that it ended with to FOLDER/rank_R.pt: of eager code, of compiled code,
and of compiled code that rank 1 cannot make.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_ding.policy.base import compile as compiled
from tests.algorithms import half_batches_script


def learn(name: str, rank: int, is_compiled: bool) -> Tensor:
    """Learn from data of the rank's own, and return the weights."""
    policy = half_batches_script.make(name, compile=is_compiled, learn={"grad_clip_norm": 0.5})
    for number in range(8):
        policy.learn_mode.forward(half_batches_script.whole_batch(policy, name, 2 * number + rank))
    return torch.cat([weight.detach().reshape(-1) for weight in policy.model.parameters()])


def cannot_compile(*arguments: Any) -> Any:
    """Stand for a rank without a compiler."""
    raise RuntimeError("no compiler here")


def main(folder: Path, name: str, rank: int) -> None:
    """Learn three times, and write the weights."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=200))
    weights = {"eager": learn(name, rank, False), "compiled": learn(name, rank, True)}
    if rank == 1:
        setattr(compiled, "Compiled", cannot_compile)  # noqa: B010 - a class
    weights["alone"] = learn(name, rank, True)
    torch.save(weights, folder / f"rank_{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
