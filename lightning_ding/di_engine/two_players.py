"""A ``BaseEnv`` of several players who all act in each step, as a parallel game of PettingZoo's interface.

Shapes: P players.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from lightning_ding.config import require
from lightning_ding.di_engine.base_env import BaseEnvAdapter, as_gymnasium_space
from lightning_ding.di_engine.policies.data import TIME_LIMIT


class PlayersOfBaseEnv:
    """The parallel game of an env whose observations have the leading axis P, and whose actions are a list of P.

    Rewards have the leading axis P, and ``info`` may be a sequence of P dicts. The game ends for all players at once.

    Args:
        env: The env. Its spaces are those of one player, a sequence of P equal spaces, or, of observations, a box with
            the leading axis P; a space of None is that of the first observation.

    Raises:
        TypeError: If the env has no ``action_space``.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        first = np.asarray(env.reset())
        self.possible_agents = list(range(len(first)))
        self.agents: list[int] = []
        action = _of_player(getattr(env, "action_space", None))
        self._action = as_gymnasium_space(action, f"action_space of {type(env).__name__}")
        given = _of_player(getattr(env, "observation_space", None))
        if given is None:
            self._observation: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, first.shape[1:], np.float32)
        else:
            space = as_gymnasium_space(given, "observation_space")
            is_joint = isinstance(space, spaces.Box) and space.shape == first.shape
            self._observation = spaces.Box(space.low[0], space.high[0], dtype=space.dtype) if is_joint else space  # type: ignore[attr-defined, arg-type]

    def observation_space(self, agent: int) -> spaces.Space[Any]:
        """Return the space of the observations of a player."""
        return self._observation

    def action_space(self, agent: int) -> spaces.Space[Any]:
        """Return the space of the actions of a player."""
        return self._action

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[int, Any], dict[int, Any]]:
        """Start an episode."""
        if seed is not None:
            self.env.seed(seed % 2**31)
        self.agents = list(self.possible_agents)
        obs = np.asarray(self.env.reset())
        return {player: obs[player] for player in self.agents}, {player: {} for player in self.agents}

    def step(self, actions: Mapping[int, Any]) -> tuple[dict[int, Any], ...]:
        """Step the env with the actions of all players."""
        taken = [actions[player] for player in self.possible_agents]
        arrays = map(np.asarray, taken)
        obs, reward, done, info = self.env.step([one.item() if one.ndim == 0 else one for one in arrays])
        players, rewards = list(self.agents), np.asarray(reward, np.float64).reshape(len(self.agents), -1).sum(1)
        infos = list(info) if isinstance(info, (list, tuple)) else [info] * len(players)
        over = bool(np.all(done))
        is_cut = over and bool(infos[0].get(TIME_LIMIT, False))
        if over:
            self.agents = []
        return (
            {player: np.asarray(obs[player]) for player in players},
            {player: float(rewards[player]) for player in players},
            dict.fromkeys(players, over and not is_cut),
            dict.fromkeys(players, is_cut),
            dict(zip(players, infos, strict=True)),
        )

    def close(self) -> None:
        """Close the env."""
        self.env.close()


def _of_player(space: Any) -> Any:
    """Return the space of one player."""
    if isinstance(space, (list, tuple)):
        require(len(space) > 0, "the spaces of the players", "at least one", space)
        return space[0]
    return space.spaces[0] if isinstance(space, spaces.Tuple) else space


def players_of(env: Any) -> Any:
    """Return the game of a ``BaseEnv``; a game of PettingZoo is returned unchanged."""
    if hasattr(env, "possible_agents"):
        return env
    return PlayersOfBaseEnv(env.base_env if isinstance(env, BaseEnvAdapter) else env)
