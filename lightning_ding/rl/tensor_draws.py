"""Random numbers, epsilon-greedy actions and random actions that are drawn on the device of tensor envs.

They come from torch's global generator of the device, and nothing is read on the host. The functions for arrays are in
``rl/exploration.py``.

Shapes: N envs, B batch, A actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lightning_ding.rl.exploration import discrete_counts


class TensorDraws:
    """The methods of numpy's ``Generator`` that algorithms use, with tensors as their results.

    Args:
        device: Device of the tensors.

    Example:
        >>> TensorDraws("cpu").standard_normal((2, 3)).shape
        torch.Size([2, 3])
    """

    def __init__(self, device: torch.device | str) -> None:
        self._device = device

    def standard_normal(self, size: Sequence[int], dtype: Any = np.float32) -> Tensor:
        """Return independent standard normal numbers in single precision; ``dtype`` has no effect."""
        return torch.randn(*size, device=self._device)

    def random(self, size: Sequence[int], dtype: Any = np.float32) -> Tensor:
        """Return independent uniform numbers in [0, 1) in single precision; ``dtype`` has no effect."""
        return torch.rand(*size, device=self._device)


def epsilon_greedy_tensor(q: Tensor, epsilon: float) -> Tensor:
    """Return greedy actions, each replaced by a uniformly random legal one with probability epsilon.

    Each row explores independently, as in :func:`~lightning_ding.rl.epsilon_greedy`.

    Args:
        q: Action values, illegal actions at minus infinity, shape (B, A).
        epsilon: Probability of a random action, in [0, 1].

    Returns:
        Actions, shape (B,).

    Example:
        >>> epsilon_greedy_tensor(torch.tensor([[3.0, 1.0, -torch.inf]]), 0.0)
        tensor([0])
    """
    explores = torch.rand(len(q), device=q.device) < epsilon
    return torch.where(explores, _random_legal(q != -torch.inf), q.argmax(1))


def random_tensor_actions(space: spaces.Space[Any], num_envs: int, obs: Any, device: torch.device) -> Any:
    """Return uniformly random actions of N envs, legal ones where observations have an ``action_mask``.

    Args:
        space: Action space of one env: Discrete, MultiDiscrete, MultiBinary, a Box with finite bounds, or a Dict of
            these, in which the mask is that of ``action_type``.
        num_envs: Number of envs N, >= 1.
        obs: Observations, leading axis N.
        device: Device of the actions.

    Raises:
        TypeError: If the space is none of these.

    Example:
        >>> random_tensor_actions(spaces.Discrete(1, start=5), 2, torch.zeros(2), torch.device("cpu"))
        tensor([5, 5])
    """
    mask = obs.get("action_mask") if isinstance(obs, dict) else None
    if isinstance(space, spaces.Dict):
        return {
            name: random_tensor_actions(part, num_envs, obs if name == "action_type" else None, device)
            for name, part in space.spaces.items()
        }
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        sizes, first = discrete_counts(space)
        masks = [None] * len(sizes) if mask is None else mask.split(sizes, dim=1)
        drawn = [
            torch.randint(size, (num_envs,), device=device) if legal is None else _random_legal(legal != 0)
            for size, legal in zip(sizes, masks, strict=True)
        ]
        shifted = [part + start for part, start in zip(drawn, first, strict=True)]
        return torch.stack(shifted, 1).reshape(num_envs, *cast("tuple[int, ...]", space.shape))
    if not isinstance(space, spaces.Box) or not space.is_bounded():
        raise TypeError(f"random actions on a device need a discrete space or a Box with finite bounds, got {space}")
    low, high = (torch.as_tensor(bound, dtype=torch.float32, device=device) for bound in (space.low, space.high))
    uniform = torch.rand(num_envs, *space.shape, device=device)
    if np.issubdtype(space.dtype, np.integer):
        return torch.minimum((low + (high - low + 1) * uniform).floor(), high).long()
    return torch.minimum(low + (high - low) * uniform, high)


def _random_legal(legal: Tensor) -> Tensor:
    """Return a uniformly random legal action of each row, shape (B,), of what is legal, shape (B, A)."""
    return torch.rand(legal.shape, device=legal.device).masked_fill_(~legal, -1.0).argmax(1)
