"""Statistics over the data of all ranks together.

Shapes: M minibatches, B transitions of a minibatch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_ding.rl import RunningMeanStd
from lightning_ding.rl.running import Moments, combine_moments, moments
from lightning_ding.utils.ranks import gather_rows, sum_over_ranks, world_size


def standardise_over_ranks(
    tables: Sequence[Tensor], eps: float = 1e-8, counted: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """Return each row of each table minus its mean, divided by its standard deviation plus ``eps``.

    A row stands for the minibatch that all ranks together learn from, so that two ranks with half of it each do what
    one does with the whole. The sizes of minibatches may differ between ranks, their number may not. A single number
    stays as it is.

    Args:
        tables: Rows of one length each, shapes (M_i, B_i); all M_i together are M, the same on every rank.
        eps: Keeps rows of equal numbers at 0.
        counted: 1 for each number that counts and 0 for each that does not, tables of the same shapes; None counts all.
    """
    if world_size() == 1 and counted is None:
        return [_standardised(table, eps) for table in tables]
    weights = [torch.ones_like(table) for table in tables] if counted is None else counted
    sums = torch.cat(
        [_sums(one.double(), weight) for one, weight in zip(tables, weights, strict=True)], dim=1
    )  # (3, M)
    count, total, squares = sum_over_ranks(sums)  # once for all tables: the ranks may have one or two of them
    mean = total / count.clamp(min=1)
    std = ((squares - total * mean) / (count - 1).clamp(min=1)).clamp(min=0).sqrt()
    mean, std = torch.where(count < 2, 0.0, mean), torch.where(count < 2, 1.0, std)  # a single number stays as it is
    sizes = [len(table) for table in tables]
    rows = zip(tables, mean.split(sizes), std.split(sizes), strict=True)
    return [((table - mu[:, None]) / (sigma[:, None] + eps)).to(table.dtype) for table, mu, sigma in rows]


def _standardised(table: Tensor, eps: float) -> Tensor:
    if table.shape[1] < 2:
        return table  # minus its own mean it would be 0, and the policy would never learn
    std, mean = torch.std_mean(table, dim=1, keepdim=True)
    return (table - mean) / (std + eps)


def _sums(table: Tensor, weight: Tensor) -> Tensor:
    table = table * weight
    return torch.stack([weight.double().sum(1), table.sum(1), table.square().sum(1)])


def update_over_ranks(running: RunningMeanStd, x: Tensor) -> None:
    """Update running statistics with the items of all ranks, in the same order on each; shape (B,), B may differ.

    Items that are not finite are left out: they would remain in the statistics permanently.
    """
    merge_over_ranks([running], [moments(x[x.isfinite()])])


def merge_over_ranks(running: Sequence[RunningMeanStd], found: Sequence[Moments]) -> None:
    """Take the moments of new items of all ranks into running statistics; all ranks end with the same bits.

    Args:
        running: The statistics, the same on every rank.
        found: Moments of this rank's items, one for each of the statistics.
    """
    if world_size() > 1 and found:
        device = running[0].count.device
        rows = gather_rows(torch.cat([moment.reshape(-1).to(device) for moments_ in found for moment in moments_]))
        found = _combined([_like(found, row) for row in rows])
    for statistics, new in zip(running, found, strict=True):
        statistics.merge(*new)


def _like(found: Sequence[Moments], row: Tensor) -> list[Moments]:
    """Return the moments that a rank has sent as a row."""
    parts = iter(row.split([moment.numel() for moments_ in found for moment in moments_]))
    return [tuple(next(parts).view_as(moment) for moment in moments_) for moments_ in found]


def _combined(ranks: Sequence[Sequence[Moments]]) -> list[Moments]:
    """Return the moments over all ranks, combined in the order of the ranks."""
    together = list(ranks[0])
    for rank in ranks[1:]:
        together = [combine_moments(*one, *other) for one, other in zip(together, rank, strict=True)]
    return together
