"""Sharing the work of an evaluation by hand over the ranks of ``torch.distributed``, if it is initialised.

Within a Trainer this is not needed: there the datamodule shares the work, and Lightning joins the results.

Shapes: K numbers for each of E episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from lightning_ding.config import require


def rank_and_world_size() -> tuple[int, int]:
    """Return this process' rank and the number of ranks; 0 and 1 without ``torch.distributed``."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def sum_over_ranks(values: Tensor) -> Tensor:
    """Return the sum over ranks of tensors of one shape, the same on every rank."""
    if rank_and_world_size()[1] > 1:
        values = values.to("cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(values)
    return values.cpu()


def run_sharded(run: Callable[[Sequence[int]], Any], n_episode: int) -> NDArray[np.float64]:
    """Run episodes 0..n_episode-1, each on one rank, and return what all of them gave.

    Rank r of W runs the episodes r, r + W, ... All ranks work at the same time and end with the same numbers, those
    that one rank alone would get if ``run`` depends on the numbers of the episodes only.

    Args:
        run: Called once with the numbers of this rank's episodes, E >= 1 of them; returns K rows of E numbers.
        n_episode: Episodes over all ranks, at least one for each.

    Returns:
        Shape (K, n_episode), in the order of the episodes.

    Raises:
        ValueError: If there are fewer episodes than ranks.
    """
    rank, world_size = rank_and_world_size()
    enough = ">= 1" if world_size == 1 else f"at least one for each of {world_size} ranks"
    require(n_episode >= world_size, "n_episode", enough, n_episode)
    share = range(n_episode)[rank::world_size]
    rows = torch.as_tensor(np.asarray(run(share), dtype=np.float64))
    table = torch.zeros(len(rows), n_episode, dtype=torch.float64)
    table[:, share] = rows
    return sum_over_ranks(table).numpy()
