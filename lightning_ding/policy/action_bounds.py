"""The bounds of a continuous action: networks work in [-1, 1], envs in units of their own.

Shapes: B batch, A dimensions of an action.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lightning_ding.config import require


class ActionBounds(nn.Module):
    """Maps actions in [-1, 1] to the box of the env and back; [-1, 1] itself until :meth:`set` is called.

    What lies outside of the box, or would do so by rounding, is moved to its bounds. In a box of integers, each integer
    has an equal part of [-1, 1].

    Args:
        action_size: A.
        allow_unbounded: Keep the units of a dimension where a bound is infinite, instead of raising.

    Example:
        >>> bounds = ActionBounds(1)
        >>> bounds.set([-2.0], [6.0])
        >>> bounds.to_env(torch.tensor([[-1.0], [0.5]])).tolist()
        [[-2.0], [4.0]]
    """

    scale: Tensor
    bias: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, action_size: int, allow_unbounded: bool = False) -> None:
        super().__init__()
        self.allow_unbounded = allow_unbounded
        self.register_buffer("scale", torch.ones(action_size))
        self.register_buffer("bias", torch.zeros(action_size))
        self.register_buffer("low", -torch.ones(action_size))  # infinite where there is none
        self.register_buffer("high", torch.ones(action_size))
        self.integer = False

    def set(self, low: Sequence[float], high: Sequence[float], integer: bool = False) -> None:
        """Take the bounds of the env.

        Args:
            low: Smallest value of each dimension, length A.
            high: Largest value of each dimension, length A, above ``low``.
            integer: Whether the env's actions are integers.

        Raises:
            ValueError: If a length is not A, a bound is not above its counterpart, or a bound is infinite and
                ``allow_unbounded`` is False.
        """
        size = len(self.scale)
        require(len(low) == len(high) == size, "action_low and action_high", f"of {size} dimensions", (low, high))
        for dimension, (smallest, largest) in enumerate(zip(low, high, strict=True)):
            finite = math.isfinite(smallest) and math.isfinite(largest)
            if not finite and not self.allow_unbounded:
                raise ValueError(
                    f"dimension {dimension} of the action must have finite bounds, got [{smallest}, {largest}]; "
                    "give the env's action space finite bounds, for example with gymnasium.wrappers.TransformAction"
                )
            require(smallest < largest, f"action_low[{dimension}]", f"below action_high ({largest})", smallest)
            self.scale[dimension] = (largest - smallest + integer) / 2 if finite else 1.0
            self.bias[dimension] = (largest + smallest) / 2 if finite else 0.0
            self.low[dimension], self.high[dimension] = smallest, largest
        self.integer = integer

    def to_env(self, action: Tensor) -> Tensor:
        """Return actions in the units of the env and within its bounds, shape (..., A), of normalised ones."""
        scaled = torch.addcmul(self.bias, action, self.scale)
        if self.integer:
            return scaled.round().clamp(self.low, self.high).long()
        return scaled.clamp(self.low, self.high)

    def from_env(self, action: Tensor) -> Tensor:
        """Return normalised actions, shape (..., A), of actions in the units of the env."""
        return (action - self.bias) / self.scale
