"""From gymnasium spaces to the shapes in a model's config."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

Shape = Any  # int, tuple of ints, or a dict of shapes


def obs_shape(space: spaces.Space[Any]) -> Shape:
    """Return an observation space as a size, a shape, or a dict of them.

    Raises:
        TypeError: If the space is neither Box, MultiBinary nor a Dict of these.
    """
    if isinstance(space, spaces.Dict):
        return {name: obs_shape(below) for name, below in space.spaces.items()}
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        shape = tuple(space.shape)
        return shape if len(shape) == 3 else math.prod(shape) if len(shape) != 1 else shape[0]
    raise TypeError(
        f"the observation space must be a Box, MultiBinary or a Dict of these, got {space}; "
        "gymnasium.wrappers.FlattenObservation turns the others into a Box"
    )


def discrete_action_shape(space: spaces.Space[Any], policy: str) -> Shape:
    """Return a discrete action space as a number of actions, or a tuple of them.

    Args:
        space: The action space of one env.
        policy: Name of the policy that asks, for the message.

    Raises:
        TypeError: If the space is neither Discrete nor a one-dimensional MultiDiscrete, or does not count from 0.
    """
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and not space.start.any():
        return tuple(int(size) for size in space.nvec)
    raise TypeError(f"{policy} needs a Discrete or MultiDiscrete action space that counts from 0, got {space}")


def continuous_action_shape(space: spaces.Space[Any], policy: str) -> int:
    """Return the number of dimensions of a continuous action space.

    Args:
        space: The action space of one env.
        policy: Name of the policy that asks, for the message.

    Raises:
        TypeError: If the space is not a one-dimensional Box of floats.
    """
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating):
        return space.shape[0]
    raise TypeError(
        f"{policy} needs a one-dimensional Box of floats as its action space, got {space}; "
        "gymnasium.wrappers.TransformAction makes a Box of another shape or type into one"
    )


def action_bounds(space: spaces.Box) -> tuple[list[float], list[float]]:
    """Return the smallest and the largest value of each dimension, as the shortest decimals that stand for them.

    Example:
        >>> action_bounds(spaces.Box(-0.4, 0.4, (1,), np.float32))
        ([-0.4], [0.4])
    """
    low, high = ([float(str(bound)) for bound in bounds.ravel()] for bounds in (space.low, space.high))
    return low, high


def actor_shapes(space: spaces.Space[Any], policy: str) -> dict[str, Any]:
    """Return ``action_space`` and ``action_shape`` of any action space, and the bounds of a continuous one.

    Args:
        space: The action space of one env. A hybrid one is a Dict of a Discrete ``action_type`` and a Box
            ``action_args``.
        policy: Name of the policy that asks, for the message.

    Returns:
        ``action_space``: discrete, continuous or hybrid; ``action_shape``; ``action_low`` and ``action_high``.

    Raises:
        TypeError: If the space is none of those.
    """
    if isinstance(space, spaces.Dict) and set(space.spaces) == {"action_type", "action_args"}:
        of_type = discrete_action_shape(space["action_type"], policy)
        of_args = actor_shapes(space["action_args"], policy)
        both = {"action_type_shape": of_type, "action_args_shape": of_args["action_shape"]}
        return of_args | {"action_space": "hybrid", "action_shape": both}
    if isinstance(space, spaces.Box):
        shape = continuous_action_shape(space, policy)
        low, high = action_bounds(space)
        return {"action_space": "continuous", "action_shape": shape, "action_low": low, "action_high": high}
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        hybrid = "a hybrid action space must be a Dict of a Discrete action_type and a Box action_args"
        raise TypeError(f"{policy}: {hybrid}, got {space}")
    return {"action_space": "discrete", "action_shape": discrete_action_shape(space, policy)}
