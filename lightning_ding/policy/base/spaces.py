"""Conversion between an env's spaces and a network's: shapes, bounds of actions, and their first numbers.

Networks, action masks and buffers count discrete actions from 0, and continuous actions in [-1, 1]; envs have units of
their own, see :class:`ActionStart` and :class:`ActionBounds`.

Shapes: B batch, A dimensions of a continuous action, D dimensions of a multi-discrete action.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.rl import discrete_counts

Shape = Any  # int, tuple of ints, a description with "kind" (see model.features), or a dict of these
SMALLEST_SIDE = 7  # minimum side, in pixels, of an image in a stack
MOST_CHANNELS = 4
SMALLEST_SIDE_OF_BYTES = 32  # minimum side of an image without a channel axis; smaller arrays may be stacked vectors
LARGEST_INTEGER = 2.0**63 - 2.0**39  # the largest one of 64 bits that single precision holds
LARGEST_FLAT = 4096  # numbers in several axes that are taken for a vector


def obs_shape(space: spaces.Space[Any]) -> Shape:
    """Return the ``model.obs_shape`` of an observation space.

    A Box is a size, or with three axes an image, or with four a stack of images. Bytes that are no images with values
    up to 255 are described, so that they are scaled to [0, 1]; so are integers of Discrete and MultiDiscrete, which
    the network gets as one-hot vectors. A Dict is a dict of these, and so is a Tuple, with the keys "0", "1" and so on.

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
        f"{space}; use gymnasium.wrappers.TransformObservation to change it"
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


class ActionStart:
    """Adds and subtracts the first number of the env's discrete actions; other actions are unchanged.

    Args:
        start: The env's first action, or that of each dimension, D of them; None means 0.

    Example:
        >>> ActionStart(5).to_env(torch.tensor([0, 2]))
        tensor([5, 7])
    """

    def __init__(self, start: int | Sequence[int] | None = None) -> None:
        numbers = start if isinstance(start, Sequence) else [start or 0]
        self._start: int | list[int] = list(numbers) if isinstance(start, Sequence) else numbers[0]
        self._is_zero = not any(numbers)

    def to_env(self, action: Any) -> Any:
        """Return actions as the env counts them, of actions counted from 0, shape (B,) or (B, D), or a hybrid dict."""
        return self._shifted(action, 1)

    def from_env(self, action: Any) -> Any:
        """Return actions counted from 0, of actions as the env counts them."""
        return self._shifted(action, -1)

    def _shifted(self, action: Any, sign: int) -> Any:
        if self._is_zero:
            return action
        if isinstance(action, Mapping):
            return {**action, "action_type": self._shifted(action["action_type"], sign)}
        if isinstance(action, Tensor):
            return action + sign * torch.tensor(self._start, device=action.device)
        return action + sign * np.asarray(self._start)


ACTION_UNITS = ("action_low", "action_high", "action_integer", "action_start")
"""Entries of a config's ``model`` section that describe the env's action units; networks do not get them."""


def network_section(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a config's ``model`` section that are arguments of the network.

    Raises:
        ValueError: If ``dict_encoder`` has no effect.
    """
    kept = {name: value for name, value in section.items() if name not in (*ACTION_UNITS, "dict_encoder")}
    if section.get("dict_encoder", "joined") == "joined":
        return kept
    from lightning_ding.model.dict_encoders import dict_encoder

    kind = dict_encoder(section)
    require(kept["encoder"] is None, "model.encoder", f"None with model.dict_encoder {kind!r}", kept["encoder"])
    return kept | {"encoder": kind}


def missing_shapes(
    asked: Mapping[str, Any], found: Mapping[str, Any], action_space: spaces.Space[Any]
) -> dict[str, Any]:
    """Return the entries of a config's ``model`` section that the env provides and the config leaves open.

    Args:
        asked: The ``model`` section.
        found: Entries of the section for the env's spaces.
        action_space: The env's action space, for the message.

    Raises:
        ValueError: If the shapes in the config differ from those of the env, or if it has action units that the env's
            actions do not have.
    """
    for name in ACTION_UNITS:
        useless = asked.get(name) is not None and name not in found
        require(not useless, f"model.{name}", f"None for an env with the actions {action_space}", asked.get(name))
    for name, shape in found.items():
        plain = plain_shape(shape)
        given = plain_shape(asked[name])
        if given is not None and given != plain and not (name == "obs_shape" and _is_flattened(given, plain)):
            hint = "" if name != "obs_shape" else "; leave it None to take it from the env"
            raise ValueError(f"model.{name} is {asked[name]} in the config, but the env has {plain}{hint}")
    return {name: value for name, value in found.items() if asked[name] is None}


def plain_shape(shape: Any) -> Any:
    """Return a shape with sequences as lists and one-element sequences as numbers, so that two can be compared."""
    if isinstance(shape, Mapping):
        return {name: plain_shape(below) for name, below in shape.items()}
    if isinstance(shape, (list, tuple)):
        return list(shape) if len(shape) != 1 else shape[0]
    return shape


def _is_flattened(size: Any, shape: Any) -> bool:
    """Return whether a config's observation is the env's flattened, as an encoder of vectors takes it."""
    if isinstance(size, Mapping) and isinstance(shape, Mapping):
        return size.keys() == shape.keys() and all(_is_flattened(size[name], shape[name]) for name in shape)
    return bool(size == shape or (isinstance(shape, list) and size == math.prod(shape)))
