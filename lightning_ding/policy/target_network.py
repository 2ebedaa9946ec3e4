"""The target network of policies that learn from replay: when it is updated from the trained network, and how.

The keys ``target_update_freq`` and ``target_theta`` are fields of ``ReplayLearnConfig``;
what they mean, and which values are allowed, is here.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from lightning_ding.config import require

NetworkT = TypeVar("NetworkT", bound=nn.Module)


def make_target(network: NetworkT) -> NetworkT:
    """Return a copy of the network whose parameters need no gradient; pruned layers can be copied too."""
    held = [value for module in network.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    computed = {id(value): value.detach().clone() for value in held if not value.is_leaf}  # torch cannot copy these
    return copy.deepcopy(network, computed).requires_grad_(False)


@dataclass(frozen=True)
class TargetUpdate:
    """How a target network is updated: by copies at intervals, or by a soft update after every update.

    Args:
        freq: ``learn.target_update_freq``, updates between two copies, >= 1; None for ``default_freq``, or for no
            copies with ``theta``.
        theta: ``learn.target_theta``, the step size of the soft update after every update, in (0, 1]; None copies the
            network instead.
        default_freq: Updates between two copies if neither is given, >= 1.

    Raises:
        ValueError: If both are given, or one is out of its range.
    """

    freq: int | None
    theta: float | None
    default_freq: int

    def __post_init__(self) -> None:
        freq, theta = self.freq, self.theta
        require(freq is None or theta is None, "learn.target_update_freq", f"None with target_theta ({theta})", freq)
        require(freq is None or freq >= 1, "learn.target_update_freq", ">= 1", freq)
        require(theta is None or 0 < theta <= 1, "learn.target_theta", "in (0, 1]", theta)

    def changes_within(self, train_iter: int, num_updates: int) -> bool:
        """Return whether the target changes before the last of ``num_updates`` updates from number ``train_iter``."""
        if self.theta is not None:
            return True
        freq = self.freq or self.default_freq
        return (train_iter + num_updates - 1) // freq > train_iter // freq

    def apply(self, network: nn.Module, target: nn.Module, train_iter: int) -> None:
        """Update ``target`` from ``network``, if it is due, after the update number ``train_iter``, from 0.

        Raises:
            ValueError: If the parameters of ``network`` are others than when ``target`` was made.
        """
        try:
            if self.theta is not None:
                polyak_update(network, target, self.theta)
            elif (train_iter + 1) % (self.freq or self.default_freq) == 0:
                copy_parameters(network, target)
        except (RuntimeError, ValueError) as error:
            others = sorted(network.state_dict().keys() ^ target.state_dict().keys())
            allowed = "those of the target network (change layers before the network is passed to the policy)"
            require(not others, "the parameters of the trained network", allowed, others)
            raise error


@torch.no_grad()
def copy_parameters(source: nn.Module, target: nn.Module) -> None:
    """Copy every parameter and buffer of ``source`` into ``target`` (Mnih et al. 2015)."""
    for kept, new in zip(target.parameters(), source.parameters(), strict=True):
        kept.copy_(new)
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
    for kept, new in zip(target.parameters(), source.parameters(), strict=True):
        kept.lerp_(new, theta)
    _copy_buffers(source, target)


def _copy_buffers(source: nn.Module, target: nn.Module) -> None:
    for kept, new in zip(target.buffers(), source.buffers(), strict=True):
        kept.copy_(new)
