"""Statistics over the data of all ranks together.

Shapes: M minibatches, B transitions of a minibatch.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_ding.rl import RunningMeanStd
from lightning_ding.rl.running import combine_moments, moments


def number_of_ranks() -> int:
    """Return how many ranks there are, 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def standardise_over_ranks(x: Tensor, eps: float = 1e-8) -> Tensor:
    """Return each row minus its mean, divided by its standard deviation plus ``eps``.

    A row stands for the minibatch that all ranks together learn from, so that two ranks with half of it each do what
    one does with the whole.

    Args:
        x: Shape (M, B).
        eps: Keeps rows of equal numbers at 0.
    """
    if number_of_ranks() == 1:
        if x.shape[1] < 2:
            return torch.zeros_like(x)
        std, mean = torch.std_mean(x, dim=1, keepdim=True)
        return (x - mean) / (std + eps)
    double = x.double()
    sums = torch.stack([torch.full_like(double[:, 0], x.shape[1]), double.sum(1), double.square().sum(1)])
    dist.all_reduce(sums)
    count, total, squares = sums.unsqueeze(2)
    mean = total / count
    variance = (squares - total * mean) / (count - 1).clamp(min=1)
    return ((double - mean) / (variance.clamp(min=0).sqrt() + eps)).to(x.dtype)


def update_over_ranks(running: RunningMeanStd, x: Tensor) -> None:
    """Take items of all ranks, shape (B,) on each and B not the same, into running statistics; in the same order."""
    if number_of_ranks() == 1:
        running.update(x)
        return
    mine = torch.stack(moments(x))
    parts = [torch.empty_like(mine) for _ in range(number_of_ranks())]
    dist.all_gather(parts, mine)
    merged = parts[0].unbind()
    for part in parts[1:]:
        merged = combine_moments(*merged, *part.unbind())
    running.merge(*merged)


def smallest_over_ranks(number: int, device: torch.device) -> int:
    """Return the smallest of the numbers of all ranks."""
    return int(_reduce(float(number), device, dist.ReduceOp.MIN))


def mean_over_ranks(number: float, device: torch.device) -> float:
    """Return the mean of the numbers of all ranks, the same on each."""
    return _reduce(number, device, dist.ReduceOp.SUM) / number_of_ranks()


def _reduce(number: float, device: torch.device, operation: dist.ReduceOp.RedOpType) -> float:
    if number_of_ranks() == 1:
        return number
    value = torch.tensor(number, dtype=torch.float64, device=device)
    dist.all_reduce(value, operation)
    return float(value)
