"""From gymnasium spaces to what a model's config says of observations and actions.

Discrete actions are counted from 0 by networks, action masks and buffers, and from where their space does by envs: see
:class:`~lightning_ding.policy.action_start.ActionStart`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from lightning_ding.rl import discrete_counts

Shape = Any  # int, tuple of ints, a description with "kind" (see model.features), or a dict of these

SMALLEST_SIDE = 7  # of an image in a stack of images
MOST_CHANNELS = 4
SMALLEST_SIDE_OF_BYTES = 32  # of an image without an axis of channels; smaller ones may be stacked vectors
LARGEST_FLAT = 4096  # numbers in several axes that are taken for a vector


def obs_shape(space: spaces.Space[Any]) -> Shape:
    """Return what ``model.obs_shape`` says of an observation space.

    A Box is a size, or with three axes an image, or with four a stack of images. Bytes that are no images with values
    up to 255 are described, so that they are scaled to [0, 1]; so are integers of Discrete and MultiDiscrete, which
    the network sees as one-hot vectors. A Dict is a dict of these, and so is a Tuple, with the keys "0", "1" and so on.

    Raises:
        TypeError: If the space is none of those, or a Box of several axes is neither an image nor a short vector.

    Example:
        >>> obs_shape(spaces.Tuple([spaces.Discrete(5, start=1), spaces.Box(-1, 1, (3,))]))
        {'0': {'kind': 'one_hot', 'sizes': (5,), 'start': (1,)}, '1': 3}
    """
    if isinstance(space, spaces.Dict):
        return {name: obs_shape(below) for name, below in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {str(place): obs_shape(below) for place, below in enumerate(space.spaces)}
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        sizes, start = discrete_counts(space)
        return {"kind": "one_hot", "sizes": sizes, "start": start}
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        return _array_shape(space)
    raise TypeError(
        "the observation space must be made of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple, got "
        f"{space}; gymnasium.wrappers.TransformObservation makes another one of it"
    )


def discrete_action(space: spaces.Space[Any], policy: str) -> dict[str, Any]:
    """Return ``action_shape`` and ``action_start`` of a discrete action space.

    Args:
        space: The action space of one env.
        policy: Name of the policy that asks, for the message.

    Returns:
        ``action_shape``: the number of actions, or a tuple of them; ``action_start``: the env's first action, or a
        tuple with that of each dimension. A MultiBinary action has dimensions with two actions each.

    Raises:
        TypeError: If the space is neither Discrete nor a one-dimensional MultiDiscrete or MultiBinary.
    """
    if isinstance(space, spaces.Discrete):
        return {"action_shape": int(space.n), "action_start": int(space.start)}
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)) and len(space.shape) == 1:
        sizes, start = discrete_counts(space)
        return {"action_shape": sizes, "action_start": start}
    hint = ""
    if is_integer_box(space):
        hint = "; use a MultiDiscrete in place of a Box of integers"
    elif isinstance(space, spaces.Box):
        hint = "; ppo, a2c, pg, ddpg, td3 and sac take a Box"
    raise TypeError(
        f"{policy} needs a Discrete action space, or a MultiDiscrete or MultiBinary with one axis, got {space}{hint}"
    )


def is_integer_box(space: spaces.Space[Any]) -> bool:
    """Return whether a space is a Box of integers."""
    return isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer)


def continuous_action(space: spaces.Space[Any], policy: str) -> dict[str, Any]:
    """Return ``action_shape``, ``action_low``, ``action_high`` and ``action_integer`` of a Box of actions.

    Args:
        space: The action space of one env; of integers, the policy rounds its actions to them.
        policy: Name of the policy that asks, for the message.

    Raises:
        TypeError: If the space is not a one-dimensional Box.
    """
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        hint = "gymnasium.wrappers.TransformAction makes a Box of another shape into one"
        if isinstance(space, spaces.Discrete):
            hint = "dqn, c51, qrdqn, rainbow, ppo, a2c and pg take it"
        raise TypeError(f"{policy} needs a one-dimensional Box as its action space, got {space}; {hint}")
    low, high = action_bounds(space)
    bounds = {"action_low": low, "action_high": high}
    return {"action_shape": space.shape[0], **bounds, "action_integer": is_integer_box(space)}


def action_bounds(space: spaces.Box) -> tuple[list[float], list[float]]:
    """Return the smallest and the largest value of each dimension, as the shortest decimals that stand for them.

    Example:
        >>> action_bounds(spaces.Box(-0.4, 0.4, (1,), np.float32))
        ([-0.4], [0.4])
    """
    low, high = ([float(str(bound)) for bound in bounds.ravel()] for bounds in (space.low, space.high))
    if is_integer_box(space):  # where the env says no bound, gymnasium has the smallest or largest integer
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


def _array_shape(space: spaces.Box | spaces.MultiBinary) -> Shape:
    shape = tuple(space.shape)
    is_image = len(shape) == 3 or (len(shape) == 4 and _is_image(shape[1:]))
    if space.dtype == np.uint8 and isinstance(space, spaces.Box):
        high = int(space.high.max(initial=1))
        if is_image and high < 255:
            return {"kind": "bytes", "shape": shape, "high": max(high, 1)}
        is_plane = len(shape) == 2 and min(shape) >= SMALLEST_SIDE_OF_BYTES
        if not is_image and high == 255:
            return {"kind": "bytes", "shape": shape if is_plane else (_flat_size(space),)}
    return shape if is_image else _flat_size(space)


def _is_image(shape: tuple[int, ...]) -> bool:
    channels, *sides = (shape[-1], *shape[:-1]) if shape[-1] < shape[0] else shape
    return channels <= MOST_CHANNELS and min(sides) >= SMALLEST_SIDE


def _flat_size(space: Any) -> int:
    size: int = math.prod(space.shape)
    if len(space.shape) > 1 and size > LARGEST_FLAT:
        raise TypeError(
            f"the observation space {space} has {len(space.shape)} axes, but is neither an image (three axes) nor a "
            f"stack of images (four, with at most {MOST_CHANNELS} channels), and its {size} numbers are many for a "
            "vector: gymnasium.wrappers.ReshapeObservation makes an image of it, FlattenObservation a vector"
        )
    return size
