"""Conversion between an env's spaces and a network's, and the stand-in for a network until its shapes are known.

Networks, action masks and buffers count discrete actions from 0, and have continuous ones in [-1, 1]; envs have other
units, see :class:`ActionStart` and :class:`~lightning_ding.policy.base.action_bounds.ActionBounds`.

Shapes: B batch, D dimensions of a multi-discrete action.
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
    if not isinstance(space, (spaces.Box, spaces.MultiBinary)):
        raise TypeError(
            "the observation space must be made of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple, got "
            f"{space}; use gymnasium.wrappers.TransformObservation to change it"
        )
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


class ActionStart:
    """Adds and subtracts the first number of the env's discrete actions; other actions are unchanged.

    Args:
        start: The env's first action, or that of each dimension, D of them; None means 0.

    Example:
        >>> ActionStart(5).to_env(torch.tensor([0, 2]))
        tensor([5, 7])
    """

    def __init__(self, start: int | Sequence[int] | None = None) -> None:
        numbers = list(start) if isinstance(start, Sequence) else [start or 0]
        self._start: Any = numbers if isinstance(start, Sequence) else numbers[0]
        self._is_zero = not any(numbers)

    def to_env(self, action: Any) -> Any:
        """Return actions as the env counts them, of actions counted from 0, shape (B,) or (B, D), or a hybrid dict."""
        return action if self._is_zero else self._shifted(action, 1)

    def from_env(self, action: Any) -> Any:
        """Return actions counted from 0, of actions as the env counts them."""
        return action if self._is_zero else self._shifted(action, -1)

    def _shifted(self, action: Any, sign: int) -> Any:
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
    kept = dict(section)
    for name in (*ACTION_UNITS, "dict_encoder"):
        kept.pop(name, None)
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
    missing = {}
    for name, shape in found.items():
        plain, given = plain_shape(shape), plain_shape(asked[name])
        if asked[name] is None:
            missing[name] = shape
        elif given != plain and not (name == "obs_shape" and _is_flattened(given, plain)):
            hint = "" if name != "obs_shape" else "; leave it None to take it from the env"
            raise ValueError(f"model.{name} is {asked[name]} in the config, but the env has {plain}{hint}")
    return missing


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


class MissingNetwork(nn.Module):
    """Raises an error wherever a policy without a network uses it.

    Args:
        text: The error, which says what is missing.

    Example:
        >>> MissingNetwork("there is no network").compute_actor
        Traceback (most recent call last):
        ...
        AttributeError: there is no network
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raise RuntimeError."""
        raise RuntimeError(self.text)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise AttributeError(self.__dict__.get("text", name), name=name, obj=self) from None


def no_network(policy: Any) -> str:
    """Return why a policy has no network, and how it gets one."""
    name = type(policy).__name__
    if not policy.needs_model:
        return f"{name} has no network, because its enable_field is {policy.enable_field}"
    section = policy._model_section()
    missing = " and ".join(f"model.{one}" for one in policy.shape_names if section[one] is None)
    return (
        f"{name} has no spaces: set {missing} in its config, call build(observation_space, action_space), or use a "
        "datamodule that has an env"
    )


def check_network(policy: Any) -> None:
    """Raise if the network of a policy lacks a part that learning uses.

    Raises:
        TypeError: Naming the parts that are needed, and those that are missing.
    """
    needed, model = policy.parts_of_model, policy.model
    missing = [part for part in needed if not hasattr(model, part)]
    if missing:
        allowed = f"have {', '.join(needed)} to learn"
        got = f"a {type(model).__name__} without {', '.join(missing)}"
        raise TypeError(f"the model of {type(policy).__name__} must {allowed}, got {got}")
