"""The memory that a process of envs shares with its parent, and with nobody else.

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

from lightning_ding.envs.process.space import Layout

ALIGNMENT = 64  # bytes; a cache line
STEPPING, RESETTING = 1, 2


class Block:
    """Arrays of K envs in memory that two processes share.

    Each process has a block of its own, so that one which breaks cannot write into the results of another. The file
    behind it has no name and goes when both have closed it.

    Args:
        num_envs: K.
        observations: What the envs observe; None if that does not fit, and goes through the pipe.
        actions: What they do; None likewise.
        file: Descriptor of a block's file; None makes a new one.
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
        self.at: NDArray[np.int64] = arrays[0]
        """The env that is being worked on, counted within the process, and whether it is stepping or resetting."""
        self.reward: NDArray[np.float64] = arrays[1]
        self.terminated: NDArray[np.bool_] = arrays[2]
        self.truncated: NDArray[np.bool_] = arrays[3]
        self.obs = arrays[4 : 4 + len(seen)]
        """Leaves of the observations, leading axis K."""
        self.action = arrays[4 + len(seen) :]
        """Leaves of the actions, leading axis K."""

    def close_file(self) -> None:
        """Close the descriptor; the arrays stay as long as somebody holds them."""
        os.close(self.file)


def make_file(size: int) -> int:
    """Return the descriptor of a nameless file in memory.

    Raises:
        OSError: If there is no room.
    """
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("envs", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    os.truncate(file, size)
    return file
