"""Updates of a target network."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def copy_parameters(source: nn.Module, target: nn.Module) -> None:
    """Copy every parameter and buffer of ``source`` into ``target`` (Mnih et al. 2015)."""
    torch._foreach_copy_(list(target.parameters()), list(source.parameters()))
    _copy_buffers(source, target)


@torch.no_grad()
def polyak_update(source: nn.Module, target: nn.Module, theta: float) -> None:
    """Move ``target`` towards ``source``: t <- (1 - theta) t + theta s (Lillicrap et al. 2016, algorithm 1).

    Buffers, such as the statistics of a batch norm, are copied.

    Args:
        source: The trained network.
        target: The target network.
        theta: Weight of the source, in (0, 1]; 1 copies it.
    """
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), theta)
    _copy_buffers(source, target)


def _copy_buffers(source: nn.Module, target: nn.Module) -> None:
    for kept, new in zip(target.buffers(), source.buffers(), strict=True):
        kept.copy_(new)
