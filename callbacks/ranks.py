"""Which processes of a run started which.

Lightning 2.6 has no public names for it: its launcher for ``strategy="ddp"`` starts one process for each further rank
of the machine and keeps them as ``procs``. Ranks that torchrun or SLURM started are nobody's children here.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer


def started_here(trainer: Trainer) -> list[subprocess.Popen[Any]]:
    """Return the processes of the ranks that this process has started."""
    return list(getattr(trainer.strategy.launcher, "procs", ()))


def is_started_by_a_rank(trainer: Trainer) -> bool:
    """Return whether the process of another rank started this one; every rank has to ask."""
    if trainer.world_size == 1 or not dist.is_initialized():
        return False
    mine = torch.tensor([os.getpid()], device=trainer.strategy.root_device)
    numbers = [torch.zeros_like(mine) for _ in range(trainer.world_size)]
    dist.all_gather(numbers, mine)
    first_here = trainer.global_rank - trainer.local_rank
    return trainer.local_rank > 0 and int(numbers[first_here]) == os.getppid()


def any_rank(trainer: Trainer, number: int) -> int:
    """Return the largest of the ranks' numbers; every rank has to ask. It is one all-reduce, none on a single rank."""
    if trainer.world_size == 1 or not dist.is_initialized():
        return number
    largest = torch.tensor(number, device=trainer.strategy.root_device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return int(largest)
