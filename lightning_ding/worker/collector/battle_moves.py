"""Moves of several players that wait for what comes of them.

Shapes: N envs, P players, K moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_ding import nested
from lightning_ding.envs import Timestep
from lightning_ding.envs.battle_stepper import BattleStep
from lightning_ding.worker.players import Output

BoolArray = NDArray[np.bool_]
Rows = NDArray[np.intp]


class OpenMoves:
    """At most one open move for each player of each env.

    A move is open from a player's turn to its next turn, or to the end of its episode. What it gains meanwhile is the
    reward of the move, and what it sees then the next observation.

    Args:
        num_envs: N.
        num_players: P.
    """

    def __init__(self, num_envs: int, num_players: int) -> None:
        self.is_open: BoolArray = np.zeros((num_envs, num_players), dtype=bool)
        """Shape (N, P)."""
        self.version = np.zeros((num_envs, num_players), dtype=np.int64)
        """Updates that the policy had made when it moved, shape (N, P)."""
        self._reward = np.zeros((num_envs, num_players))
        self._is_random = np.zeros((num_envs, num_players), dtype=bool)
        self._obs: Any = None
        self._outputs: list[dict[bool, Any]] = [{} for _ in range(num_players)]  # random ones hold other entries

    def begin(self, obs: Any, output: Output, version: int, is_random: bool) -> None:
        """Note the moves that a policy made.

        Args:
            obs: What each player sees, leading axes (N, P).
            output: What the policy gave.
            version: Updates that the policy had made.
            is_random: Whether the moves are random instead of the policy's.
        """
        rows = output.rows
        self.is_open |= rows
        self.version[rows] = version
        self._reward[rows] = 0
        self._is_random[rows] = is_random
        self._obs = _put(self._obs, obs, rows, nested.index(obs, rows))
        env_ids, players = np.nonzero(rows)
        values = nested.to_tensor(output.values)
        for player in np.flatnonzero(rows.any(0)).tolist():
            chosen = torch.from_numpy(players == player)
            where = torch.from_numpy(env_ids[players == player])
            given, known = nested.index(values, chosen), self._outputs[player].get(is_random)
            if known is None:
                known = nested.apply(lambda x: x.new_zeros((len(rows), *x.shape[1:])), values)
            self._outputs[player][is_random] = _put_tensors(known, where, given)

    def add_reward(self, reward: NDArray[np.float64]) -> None:
        """Add what the players gained, shape (N, P)."""
        self._reward += reward

    def end(self, rows: BoolArray, player: int, step: BattleStep) -> Iterator[tuple[Rows, Any, Any, Timestep]]:
        """Yield the moves of a player that end with a step, those of the policy apart from random ones.

        Args:
            rows: Whose moves end, shape (N, P).
            player: Which player's to yield.
            step: What the step gave.

        Yields:
            The K envs, observations, outputs and outcomes of the moves, leading axis K.
        """
        for is_random, outputs in self._outputs[player].items():
            env_ids = np.flatnonzero(rows[:, player] & (self._is_random[:, player] == is_random))
            if len(env_ids):
                timestep = Timestep(
                    next_obs=nested.index(step.obs, (env_ids, player)),
                    reward=self._reward[env_ids, player],
                    terminated=step.terminated[env_ids, player],
                    truncated=step.truncated[env_ids, player],
                    info={},
                    valid=np.ones(len(env_ids), dtype=bool),
                    abnormal=np.zeros(len(env_ids), dtype=bool),
                )
                obs = nested.index(self._obs, (env_ids, player))
                yield env_ids, obs, nested.index(outputs, torch.from_numpy(env_ids)), timestep


def _put(arrays: Any, like: Any, rows: BoolArray, values: Any) -> Any:
    """Return ``arrays`` with ``values`` written to ``rows``; made like ``like`` if there are none yet."""
    if isinstance(like, dict):
        return {name: _put(arrays and arrays[name], below, rows, values[name]) for name, below in like.items()}
    arrays = np.zeros_like(like) if arrays is None else arrays
    arrays[rows] = values
    return arrays


def _put_tensors(tensors: Any, rows: Tensor, values: Any) -> Any:
    if isinstance(tensors, dict):
        return {name: _put_tensors(below, rows, values[name]) for name, below in tensors.items()}
    tensors[rows] = values
    return tensors
