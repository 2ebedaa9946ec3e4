"""Games of a team whose best returns are known: matrix games, and a game of two steps.

Shapes: N agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding.config import require
from lightning_ding.utils.teams import AGENT_STATE, GLOBAL_STATE

TeamObs = dict[str, NDArray[np.float32]]
MATRIX_GAMES: dict[str, list[list[float]]] = {
    "nonmonotonic": [[8, -12, -12], [-12, 0, 0], [-12, 0, 0]],
    "climbing": [[11, -30, 0], [-30, 7, 6], [0, 0, 5]],
    "penalty": [[-100, 0, 10], [0, 2, 0], [10, 0, -100]],
}
"""Payoffs by the actions of two agents: Son et al. 2019, table 1a (https://arxiv.org/abs/1905.05408), and Claus and
Boutilier 1998, section 5, the penalty game with k = -100."""


class MatrixGame(gym.Env[TeamObs, NDArray[np.int64]]):
    """Two agents choose a row and a column once, and both get the payoff; they see a constant.

    Args:
        payoff: Name of a game in ``MATRIX_GAMES``, or a table of payoffs.

    Example:
        >>> env = MatrixGame("nonmonotonic")
        >>> _ = env.reset()
        >>> env.step(np.array([0, 0]))[1]
        8.0
    """

    def __init__(self, payoff: str | Sequence[Sequence[float]] = "nonmonotonic") -> None:
        known = not isinstance(payoff, str) or payoff in MATRIX_GAMES
        require(known, "payoff", f"a table of numbers or one of {sorted(MATRIX_GAMES)}", payoff)
        self.payoff = np.asarray(MATRIX_GAMES[payoff] if isinstance(payoff, str) else payoff, dtype=np.float64)
        require(self.payoff.ndim == 2, "payoff", "a table of numbers", payoff)
        seen = {AGENT_STATE: spaces.Box(0, 1, (2, 1)), GLOBAL_STATE: spaces.Box(0, 1, (1,))}
        self.observation_space: Any = spaces.Dict(seen)  # type: ignore[arg-type]
        self.action_space: Any = spaces.MultiDiscrete(self.payoff.shape)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[TeamObs, dict[str, Any]]:
        """Start a game."""
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action: NDArray[np.int64]) -> tuple[TeamObs, float, bool, bool, dict[str, Any]]:
        """Return the payoff of both actions; the game is over."""
        row, column = action
        return self._obs(), float(self.payoff[row, column]), True, False, {}

    @staticmethod
    def _obs() -> TeamObs:
        return {AGENT_STATE: np.ones((2, 1), np.float32), GLOBAL_STATE: np.ones(1, np.float32)}


class TwoStepGame(gym.Env[TeamObs, NDArray[np.int64]]):
    """The game of Rashid et al. 2018, section 5 (https://arxiv.org/abs/1803.11485), whose best return is 8.

    The first action of agent 0 chooses a matrix game: 7 for every pair of actions, or [[0, 1], [1, 8]]. Learners of a
    sum of values choose the first. Agents and the global state are a one-hot vector of three states.

    Example:
        >>> env = TwoStepGame()
        >>> _ = env.reset()
        >>> env.step(np.array([1, 0]))[1], env.step(np.array([1, 1]))[1:3]
        (0.0, (8.0, True))
    """

    SECOND = np.array([[[7, 7], [7, 7]], [[0, 1], [1, 8]]], dtype=np.float64)

    def __init__(self) -> None:
        seen = {AGENT_STATE: spaces.Box(0, 1, (2, 3)), GLOBAL_STATE: spaces.Box(0, 1, (3,))}
        self.observation_space: Any = spaces.Dict(seen)  # type: ignore[arg-type]
        self.action_space: Any = spaces.MultiDiscrete([2, 2])
        self._state = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[TeamObs, dict[str, Any]]:
        """Start a game."""
        super().reset(seed=seed)
        self._state = 0
        return self._obs(), {}

    def step(self, action: NDArray[np.int64]) -> tuple[TeamObs, float, bool, bool, dict[str, Any]]:
        """Choose a matrix game by the action of agent 0, or play it."""
        if self._state:
            reward = float(self.SECOND[self._state - 1, action[0], action[1]])
            return self._obs(), reward, True, False, {}
        self._state = 1 + int(action[0])
        return self._obs(), 0.0, False, False, {}

    def _obs(self) -> TeamObs:
        state = np.eye(3, dtype=np.float32)[self._state]
        return {AGENT_STATE: np.stack([state, state]), GLOBAL_STATE: state}
