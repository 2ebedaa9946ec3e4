"""The env of a team in DI-engine's form: ``simple_spread`` with the observations and rewards of its ``petting_zoo``.

Nothing here imports torch, because env processes import this module.

Shapes: N agents, as many landmarks, D = 8 N - 2 numbers that an agent sees.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding.envs.teams.parallel import ParallelTeam
from lightning_ding.utils.teams import AGENT_REWARD, AGENT_STATE, ALIVE, GLOBAL_STATE

GAME = "mpe2.simple_spread_v3"
ALONE, ALONE_PADDED = "agent_alone_state", "agent_alone_padding_state"


class SimpleSpread(ParallelTeam):
    """The game ``simple_spread`` with the entries of DI-engine's env type ``petting_zoo``.

    An agent sees its velocity and place, the way to all landmarks and to all others, and what they say. The entries
    are those of DI-engine:

    * ``agent_state`` (N, D).
    * ``global_state`` (4 N + 2 N + 2 N (N - 1),): the place of agent 0, its ways to the landmarks and to the others,
      the velocities of all, and what all hear. ``agent_specific_global_state`` puts what each agent sees before it,
      (N, ...).
    * ``agent_alone_state``: ``agent_state`` without the ways to the others; ``agent_alone_padding_state`` with zeros
      there.

    There is no mask: all actions are always legal. As in DI-engine, the reward of an agent is the reward of the team
    plus its own one, and that of the team is their sum. The end of the time is a truncation.

    Args:
        n_agent: Number of agents and of landmarks N, >= 2.
        max_cycles: Steps of an episode, >= 1.
        continuous_actions: Whether actions are a Box.
        agent_obs_only: Whether observations have ``agent_state`` alone.
        agent_specific_global_state: Whether each agent has a global state of its own.
        individual_rewards: Whether observations have ``agent_reward``.
        render_mode: ``"rgb_array"``, ``"human"`` or None.
    """

    def __init__(
        self,
        n_agent: int = 3,
        max_cycles: int = 25,
        continuous_actions: bool = False,
        agent_obs_only: bool = False,
        agent_specific_global_state: bool = False,
        individual_rewards: bool = False,
        render_mode: str | None = None,
    ) -> None:
        made: dict[str, Any] = {"max_cycles": max_cycles, "continuous_actions": continuous_actions}
        made |= {"render_mode": render_mode, "local_ratio": 0.5}
        super().__init__(GAME, "sum", individual_rewards, "none", N=n_agent, **made)
        self._is_alone, self._is_specific = agent_obs_only, agent_specific_global_state
        team = self.observation_space.spaces
        kept = {name: space for name, space in team.items() if name != ALIVE}
        shapes = {} if agent_obs_only else {name: one.shape for name, one in self._entries(self._zeros()).items()}
        infinite = {name: spaces.Box(-np.inf, np.inf, shape, np.float32) for name, shape in shapes.items()}
        self.observation_space = spaces.Dict({**kept, **infinite})

    def step(self, action: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], float, bool, bool, dict[str, Any]]:
        """Let all agents act; DI-engine's rewards are twice those of the game, whose ``local_ratio`` is 0.5."""
        obs, reward, terminated, truncated, info = super().step(action)
        info = {name: 2 * one if name.startswith("return_") else one for name, one in info.items()}
        return obs, 2 * reward, terminated, truncated, info

    def _obs(self, *seen: Any) -> dict[str, NDArray[Any]]:
        obs = super()._obs(*seen)
        del obs[ALIVE]  # no agent leaves
        if AGENT_REWARD in obs:
            obs[AGENT_REWARD] *= 2
        return obs if self._is_alone else {**obs, **self._entries(obs[AGENT_STATE])}

    def _zeros(self) -> NDArray[np.float32]:
        return np.zeros((self._layout.number, self._layout.size), np.float32)

    def _entries(self, seen: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Return the entries that DI-engine makes of what all agents see, shape (N, D)."""
        number = len(seen)
        alone, heard = 4 + 2 * number, 2 * (number - 1)
        state = np.concatenate([seen[0, 2:-heard], seen[:, :2].reshape(-1), seen[:, -heard:].reshape(-1)])
        if self._is_specific:
            state = np.concatenate([seen, np.tile(state, (number, 1))], 1)
        padding = np.zeros((number, heard), np.float32)
        return {
            GLOBAL_STATE: state,
            ALONE: np.concatenate([seen[:, :alone], seen[:, -heard:]], 1),
            ALONE_PADDED: np.concatenate([seen[:, :alone], padding, seen[:, -heard:]], 1),
        }
