"""Games on a line for teams with continuous or discrete actions, whose best returns are worked out by hand.

Shapes: N agents.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding.config import require
from lightning_ding.envs.teams.games import TeamObs
from lightning_ding.utils.teams import AGENT_REWARD, AGENT_STATE, GLOBAL_STATE

SPEED = 0.5  # the largest move of a step


class CoverGame(gym.Env[TeamObs, NDArray[Any]]):
    """Two agents start at 0, and each must go to another one of the targets -1 and 1; the best return is -1.

    An agent moves by at most 0.5 in a step, not beyond the targets, and sees both positions, its own first. The reward
    of a step is minus the sum of each target's distance to its nearest agent, after the move. A time limit truncates a
    game after four steps.
    If the agents part, both are half way after one step, so the rewards are -1, 0, 0, 0. If one agent stays, they are
    -1.5, -1, -1, -1. If both stay or go the same way, they are -2 in each step.

    Args:
        is_discrete: Whether an agent chooses to move by -0.5, 0 or 0.5 instead of any number between.

    Example:
        >>> env = CoverGame()
        >>> _ = env.reset()
        >>> [env.step(np.array([[-1.0], [1.0]]))[1] for _ in range(4)]
        [-1.0, 0.0, 0.0, 0.0]
    """

    STEPS = 4

    def __init__(self, is_discrete: bool = False) -> None:
        seen = {AGENT_STATE: spaces.Box(-1, 1, (2, 2)), GLOBAL_STATE: spaces.Box(-1, 1, (2,))}
        self.observation_space: Any = spaces.Dict(seen)  # type: ignore[arg-type]
        self.is_discrete = is_discrete
        self.action_space: Any = spaces.MultiDiscrete([3, 3]) if is_discrete else spaces.Box(-1, 1, (2, 1))
        self._place, self._step = np.zeros(2), 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[TeamObs, dict[str, Any]]:
        """Start a game."""
        super().reset(seed=seed)
        self._place, self._step = np.zeros(2), 0
        return self._obs(), {}

    def step(self, action: NDArray[Any]) -> tuple[TeamObs, float, bool, bool, dict[str, Any]]:
        """Move the agents, by the normalised moves ``action``, shape (2, 1), or by one of three, shape (2,)."""
        move = np.asarray(action, np.float64).reshape(2) - self.is_discrete
        self._place = (self._place + SPEED * move.clip(-1, 1)).clip(-1, 1)
        self._step += 1
        distances = np.abs(self._place[None] - np.array([[-1.0], [1.0]])).min(1)
        return self._obs(), 0.0 - float(distances.sum()), False, self._step == self.STEPS, {}

    def _obs(self) -> TeamObs:
        place = self._place.astype(np.float32)
        return {AGENT_STATE: np.stack([place, place[::-1]]), GLOBAL_STATE: place}


class LateRewardGame(gym.Env[TeamObs, NDArray[Any]]):
    """Agents see targets and go to them, and get the reward when they see nothing any more; the best return is 1.

    In the first step, each agent sees its own target, uniform in [-1, 1], and chooses a place. In the second one it
    sees zeros, and its action is ignored; the reward of an agent is 1 minus its distance to the target, and that of the
    team their mean. The global state has all targets and places. A critic that sees what its agent sees values all
    first steps alike, because the second steps look alike, so the actors learn nothing about targets from it. The best
    place that does not depend on the target is 0, with the return 0.5.

    Args:
        agent_num: Number of agents N, >= 1.
        is_individual: Whether the observations tell each agent's own reward.

    Example:
        >>> env = LateRewardGame(2)
        >>> targets = env.reset(seed=0)[0]["agent_state"][:, :1]
        >>> env.step(targets)[1], env.step(targets)[1]
        (0.0, 1.0)
    """

    def __init__(self, agent_num: int = 2, is_individual: bool = False) -> None:
        require(agent_num >= 1, "agent_num", ">= 1", agent_num)
        self.agent_num, self.is_individual = agent_num, is_individual
        seen = {
            AGENT_STATE: spaces.Box(-1, 1, (agent_num, 2)),
            GLOBAL_STATE: spaces.Box(-1, 1, (2 * agent_num + 1,)),
            **({AGENT_REWARD: spaces.Box(-1, 1, (agent_num,))} if is_individual else {}),
        }
        self.observation_space: Any = spaces.Dict(seen)  # type: ignore[arg-type]
        self.action_space: Any = spaces.Box(-1, 1, (agent_num, 1))
        self._target, self._place, self._step = np.zeros(agent_num), np.zeros(agent_num), 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[TeamObs, dict[str, Any]]:
        """Start a game with new targets."""
        super().reset(seed=seed)
        self._target = self.np_random.uniform(-1, 1, self.agent_num).astype(np.float32)
        self._place, self._step = np.zeros(self.agent_num, np.float32), 0
        return self._obs(np.zeros(self.agent_num)), {}

    def step(self, action: NDArray[Any]) -> tuple[TeamObs, float, bool, bool, dict[str, Any]]:
        """Choose the places, shape (N, 1), in the first step; get the reward in the second."""
        self._step += 1
        if self._step == 1:
            self._place = np.asarray(action, np.float32).reshape(self.agent_num).clip(-1, 1)
            return self._obs(np.zeros(self.agent_num)), 0.0, False, False, {}
        reward = 1.0 - np.abs(self._place - self._target)
        return self._obs(reward), float(reward.mean()), True, False, {}

    def _obs(self, reward: NDArray[Any]) -> TeamObs:
        is_first = self._step == 0
        seen = np.stack([self._target * is_first, np.full(self.agent_num, is_first)], 1).astype(np.float32)
        state = np.concatenate([self._target, self._place, [is_first]]).astype(np.float32)
        own = {AGENT_REWARD: reward.astype(np.float32)} if self.is_individual else {}
        return {AGENT_STATE: seen, GLOBAL_STATE: state, **own}
