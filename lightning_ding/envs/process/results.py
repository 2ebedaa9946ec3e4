"""What the processes of a vector env have in their memories, put together and taken apart.

Shapes: N envs.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from lightning_ding.envs.process.link import EnvProcess
from lightning_ding.envs.process.space import layout_of


class Observations:
    """The last good observations of N envs.

    Args:
        space: Of one env.
        num_envs: N.
    """

    def __init__(self, space: Any, num_envs: int) -> None:
        self._space = space
        self._layout = layout_of(space)
        self._batch: Any = create_empty_array(space, n=num_envs)
        self._leaves: list[NDArray[Any]] = [] if self._layout is None else self._layout.split(self._batch)
        self._items: list[Any] = [None] * num_envs

    def take(self, processes: Sequence[EnvProcess]) -> None:
        """Take the observations of all envs in some processes."""
        for process in processes:
            self._take(process, process.rows)

    def take_some(self, processes: Sequence[EnvProcess], env_ids: Sequence[int]) -> None:
        """Take the observations of these envs, all of them in these processes."""
        for process in processes:
            for env_id in env_ids:
                if env_id in process.env_ids:
                    self._take(process, slice(env_id, env_id + 1))

    def batch(self, is_copy: bool) -> Any:
        """Return the observations of all envs; a copy, or what is written into by the next step."""
        if self._layout is None:
            self._batch = concatenate(self._space, self._items, self._batch)
        return deepcopy(self._batch) if is_copy else self._batch

    def of(self, env_id: int) -> Any:
        """Return a copy of the observation of one env."""
        if self._layout is None:
            return deepcopy(self._items[env_id])
        return self._layout.join([leaf[env_id].copy() for leaf in self._leaves])

    def of_faults(self, failed: Sequence[EnvProcess], are_final: bool) -> dict[int, dict[str, Any]]:
        """Return by env what its info says of a fault that ends its episode.

        Args:
            failed: Processes with a failure.
            are_final: Whether the info of the last step is beside that of the first.
        """
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
    """Write the leaves of actions, each with leading axis N, into the memories of the processes."""
    for process in processes:
        for column, leaf in zip(process.block.action if process.block else [], leaves, strict=False):
            column[...] = leaf[process.rows]


def outcomes(processes: Sequence[EnvProcess]) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return rewards, terminated and truncated of the last step, each of shape (N,)."""
    blocks = [process.block for process in processes if process.block is not None]
    reward = np.concatenate([block.reward for block in blocks])
    terminated = np.concatenate([block.terminated for block in blocks])
    return reward, terminated, np.concatenate([block.truncated for block in blocks])
