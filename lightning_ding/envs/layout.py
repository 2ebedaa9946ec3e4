"""The layout of a space: the arrays of which its elements consist.

Shapes: N envs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

PLAIN = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


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
