"""Games of a team whose best returns are known: matrix games, and a game of two steps.

Shapes: N agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding.config import require
from lightning_ding.utils.teams import ACTION_MASK, AGENT_STATE, GLOBAL_STATE

TeamObs = dict[str, NDArray[Any]]
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
        self.action_space: Any = spaces.MultiDiscrete(np.array(self.payoff.shape))

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


class SwitchRiddle(gym.Env[TeamObs, NDArray[np.int64]]):
    """The hundred prisoners' riddle of Foerster et al. 2016, section 5.1 (https://arxiv.org/abs/1605.06676).

    On each day, a random one of N prisoners is in a room with a switch, which it sees and sets; it may also tell that
    all have been there. Telling ends the game with a reward of 1 if that is true and -1 if not; after 4 N - 6 days the
    game ends with 0. An agent sees whether it is in the room, and the switch if it is; memory is needed for anything
    else, such as the day. Actions are to leave the switch off (0) or on (1), and to tell (2). Outside of the room, only
    0 is legal, which does nothing. The global state is the day, who has been in the room, the switch, and who is there.

    The best return is :attr:`best_return`, the probability that all have been in the room by the last day. Three
    agents reach it: on the first day the switch stays off, later a newcomer sets an off switch on, and a newcomer who
    finds it on tells, since two others have been there.

    Args:
        num_agents: Number of prisoners N, >= 2.

    Example:
        >>> env = SwitchRiddle()
        >>> obs, _ = env.reset(seed=0)
        >>> obs["action_mask"].tolist(), round(env.best_return, 4)
        ([1, 0, 0, 1, 0, 0, 1, 1, 1], 0.7407)
    """

    def __init__(self, num_agents: int = 3) -> None:
        require(num_agents >= 2, "num_agents", ">= 2", num_agents)
        self.num_agents, self.last_day = num_agents, 4 * num_agents - 6
        seen: Any = {
            AGENT_STATE: spaces.Box(0, 1, (num_agents, 2)),
            GLOBAL_STATE: spaces.Box(0, 1, (2 * num_agents + 2,)),
        }
        self.observation_space: Any = spaces.Dict({**seen, ACTION_MASK: spaces.MultiBinary(3 * num_agents)})
        self.action_space: Any = spaces.MultiDiscrete([3] * num_agents)
        self._day = self._switch = self._inside = 0
        self._visited = np.zeros(num_agents, np.float32)

    @property
    def best_return(self) -> float:
        """The probability that all agents have been in the room by the last day."""
        number, days = self.num_agents, self.last_day
        parts = ((-1) ** k * comb(number, k) * (1 - k / number) ** days for k in range(number + 1))
        return float(sum(parts))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[TeamObs, dict[str, Any]]:
        """Start on the first day, with the switch off."""
        super().reset(seed=seed)
        self._day, self._switch, self._visited = 0, 0, np.zeros(self.num_agents, np.float32)
        self._next_day()
        return self._obs(), {}

    def step(self, action: NDArray[np.int64]) -> tuple[TeamObs, float, bool, bool, dict[str, Any]]:
        """Let the agent in the room set the switch or tell."""
        chosen = int(action[self._inside])
        if chosen == 2:
            return self._obs(), 1.0 if self._visited.all() else -1.0, True, False, {}
        self._switch = chosen
        is_over = self._day == self.last_day
        if not is_over:
            self._next_day()
        return self._obs(), 0.0, is_over, False, {}

    def _next_day(self) -> None:
        self._day += 1
        self._inside = int(self.np_random.integers(self.num_agents))
        self._visited[self._inside] = 1

    def _obs(self) -> TeamObs:
        inside = np.eye(self.num_agents, dtype=np.float32)[self._inside]
        legal = np.stack([np.ones(self.num_agents), inside, inside], 1).astype(np.int8).reshape(-1)
        state = np.array([self._day / self.last_day, *self._visited, self._switch, *inside], np.float32)
        return {
            AGENT_STATE: np.stack([inside, inside * self._switch], 1),
            GLOBAL_STATE: state,
            ACTION_MASK: legal,
        }
