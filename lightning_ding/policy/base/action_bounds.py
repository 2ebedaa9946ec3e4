"""Continuous and hybrid actions: the shapes and bounds of their spaces, and the way from [-1, 1] to the env and back.

Shapes: B batch, A dimensions of a continuous action.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.policy.base.spaces import discrete_action, is_integer_box

LARGEST_INTEGER = 2.0**63 - 2.0**39  # the largest one of 64 bits that single precision holds


def continuous_action(space: spaces.Space[Any], policy: str) -> dict[str, Any]:
    """Return ``action_shape``, ``action_low``, ``action_high`` and ``action_integer`` of a Box of actions.

    Args:
        space: The action space of one env; the policy rounds its actions for a Box of integers.
        policy: Name of the policy that asks, for the message.

    Raises:
        TypeError: If the space is not a one-dimensional Box.
    """
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        hint = "use gymnasium.wrappers.TransformAction to change the shape of a Box"
        if isinstance(space, spaces.Discrete):
            hint = "dqn, discrete_sac and ppo take it, and docs/algorithms.md lists more"
        elif isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
            hint = "dqn, ppo and a2c take it, and docs/algorithms.md lists more"
        raise TypeError(f"{policy} needs a one-dimensional Box as its action space, got {space}; {hint}")
    low, high = action_bounds(space)
    bounds = {"action_low": low, "action_high": high}
    return {"action_shape": space.shape[0], **bounds, "action_integer": is_integer_box(space)}


def action_bounds(space: spaces.Box) -> tuple[list[float], list[float]]:
    """Return the smallest and the largest value of each dimension, as the shortest decimals that represent them.

    Example:
        >>> action_bounds(spaces.Box(-0.4, 0.4, (1,), np.float32))
        ([-0.4], [0.4])
    """
    low, high = ([float(str(bound)) for bound in bounds.ravel()] for bounds in (space.low, space.high))
    if is_integer_box(space):  # without a bound, gymnasium has the smallest or largest integer
        low = [one if known else -math.inf for one, known in zip(low, space.bounded_below.ravel(), strict=True)]
        high = [one if known else math.inf for one, known in zip(high, space.bounded_above.ravel(), strict=True)]
    return low, high


def actor_shapes(space: spaces.Space[Any], policy: str) -> dict[str, Any]:
    """Return ``action_space`` and what :func:`discrete_action` or :func:`continuous_action` say of an action space.

    Args:
        space: The action space of one env. A hybrid one is a Dict of a Discrete ``action_type`` and a Box
            ``action_args``.
        policy: Name of the policy that asks, for the message.

    Returns:
        ``action_space``: discrete, continuous or hybrid; ``action_shape``; ``action_start`` of a choice;
        ``action_low``, ``action_high`` and ``action_integer`` of numbers.

    Raises:
        TypeError: If the space is none of those.
    """
    if isinstance(space, spaces.Dict) and set(space.spaces) == {"action_type", "action_args"}:
        choice = discrete_action(space["action_type"], policy)
        numbers = continuous_action(space["action_args"], policy)
        both = {"action_type_shape": choice["action_shape"], "action_args_shape": numbers["action_shape"]}
        return choice | numbers | {"action_space": "hybrid", "action_shape": both}
    if isinstance(space, spaces.Box):
        return {"action_space": "continuous", **continuous_action(space, policy)}
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        hybrid = "a hybrid action space must be a Dict of a Discrete action_type and a Box action_args"
        raise TypeError(f"{policy}: {hybrid}, got {space}")
    return {"action_space": "discrete", **discrete_action(space, policy)}


class ActionBounds(nn.Module):
    """Maps actions in [-1, 1] to the box of the env and back; [-1, 1] itself until :meth:`set` is called.

    Values outside the box, also those that rounding moves there, are clipped to its bounds. In a box of integers, each
    integer has an equal part of [-1, 1].

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
        """Set the bounds of the env.

        Args:
            low: Smallest value of each dimension, length A.
            high: Largest value of each dimension, length A, above ``low``.
            integer: Whether the env's actions are integers.

        Raises:
            ValueError: If a length is not A, a bound is not above its counterpart, or a bound is infinite and
                ``allow_unbounded`` is False. One that single precision cannot hold counts as infinite.
        """
        size = len(self.scale)
        require(len(low) == len(high) == size, "action_low and action_high", f"of {size} dimensions", (low, high))
        for dimension, (smallest, largest) in enumerate(zip(low, high, strict=True)):
            first, last = _as_single(smallest, integer, up=True), _as_single(largest, integer, up=False)
            finite = math.isfinite(first) and math.isfinite(last)
            if not finite and not self.allow_unbounded:
                raise ValueError(
                    f"dimension {dimension} of the action must have finite bounds, got [{smallest}, {largest}]; "
                    "give the env's action space finite bounds, for example with gymnasium.wrappers.TransformAction"
                )
            allowed = f"below action_high ({largest}) in single precision, in which networks act"
            require(first < last, f"action_low[{dimension}]", allowed, smallest)
            self.scale[dimension] = _as_single((largest - smallest + integer) / 2) if finite else 1.0
            self.bias[dimension] = _as_single((largest + smallest) / 2) if finite else 0.0
            self.low[dimension], self.high[dimension] = first, last
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


def _as_single(number: float, integer: bool = False, up: bool = False) -> float:
    """Return a number in single precision; a bound of integers never outside its box, nor of 64 bits.

    Args:
        number: Any number; one that is too large becomes infinite.
        integer: Whether it is the bound of a box of integers.
        up: Whether it is the lower bound.
    """
    with np.errstate(over="ignore"):
        single = np.float32(number)
    if not integer or not math.isfinite(number):
        return float(single)
    if (float(single) < number) if up else (float(single) > number):
        single = np.nextafter(single, np.float32(np.inf if up else -np.inf))
    return min(float(single), LARGEST_INTEGER)
