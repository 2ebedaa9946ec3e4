"""Envs that are stepped one after the other in this process."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate
from typing_extensions import override

JOINED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""Spaces whose elements are joined in one array."""


class _SyncVectorEnv(SyncVectorEnv):
    """A SyncVectorEnv whose steps give the same results in less time.

    Observations are joined in a new array for each step, instead of in one that is copied then. Final observations are
    copied, because an env may reuse the memory of its observations. With the autoreset mode NEXT_STEP, and where
    observations cannot be joined in arrays, the steps are those of SyncVectorEnv. Checkpoints contain the name and the
    attributes of this class, so it adds none.
    """

    @override
    def step(self, actions: Any) -> Any:
        """Step every env; return observations, rewards, ends by termination and by truncation, and the info."""
        resets = self.autoreset_mode is AutoresetMode.SAME_STEP
        is_refused = not resets and self._autoreset_envs.any()
        if (
            self.autoreset_mode is AutoresetMode.NEXT_STEP
            or is_refused
            or not _is_joined(self.single_observation_space)
        ):
            return super().step(actions)  # which refuses to step an env that has to be reset
        rewards, terminations, truncations = self._rewards, self._terminations, self._truncations
        infos: dict[str, Any] = {}
        for number, (env, action) in enumerate(zip(self.envs, iterate(self.action_space, actions), strict=True)):
            obs, reward, terminated, truncated, info = env.step(action)
            rewards[number], terminations[number], truncations[number] = reward, terminated, truncated
            if resets and (terminated or truncated):
                infos = self._add_info(infos, {"final_obs": obs, "final_info": info}, number)
                obs, info = env.reset()
            if info:
                infos = self._add_info(infos, info, number)
            self._env_obs[number] = obs
        self._autoreset_envs = terminations | truncations
        return self._joined(), rewards.copy(), terminations.copy(), truncations.copy(), infos

    @override
    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        if "final_obs" in env_info:  # this call comes before the reset
            env_info = {**env_info, "final_obs": deepcopy(env_info["final_obs"])}
        return super()._add_info(vector_infos, env_info, env_num)

    def _joined(self) -> Any:
        """Return the observations of all envs in new arrays."""
        space, items = self.single_observation_space, self._env_obs
        new: Any = create_empty_array(space, self.num_envs, fn=np.empty)
        if isinstance(space, spaces.Box) and space.shape and {len(one) for one in items} == {space.shape[0]}:  # type: ignore[arg-type]
            np.concatenate(items, out=new.reshape(-1, *space.shape[1:]))  # type: ignore[arg-type]
            return new
        return concatenate(space, items, new)


def _is_joined(space: spaces.Space[Any]) -> bool:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return all(map(_is_joined, space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces))
    return isinstance(space, JOINED)
