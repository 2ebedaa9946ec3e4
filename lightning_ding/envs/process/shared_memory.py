"""The memory that an env process shares with its parent.

Shapes: K envs in the process.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_ding.envs.answers import Layout

ALIGNMENT = 64  # bytes; a cache line


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
        self.observations, self.actions = observations, actions
        self.position: NDArray[np.int64] = arrays[0]
        """Number of the current env within the process, and ``IDLE``, ``STEPPING`` or ``RESETTING``."""
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
