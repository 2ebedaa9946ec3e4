"""The normalisation of a run's observations and rewards: one set of statistics for training and evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium.vector import VectorEnv

from lightning_ding.envs import NormaliseObservation, NormaliseReward


class Normalisers:
    """Wraps the envs of a run, and keeps what they have seen.

    Training changes the statistics, evaluation reads them; rewards are normalised in training only.

    Args:
        norm_obs: Normalise observations.
        norm_reward: Scale rewards.
    """

    def __init__(self, norm_obs: bool = False, norm_reward: bool = False) -> None:
        self._asked = {"norm_obs": norm_obs, "norm_reward": norm_reward}
        self._wrappers: dict[str, Any] = {}  # the newest of each kind; all of a kind share their statistics

    def wrap_evaluation(self, env: VectorEnv) -> VectorEnv:
        """Return an env that normalises observations and learns nothing from them."""
        return self._wrap(env, training=False) if self._asked["norm_obs"] else env

    def wrap_training(self, env: VectorEnv, discount_factor: float) -> VectorEnv:
        """Return an env that normalises, and learns from what it sees."""
        if self._asked["norm_obs"]:
            env = self._wrap(env, training=True)
        if self._asked["norm_reward"]:
            env = NormaliseReward(env, discount_factor, statistics=self._statistics("norm_reward"))
            env.training = True
            self._wrappers["norm_reward"] = env
        return env

    def check_has_seen(self) -> None:
        """Raise if observations are to be normalised by nothing.

        Raises:
            RuntimeError: If none was seen yet.
        """
        if "norm_obs" in self._wrappers and not self._wrappers["norm_obs"].has_seen:
            raise RuntimeError(
                "norm_obs is True, but no observation was seen yet: evaluate a checkpoint with ckpt_path, which holds "
                "by what they are normalised, or use the datamodule that the policy was trained with"
            )

    def merge_over_ranks(self, device: torch.device) -> None:
        """Give all ranks the statistics of all."""
        for wrapper in self._wrappers.values():
            wrapper.merge_over_ranks(device)

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics as tensors and builtins."""
        return {name: wrapper.state_dict() for name, wrapper in self._wrappers.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what ``state_dict`` returned, as far as there are envs for it.

        Raises:
            ValueError: If what was normalised then and what is now differ.
        """
        for name, is_asked in self._asked.items():
            if is_asked != (name in state):
                raise ValueError(f"{name} must be {name in state}, as when the checkpoint was written, got {is_asked}")
        for name, wrapper in self._wrappers.items():
            wrapper.load_state_dict(state[name])

    def _wrap(self, env: VectorEnv, training: bool) -> VectorEnv:
        wrapper = NormaliseObservation(env, statistics=self._statistics("norm_obs"))
        wrapper.training = training
        self._wrappers["norm_obs"] = wrapper
        return wrapper

    def _statistics(self, name: str) -> Any:
        return self._wrappers[name].statistics if name in self._wrappers else None
