"""Statistics over the data of all ranks together.

Shapes: M minibatches, B transitions of a minibatch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_ding.rl import RunningMeanStd
from lightning_ding.rl.running import Moments, combine_moments, moments


def number_of_ranks() -> int:
    """Return how many ranks there are, 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def standardise_over_ranks(tables: Sequence[Tensor], eps: float = 1e-8) -> list[Tensor]:
    """Return each row of each table minus its mean, divided by its standard deviation plus ``eps``.

    A row stands for the minibatch that all ranks together learn from, so that two ranks with half of it each do what
    one does with the whole. The sizes of minibatches may differ between ranks, their number may not.

    Args:
        tables: Rows of one length each, shapes (M_i, B_i); all M_i together are M, the same on every rank.
        eps: Keeps rows of equal numbers at 0.
    """
    if number_of_ranks() == 1:
        return [_standardised(table, eps) for table in tables]
    sums = torch.cat([_sums(table.double()) for table in tables], dim=1)  # (3, M)
    dist.all_reduce(sums)  # once for all tables: a rank may have two of them where another has one
    count, total, squares = sums
    mean = total / count
    std = ((squares - total * mean) / (count - 1).clamp(min=1)).clamp(min=0).sqrt()
    sizes = [len(table) for table in tables]
    rows = zip(tables, mean.split(sizes), std.split(sizes), strict=True)
    return [((table - mu[:, None]) / (sigma[:, None] + eps)).to(table.dtype) for table, mu, sigma in rows]


def _standardised(table: Tensor, eps: float) -> Tensor:
    if table.shape[1] < 2:
        return torch.zeros_like(table)
    std, mean = torch.std_mean(table, dim=1, keepdim=True)
    return (table - mean) / (std + eps)


def _sums(table: Tensor) -> Tensor:
    return torch.stack([torch.full_like(table[:, 0], table.shape[1]), table.sum(1), table.square().sum(1)])


def update_over_ranks(running: RunningMeanStd, x: Tensor) -> None:
    """Take items of all ranks, shape (B,) on each and B not the same, into running statistics; in the same order.

    Items that are not finite are left out: they would stay in the statistics for ever.
    """
    merge_over_ranks([running], [moments(x[x.isfinite()])])


def merge_over_ranks(running: Sequence[RunningMeanStd], found: Sequence[Moments]) -> None:
    """Take the moments of new items of all ranks into running statistics; all ranks end with the same bits.

    Args:
        running: The statistics, the same on every rank.
        found: For each of them, the moments of this rank's items.
    """
    if number_of_ranks() > 1 and found:
        device = running[0].count.device
        mine = torch.cat([moment.reshape(-1).to(device) for moments_ in found for moment in moments_])
        rows = [torch.empty_like(mine) for _ in range(number_of_ranks())]
        dist.all_gather(rows, mine)
        found = _combined([_like(found, row) for row in rows])
    for statistics, new in zip(running, found, strict=True):
        statistics.merge(*new)


def _like(found: Sequence[Moments], row: Tensor) -> list[Moments]:
    """Return the moments that a rank has sent as a row."""
    parts = iter(row.split([moment.numel() for moments_ in found for moment in moments_]))
    return [(next(parts).view(()), next(parts).view_as(mean), next(parts).view_as(m2)) for _, mean, m2 in found]


def _combined(ranks: Sequence[Sequence[Moments]]) -> list[Moments]:
    """Return the moments over all ranks, combined in the order of the ranks."""
    together = list(ranks[0])
    for rank in ranks[1:]:
        together = [combine_moments(*one, *other) for one, other in zip(together, rank, strict=True)]
    return together


def smallest_over_ranks(number: int, device: torch.device) -> int:
    """Return the smallest of the numbers of all ranks."""
    return int(_reduce(float(number), device, dist.ReduceOp.MIN))


def on_all_ranks(condition: bool) -> bool:
    """Return whether a condition holds on every rank; all of them must ask."""
    if number_of_ranks() == 1:
        return condition
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    return smallest_over_ranks(int(condition), device) == 1


def mean_over_ranks(number: float, device: torch.device) -> float:
    """Return the mean of the numbers of all ranks, the same on each."""
    return _reduce(number, device, dist.ReduceOp.SUM) / number_of_ranks()


def _reduce(number: float, device: torch.device, operation: dist.ReduceOp.RedOpType) -> float:
    if number_of_ranks() == 1:
        return number
    value = torch.tensor(number, dtype=torch.float64, device=device)
    dist.all_reduce(value, operation)
    return float(value)
