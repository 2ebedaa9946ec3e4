"""The base of intrinsic rewards: their scale, how they join the env's rewards, and normalised observations.

The intrinsic reward is divided by the running standard deviation of its discounted sum (Burda et al. 2018, section 2.4,
https://arxiv.org/abs/1810.12894), which does not end with an episode.

Where this differs from that paper: the sum of both rewards has one critic, with the discount factor and the episodes
of the policy, instead of a separate critic without episodes.

Shapes: B batch, S collected transitions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.model.encoder import is_described, without_action_mask
from lightning_ding.policy.base.rank_statistics import merge_over_ranks
from lightning_ding.reward_model.base import Batch, RewardModel
from lightning_ding.reward_model.config import RewardModelConfig
from lightning_ding.rl import RunningMeanStd, RunningReturns, moments

EPSILON = 1e-8  # keeps equal rewards at 0 with minmax


@dataclass(frozen=True, kw_only=True)
class IntrinsicConfig(RewardModelConfig):
    """Keys of the models of an intrinsic reward."""

    intrinsic_reward_type: Literal["add", "assign"] = "add"
    """rnd, icm: ``add`` the intrinsic reward to that of the env, or ``assign`` it in its place."""
    intrinsic_reward_weight: float = 1.0
    """rnd, icm: factor of the normalised intrinsic reward, >= 0."""
    intrinsic_reward_norm: Literal["return_std", "minmax", "none"] = "return_std"
    """rnd, icm: divide the intrinsic reward by the running standard deviation of its discounted sum, or move it to
    [0, 1] in each minibatch or rollout, or leave it as it is."""
    extrinsic_reward_norm: bool = False
    """rnd, icm: divide the env's reward by extrinsic_reward_norm_max."""
    extrinsic_reward_norm_max: float = 1.0
    """rnd, icm: largest reward of the env, > 0; needs extrinsic_reward_norm."""
    obs_norm: bool = True
    """rnd, icm: shift and scale observations by the mean and standard deviation of the collected ones."""
    obs_norm_clamp_min: float = -5.0
    """rnd, icm: smallest normalised observation, < 0."""
    obs_norm_clamp_max: float = 5.0
    """rnd, icm: largest normalised observation, > 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        adds, scales = self.intrinsic_reward_type == "add", self.extrinsic_reward_norm
        weight, most = self.intrinsic_reward_weight, self.extrinsic_reward_norm_max
        require(weight >= 0, "reward_model.intrinsic_reward_weight", ">= 0", weight)
        require(adds or not scales, "reward_model.extrinsic_reward_norm", "False with 'assign'", scales)
        require(most > 0, "reward_model.extrinsic_reward_norm_max", "> 0", most)
        allowed = "1 without extrinsic_reward_norm"
        require(scales or most == 1.0, "reward_model.extrinsic_reward_norm_max", allowed, most)
        low, high = self.obs_norm_clamp_min, self.obs_norm_clamp_max
        require(low < 0, "reward_model.obs_norm_clamp_min", "< 0", low)
        require(high > 0, "reward_model.obs_norm_clamp_max", "> 0", high)
        for name, value, default in (("obs_norm_clamp_min", low, -5.0), ("obs_norm_clamp_max", high, 5.0)):
            is_used = self.obs_norm or value == default
            require(is_used, f"reward_model.{name}", "left at its default without obs_norm", value)


IntrinsicConfigT = TypeVar("IntrinsicConfigT", bound=IntrinsicConfig)


class IntrinsicRewardModel(RewardModel[IntrinsicConfigT]):
    """A model of a reward for what is new; a subclass implements ``loss`` and ``score``."""

    trains_first: ClassVar[bool] = False

    def __init__(self, config: IntrinsicConfigT, section: Mapping[str, Any], discount_factor: float) -> None:
        super().__init__(config, section, discount_factor)
        shapes = _array_shapes(section["obs_shape"]) if config.obs_norm else {}
        self._names = {path: f"obs{place}" for place, path in enumerate(shapes)}
        self._shapes = shapes
        for path, name in self._names.items():
            self.add_module(name, RunningMeanStd(shapes[path]))
        self.return_statistics = RunningMeanStd()
        """Moments of the discounted sums of the intrinsic reward."""
        self._returns = RunningReturns()

    @property
    def uses_env_reward(self) -> bool:
        """Whether the intrinsic reward is added to that of the env."""
        return self.config.intrinsic_reward_type == "add"

    @torch.no_grad()
    def reward(self, score: Tensor, reward: Tensor) -> Tensor:
        """Return the rewards to learn from, shape (..., B); see :class:`IntrinsicConfig`."""
        config = self.config
        intrinsic = config.intrinsic_reward_weight * self.normalised(score)
        if config.intrinsic_reward_type == "assign":
            return intrinsic
        return (reward / config.extrinsic_reward_norm_max if config.extrinsic_reward_norm else reward) + intrinsic

    def normalised(self, score: Tensor) -> Tensor:
        """Return intrinsic rewards, shape (..., B), on the scale that ``intrinsic_reward_norm`` names."""
        kind = self.config.intrinsic_reward_norm
        if kind == "minmax":
            low, high = score.amin(-1, keepdim=True), score.amax(-1, keepdim=True)
            return (score - low) / (high - low + EPSILON)
        return score / self.return_statistics.std.to(score.dtype) if kind == "return_std" else score

    @torch.no_grad()
    def add(self, transitions: Batch) -> None:
        """Add S collected transitions to the statistics of observations and of the intrinsic return."""
        for path, name in self._names.items():
            seen = _entry(transitions["next_obs"], path).reshape(-1, *self._shapes[path])
            running: Any = getattr(self, name)
            merge_over_ranks([running], [moments(seen[seen.isfinite().flatten(1).all(1)])])
        if self.config.intrinsic_reward_norm != "return_std":
            return
        env_id, episode_id = transitions["env_id"], torch.zeros_like(transitions["env_id"])
        sums = self._returns.follow(self.score(transitions), env_id, episode_id, self.discount_factor)
        found = moments(sums[sums.isfinite()].to(self.return_statistics.count.device))
        merge_over_ranks([self.return_statistics], [found])

    def normalise_obs(self, obs: Any) -> Any:
        """Return observations as the networks get them, B of them."""
        low, high = self.config.obs_norm_clamp_min, self.config.obs_norm_clamp_max
        for path, name in self._names.items():
            running: Any = getattr(self, name)
            x = _entry(obs, path).reshape(-1, *self._shapes[path])
            normal = (x - running.mean.float()) / running.std.float()
            obs = _replaced(obs, path, normal.clamp(low, high))
        return obs

    def rank_state(self) -> dict[str, Any]:
        """Return the unfinished discounted sums of this rank's envs."""
        return {"value": torch.tensor(self._returns.value), "episode": torch.tensor(self._returns.episode)}

    def load_rank_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``rank_state`` returned."""
        self._returns.value, self._returns.episode = (state[name].numpy().copy() for name in ("value", "episode"))


def _array_shapes(obs_shape: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the entries of an observation that are arrays of numbers, by their paths; "" for all."""
    if isinstance(obs_shape, Mapping):
        known = without_action_mask(obs_shape)
        flat = _flat({} if is_described(obs_shape) else known)
    else:
        flat = {"": obs_shape}
    shapes = {path: (shape,) if isinstance(shape, int) else tuple(shape) for path, shape in flat.items()}
    return {path: shape if len(shape) > 2 else (math.prod(shape),) for path, shape in shapes.items()}


def _flat(obs_shape: Any, path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, shape in obs_shape.items():
        if not isinstance(shape, Mapping):
            found[f"{path}{name}"] = shape
        elif not is_described(shape):
            found |= _flat(shape, f"{path}{name}/")
    return found


def _entry(obs: Any, path: str) -> Tensor:
    found: Tensor = nested.flatten(obs)[path] if path else obs
    return found


def _replaced(obs: Any, path: str, value: Tensor) -> Any:
    return nested.unflatten({**nested.flatten(obs), path: value}) if path else value
