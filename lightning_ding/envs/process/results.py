"""Copies between the arrays of a vector env and the memory shared with its processes.

Shapes: N envs.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from lightning_ding.envs.layout import layout_of
from lightning_ding.envs.process.env_process import EnvProcess


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
