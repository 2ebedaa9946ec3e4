"""Tuples in the observations of vector envs, which everything else here takes as dicts."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from lightning_ding.nested import as_dicts


class TuplesAsDicts(VectorWrapper):  # without parameters, which it takes since gymnasium 1.4
    """Converts each Tuple in the observations to a dict with the keys "0", "1" and so on.

    Args:
        env: A vector env; see :func:`lightning_ding.envs.vector.without_tuples`.
    """

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self.single_observation_space = _as_dict_space(env.single_observation_space)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those where ``options["reset_mask"]`` is true."""
        obs, info = self.env.reset(seed=seed, options=options)
        return as_dicts(obs), info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the envs."""
        obs, reward, terminated, truncated, info = self.env.step(actions)
        if "final_obs" in info:
            final_obs = np.full(self.num_envs, None, dtype=object)
            for row, one in enumerate(info["final_obs"]):
                final_obs[row] = as_dicts(one)
            info = {**info, "final_obs": final_obs}
        return as_dicts(obs), reward, terminated, truncated, info

    def episode_state(self) -> dict[str, Any]:
        """Return the state of the running episodes, which is empty; see ``envs.state``."""
        return {}

    def load_episode_state(self, state: dict[str, Any]) -> None:
        """Restore the state that ``episode_state`` returned."""


def _as_dict_space(space: gym.spaces.Space[Any]) -> gym.spaces.Space[Any]:
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({name: _as_dict_space(below) for name, below in space.spaces.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Dict({str(place): _as_dict_space(below) for place, below in enumerate(space.spaces)})
    return space
