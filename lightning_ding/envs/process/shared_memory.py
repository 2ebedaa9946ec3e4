"""The memory that an env process shares with its parent, and copies between it and the arrays of the vector env.

Shapes: N envs, K of them in a process.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from copy import deepcopy
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from lightning_ding.envs.answers import Layout, layout_of

if TYPE_CHECKING:
    from lightning_ding.envs.process.env_process import EnvProcess

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


class Observations:
    """The last valid observations of N envs, from the observation space of one env."""

    def __init__(self, space: Any, num_envs: int) -> None:
        self._space = space
        self._layout = layout_of(space)
        self._batch: Any = create_empty_array(space, n=num_envs)
        self._leaves: list[NDArray[Any]] = [] if self._layout is None else self._layout.split(self._batch)
        self._items: list[Any] = [None] * num_envs

    def take(self, processes: Sequence[EnvProcess]) -> None:
        """Copy the observations of all envs of the given processes."""
        for process in processes:
            self._take(process, process.rows)

    def take_some(self, processes: Sequence[EnvProcess], env_ids: Sequence[int]) -> None:
        """Copy the observations of the given envs, which are in the given processes."""
        for process in processes:
            for env_id in env_ids:
                if env_id in process.env_ids:
                    self._take(process, slice(env_id, env_id + 1))

    def batch(self, is_copy: bool) -> Any:
        """Return the observations of all envs, as a copy or as the memory that the next step overwrites."""
        if self._layout is None:
            self._batch = concatenate(self._space, self._items, self._batch)
        return deepcopy(self._batch) if is_copy else self._batch

    def of(self, env_id: int) -> Any:
        """Return a copy of the observation of one env."""
        if self._layout is None:
            return deepcopy(self._items[env_id])
        return self._layout.join([leaf[env_id].copy() for leaf in self._leaves])

    def state(self) -> Any:
        """Return a copy of all observations."""
        return deepcopy(self._items if self._layout is None else self._batch)

    def load(self, state: Any) -> None:
        """Restore what ``state`` returned."""
        if self._layout is None:
            self._items = list(state)
            return
        for leaf, saved in zip(self._leaves, self._layout.split(state), strict=True):
            leaf[...] = saved

    def fault_infos(self, failed: Sequence[EnvProcess], are_final: bool) -> dict[int, dict[str, Any]]:
        """Return by env the info of a fault that ends its episode, as ``final_info`` if ``are_final``."""
        faults: dict[int, dict[str, Any]] = {}
        for process in failed:
            for env_id in process.env_ids:
                fault = {"abnormal": True, "fault": process.failure.fault_of(env_id) if process.failure else ""}
                final = {"final_obs": self.of(env_id), "final_info": fault}
                faults[env_id] = final if are_final else fault
        return faults

    def _take(self, process: EnvProcess, rows: slice) -> None:
        assert process.block is not None
        first = process.env_ids.start
        for leaf, column in zip(self._leaves, process.block.obs, strict=True):
            leaf[rows] = column[rows.start - first : rows.stop - first]
        if self._layout is None:
            for number, obs, _, _ in process.answer:
                self._items[first + number] = obs


def put_actions(processes: Sequence[EnvProcess], leaves: Sequence[NDArray[Any]]) -> None:
    """Write the leaves of actions, each with leading axis N, into the memory shared with the processes."""
    for process in processes:
        for column, leaf in zip(process.block.action if process.block else [], leaves, strict=False):
            column[...] = leaf[process.rows]


def outcomes(processes: Sequence[EnvProcess]) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return ``reward``, ``terminated`` and ``truncated`` of the last step, each of shape (N,)."""
    blocks = [process.block for process in processes if process.block is not None]
    reward = np.concatenate([block.reward for block in blocks])
    terminated = np.concatenate([block.terminated for block in blocks])
    return reward, terminated, np.concatenate([block.truncated for block in blocks])
