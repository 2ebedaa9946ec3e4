"""Checks of the values that an env returns, the same in this process and in env processes, and the layout of spaces.

The types of each answer are checked in every step. Whether an observation has the shape and dtype of its space is only
looked at in detail after it could not be copied, so a good observation costs nothing.

Shapes: N envs.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

GUIDE = "see https://gymnasium.farama.org/introduction/migration_guide/"
NUMBERS = frozenset({float, np.float64, np.float32, np.int64})
"""The usual types of rewards; other numbers are converted."""
LARGE = 2**53
"""A size from which integers are converted, because they may be too large for a float."""
FLAGS = frozenset({bool, np.bool_})
"""The usual types of ``terminated`` and ``truncated``; the numbers 0 and 1 are converted."""
PLAIN = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""Spaces whose elements are one array."""
INDICES = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""Spaces whose values networks use as indices, so that a value outside them cannot be used."""
StepValues = tuple[Any, Any, Any, Any, dict[str, Any]]


class BrokenEnvError(ValueError):
    """An env violates gymnasium's API; the message names the env, the method and the returned value."""


class InvalidAnswerError(BrokenEnvError):
    """An env returned a value that violates gymnasium's API; the message does not name the env."""


def step_values(answer: Any) -> StepValues:
    """Return observation, reward, terminated, truncated and info from the answer of ``step``.

    Raises:
        InvalidAnswerError: If the answer is no tuple of 5, the reward is no number, ``terminated`` or ``truncated`` is
            neither a bool nor 0 or 1, or the info is no dict.

    Example:
        >>> step_values((7, 1.5, np.float32(0), False, {}))
        (7, 1.5, False, False, {})
    """
    if type(answer) is tuple and len(answer) == 5:
        _, reward, terminated, truncated, info = answer
        is_number = type(reward) in NUMBERS or (type(reward) is int and -LARGE < reward < LARGE)
        if is_number and type(terminated) in FLAGS and type(truncated) in FLAGS and type(info) is dict:
            return answer
    return _converted(answer)


def _converted(answer: Any) -> StepValues:
    if not (isinstance(answer, tuple) and len(answer) == 5):
        old = "; a single `done` is the old API" if isinstance(answer, tuple) and len(answer) == 4 else ""
        wanted = "step() must return (observation, reward, terminated, truncated, info)"
        raise InvalidAnswerError(f"{wanted}, got {describe(answer)}{old}; {GUIDE}")
    obs, reward, terminated, truncated, info = answer
    if not _is_number(reward):
        raise InvalidAnswerError(f"the reward of step() must be a number, got {describe(reward)}")
    for what, value in (("terminated", terminated), ("truncated", truncated)):
        if not _is_flag(value):
            raise InvalidAnswerError(f"{what} of step() must be a bool, got {describe(value)}")
    if not isinstance(info, dict):
        raise InvalidAnswerError(f"the info of step() must be a dict, got {describe(info)}")
    return obs, float(reward), bool(terminated), bool(truncated), info


def reset_values(answer: Any) -> tuple[Any, dict[str, Any]]:
    """Return observation and info from the answer of ``reset``.

    Raises:
        InvalidAnswerError: If the answer is no tuple of 2, or the info is no dict.
    """
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
        raise InvalidAnswerError(f"reset() must return (observation, info), got {describe(answer)}; {GUIDE}")
    obs, info = answer
    return obs, info


def observation_check(space: spaces.Space[Any]) -> Callable[[Any, str], None]:
    """Return a function that raises if an observation cannot be used as one of this space.

    The function takes an observation and the name of the method that returned it. The bounds of a Box are not checked:
    see :mod:`lightning_ding.envs.bounds`. Observations without a fixed size, such as texts, are not checked at all.

    Raises:
        InvalidAnswerError: From the function, if the shape or the kind of numbers of a leaf differs from its space, the
            type of the space cannot hold a number, or an index is outside of its space.
    """
    layout = layout_of(space)

    def check(obs: Any, method: str) -> None:
        if layout is None:
            return
        try:
            leaves = layout.split(obs)
        except (KeyError, IndexError, TypeError) as error:
            message = f"the observation of {method} must be in {space}, got {describe(obs)}"
            raise InvalidAnswerError(message) from error
        for leaf, below in zip(leaves, layout.leaves, strict=True):
            _check_leaf(leaf, below, method)

    return check


def _check_leaf(leaf: Any, space: Any, method: str) -> None:
    if getattr(leaf, "dtype", None) == space.dtype and leaf.shape == space.shape:
        array = leaf
    else:
        try:
            array = np.asarray(leaf)
        except ValueError:  # lists of different lengths
            array = np.empty((), dtype=object)
        fits = array.shape == (space.shape or ()) and np.can_cast(array.dtype, space.dtype, "same_kind")
        if not fits:
            message = f"the observation of {method} must have shape {space.shape} and dtype {space.dtype}"
            raise InvalidAnswerError(f"{message} for the space {space}, got {describe(leaf)}")
        lost = does_not_fit(array, space.dtype)
        if lost.any():
            message = f"the observation of {method} must fit into {space.dtype}, the type of the space {space}"
            raise InvalidAnswerError(f"{message}, got {array[lost][0]}")
    if isinstance(space, INDICES) and not space.contains(array.astype(space.dtype)):
        raise InvalidAnswerError(f"the observation of {method} must be in {space}, got {leaf}")


def does_not_fit(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[np.bool_]:
    """Return which numbers a type cannot hold: integers outside its range, and finite numbers that become infinite.

    Example:
        >>> does_not_fit(np.array([300, 7]), np.dtype(np.uint8)).tolist()
        [True, False]
    """
    if dtype.kind in "iu" and values.dtype.kind in "iu":
        limits = np.iinfo(dtype)
        lost: NDArray[np.bool_] = (values < limits.min) | (values > limits.max)
        return lost
    if dtype.kind == "f" and values.dtype.kind == "f":
        return np.asarray(np.isfinite(values) & (np.abs(values) > np.finfo(dtype).max))
    return np.zeros(values.shape, dtype=bool)


def place_of(step: int, resets: bool) -> str:
    """Return a description of what an env does: a step, counted from 1 in its episode, or a reset.

    Example:
        >>> place_of(3, resets=False), place_of(3, resets=True), place_of(0, resets=True)
        ('step 3 of its episode', 'reset() after step 3 of its episode', 'reset()')
    """
    if not step:
        return "reset()"
    return f"reset() after step {step} of its episode" if resets else f"step {step} of its episode"


def name_of(env: gym.Env[Any, Any]) -> str:
    """Return the class of an env, and its id if it has one."""
    name = type(env.unwrapped).__name__
    return f"{name} ({env.spec.id})" if env.spec is not None else name


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, which its traceback shows; before Python 3.11, log it as an error instead."""
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:
        logger.error("%s: %s", note, error)


def call_method(env: Any, name: str, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Call a method of an env or of one of its wrappers.

    Raises:
        TypeError: If the attribute of this name is not a method.
    """
    method = env.get_wrapper_attr(name)
    if not callable(method):
        raise TypeError(f"{name} must be a method of the env, got an attribute with the value {method!r}")
    method(*args, **kwargs)


def describe(value: Any) -> str:
    """Return a short description of a returned value: its size, its shape and dtype, or its type and beginning."""
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if hasattr(value, "shape") and hasattr(value, "dtype") and value.shape != ():
        return f"shape {tuple(value.shape)} and dtype {value.dtype}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, (str, bytes)) and np.ndim(value) == 0 and float(value) is not None
    except (TypeError, ValueError, OverflowError):
        return False


def _is_flag(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_)) or (_is_number(value) and float(value) in (0.0, 1.0))


class Layout:
    """The order of a space's leaves, each of which is an array.

    Args:
        space: Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of such spaces.

    Raises:
        TypeError: If elements of the space have no fixed size; ``layout_of`` then returns None.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.space = space
        self.leaves = list(_leaf_spaces(space))
        """Spaces of the leaves, in order; each has a shape and a dtype."""
        self._is_plain = isinstance(space, PLAIN)

    def split(self, value: Any) -> list[Any]:
        """Return the leaves of an element, or of a batch of elements, in order."""
        return [value] if self._is_plain else list(_split(self.space, value))

    def join(self, leaves: list[Any]) -> Any:
        """Return the element with the given leaves, the inverse of ``split``."""
        return leaves[0] if self._is_plain else _join(self.space, iter(leaves))

    def split_exact(self, batch: Any, num_envs: int) -> list[NDArray[Any]] | None:
        """Return the leaves of a batch, or None if the shape or dtype of a leaf differs from its space."""
        try:
            leaves = self.split(batch)
        except (KeyError, IndexError, TypeError):
            return None
        for leaf, space in zip(leaves, self.leaves, strict=True):
            shape = (num_envs, *_shape(space))
            if not isinstance(leaf, np.ndarray) or leaf.dtype != space.dtype or leaf.shape != shape:
                return None
        return leaves

    def columns(self, rows: int) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return the shape and dtype of an array with ``rows`` rows, for each leaf."""
        return [((rows, *_shape(space)), np.dtype(space.dtype)) for space in self.leaves]


def layout_of(space: spaces.Space[Any]) -> Layout | None:
    """Return the layout of a space, or None if its elements have no fixed size."""
    try:
        return Layout(space)
    except TypeError:
        return None


def _shape(space: spaces.Space[Any]) -> tuple[int, ...]:
    return space.shape or ()


def _children(space: Any) -> list[tuple[Any, Any]]:
    return list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))


def _leaf_spaces(space: Any) -> Iterator[Any]:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for _, below in _children(space):
            yield from _leaf_spaces(below)
    elif isinstance(space, PLAIN) and np.dtype(space.dtype).kind in "biufc":
        yield space
    else:
        raise TypeError(f"a space must be made of Box, Discrete, MultiDiscrete and MultiBinary, got {space}")


def _split(space: Any, value: Any) -> Iterator[Any]:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for key, below in _children(space):
            yield from _split(below, value[key])
    else:
        yield value


def _join(space: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _join(below, leaves) for key, below in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_join(below, leaves) for below in space.spaces)
    return next(leaves)
