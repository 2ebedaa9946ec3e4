"""The memory that an env process shares with its parent, and the layout of spaces in it.

Shapes: K envs in the process, N envs in the vector env.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

ALIGNMENT = 64  # bytes; a cache line
STEPPING, RESETTING = 1, 2


class SharedArrays:
    """Arrays of K envs in memory that an env process shares with its parent.

    Processes do not share memory with each other, so one that fails cannot overwrite the results of another. The memory
    is an unnamed file, which disappears when both processes have closed it.

    Args:
        num_envs: Number of envs K.
        observations: Layout of the observation space; None if observations go through the pipe.
        actions: Layout of the action space; None if actions go through the pipe.
        file: Descriptor of the file of existing arrays; None creates a new file.
    """

    def __init__(self, num_envs: int, observations: Layout | None, actions: Layout | None, file: int | None = None):
        columns: list[tuple[tuple[int, ...], Any]] = [((2,), np.int64), ((num_envs,), np.float64)]
        columns += [((num_envs,), np.bool_)] * 2
        seen = [] if observations is None else observations.columns(num_envs)
        done = [] if actions is None else actions.columns(num_envs)
        starts, size = [], 0
        for shape, dtype in [*columns, *seen, *done]:
            starts.append(size)
            size += -(-prod(shape) * np.dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT
        self.file = make_file(size) if file is None else file
        memory = mmap.mmap(self.file, size)
        arrays: list[NDArray[Any]] = [
            np.ndarray(shape, dtype, memory, start)
            for (shape, dtype), start in zip([*columns, *seen, *done], starts, strict=True)
        ]
        self.position: NDArray[np.int64] = arrays[0]
        """Number of the current env within the process, and ``STEPPING`` or ``RESETTING``."""
        self.reward: NDArray[np.float64] = arrays[1]
        self.terminated: NDArray[np.bool_] = arrays[2]
        self.truncated: NDArray[np.bool_] = arrays[3]
        self.obs = arrays[4 : 4 + len(seen)]
        """Leaves of the observations, with leading axis K."""
        self.action = arrays[4 + len(seen) :]
        """Leaves of the actions, with leading axis K."""

    def close_file(self) -> None:
        """Close the descriptor; the arrays stay valid."""
        os.close(self.file)


def make_file(size: int) -> int:
    """Return the descriptor of an unnamed file in memory; raise ``OSError`` if there is not enough."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("envs", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    os.truncate(file, size)
    return file


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
