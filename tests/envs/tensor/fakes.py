"""Envs in the forms of other packages, as small fakes around a built-in env."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch import Tensor

from lightning_ding.envs.tensor import CartPole


class IsaacLike:
    """Isaac Lab's form: no ``VectorEnv``, a dict of observations, no final observation, numbers for the log."""

    def __init__(self, num_envs: int = 4, device: str = "cpu") -> None:
        self._inner = CartPole(num_envs, device)
        self.num_envs, self.device = num_envs, device
        box = self._inner.single_observation_space
        self.single_observation_space = spaces.Dict({"policy": box, "critic": box})
        self.single_action_space = self._inner.single_action_space

    def reset(self, seed: int | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        obs, info = self._inner.reset(seed=seed)
        return {"policy": obs, "critic": obs}, info

    def step(self, action: Tensor) -> tuple[Any, ...]:
        obs, reward, terminated, truncated, _ = self._inner.step(action)
        log = {"log": {"Episode/tracking": reward.mean()}}
        return {"policy": obs, "critic": obs}, reward, terminated, truncated, log


class ManiSkillLike(CartPole):
    """ManiSkill's form: the final observation under another name, only in steps in which an episode ended."""

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        obs, reward, terminated, truncated, info = super().step(actions)
        ended = info["_final_obs"]
        if not ended.any():
            return obs, reward, terminated, truncated, {"success": truncated}
        final = {"success": truncated, "elapsed": self.elapsed}
        info = {"success": torch.zeros_like(truncated), "final_observation": info["final_obs"], "final_info": final}
        return obs, reward, terminated, truncated, info


class RslLike(IsaacLike):
    """rsl_rl's form: four results, with the time limits in the info."""

    def step(self, action: Tensor) -> tuple[Any, ...]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, (terminated | truncated).long(), {**info, "time_outs": truncated}


class ArraysLike(CartPole):
    """An env of another array library with ``__dlpack__``; it notes whether actions are arrays of that library."""

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        self.returned = obs.numpy()
        return self.returned, info

    def step(self, actions: Any) -> tuple[Any, ...]:
        self.got = actions
        obs, *flags, info = super().step(torch.from_numpy(actions))
        self.returned = obs.numpy()
        return self.returned, *(one.numpy() for one in flags), {"final_obs": info["final_obs"].numpy()}


class FromArrays(VectorEnv[Any, Any, Any]):
    """Any vector env of arrays with same-step autoreset as tensors, to compare both paths."""

    def __init__(self, env: VectorEnv) -> None:
        self._inner = env
        self.num_envs, self.metadata = env.num_envs, env.metadata
        self.single_observation_space, self.single_action_space = env.single_observation_space, env.single_action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Tensor, dict[str, Any]]:
        obs, _ = self._inner.reset(seed=seed)
        return torch.from_numpy(obs.copy()), {}

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        obs, reward, terminated, truncated, info = self._inner.step(actions.numpy())
        final = obs.copy()
        for row in np.flatnonzero(terminated | truncated):
            final[row] = info["final_obs"][row]
        return *map(torch.from_numpy, (obs.copy(), reward.copy(), terminated.copy(), truncated.copy())), {
            "final_obs": torch.from_numpy(final)
        }
