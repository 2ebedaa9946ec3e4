"""Sums, extremes and gathered data over the ranks of ``torch.distributed``.

Without a process group there is a single rank, and nothing is communicated. Otherwise all ranks of the group must call
the same function, in the same order; only :func:`rank_and_world_size` and :func:`communication_device` are local.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

HAS_RANKS = dist.is_available()  # whether this build of torch can have several; world_size is called in every update


def rank_and_world_size(group: Any = None) -> tuple[int, int]:
    """Return the rank of this process and the number of ranks; ``(0, 1)`` without a process group."""
    if HAS_RANKS and dist.is_initialized():
        return dist.get_rank(group), dist.get_world_size(group)
    return 0, 1


def world_size() -> int:
    """Return the number of ranks; 1 without a process group."""
    return dist.get_world_size() if HAS_RANKS and dist.is_initialized() else 1


def communication_device(group: Any = None) -> torch.device:
    """Return the device on which a process group exchanges tensors: the current GPU for NCCL, the CPU otherwise."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def sum_over_ranks(values: Tensor) -> Tensor:
    """Return the sum of a tensor over the ranks.

    Args:
        values: A tensor of the same shape and dtype on every rank; it is not changed.

    Returns:
        The sum, the same on every rank, on the device of ``values``.
    """
    return _reduce(values, dist.ReduceOp.SUM)


def mean_over_ranks(number: float) -> float:
    """Return the mean of a number over the ranks, the same on every rank."""
    return float(sum_over_ranks(torch.tensor(number, dtype=torch.float64))) / world_size()


def min_over_ranks(number: int) -> int:
    """Return the smallest of the ranks' integers, the same on every rank."""
    return number if world_size() == 1 else int(_reduce(torch.tensor(number), dist.ReduceOp.MIN))


def max_over_ranks(number: int) -> int:
    """Return the largest of the ranks' integers, the same on every rank."""
    return number if world_size() == 1 else int(_reduce(torch.tensor(number), dist.ReduceOp.MAX))


def on_any_rank(condition: bool) -> bool:
    """Return whether a condition holds on at least one rank."""
    return max_over_ranks(int(condition)) == 1


def gather_rows(row: Tensor) -> Tensor:
    """Return a tensor of every rank, stacked in the order of the ranks.

    Args:
        row: A tensor of the same shape and dtype on every rank, shape (...).

    Returns:
        Shape (ranks, ...), the same bits on every rank, on the device of ``row``.
    """
    if world_size() == 1:
        return row[None]
    mine = row.to(communication_device())
    rows = [torch.empty_like(mine) for _ in range(world_size())]
    dist.all_gather(rows, mine)
    return torch.stack(rows).to(row.device)


def gather_bytes(data: bytes, group: Any = None) -> list[bytes]:
    """Return the bytes of every rank, in the order of the ranks; their lengths may differ.

    Args:
        data: The bytes of this rank; may be empty.
        group: Process group; None means all ranks.
    """
    ranks = rank_and_world_size(group)[1]
    if ranks == 1:
        return [data]
    device = communication_device(group)
    length = torch.tensor([len(data)], dtype=torch.int64, device=device)
    lengths = [torch.zeros_like(length) for _ in range(ranks)]
    dist.all_gather(lengths, length, group=group)
    padded = torch.zeros(max(int(one) for one in lengths), dtype=torch.uint8, device=device)
    if data:
        padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded, group=group)
    return [bytes(part[: int(size)].cpu().numpy()) for part, size in zip(parts, lengths, strict=True)]


def _reduce(values: Tensor, operation: Any) -> Tensor:
    if world_size() == 1:
        return values
    reduced = values.to(communication_device(), copy=True)
    dist.all_reduce(reduced, operation)
    return reduced.to(values.device)
