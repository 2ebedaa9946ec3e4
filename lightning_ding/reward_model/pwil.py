"""Primal Wasserstein imitation: the reward is small where a step is far from the steps of an expert that are left.

Paper: Dadashi et al. 2021 (https://arxiv.org/abs/2006.04678), algorithm 1: each step of an episode has the weight
1 / T, and takes as much weight from the nearest steps of the expert, each of which has 1 / E when an episode starts.
The reward is ``alpha exp(-beta T / sqrt(|S| + |A|) cost)``, where the cost is the sum of the distances, each times the
weight that was taken. Nothing is learned, and the reward of a step is computed once, when it is collected.

Where this differs: the expert's steps are the first ``collect_count`` of the data set, where the authors leave steps
out. A step for which no weight is left, because an episode is longer than ``horizon``, has the reward 0.

Shapes: S collected transitions, N envs, E steps of the expert, F numbers of an observation and an encoded action.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from lightning_ding.config import require
from lightning_ding.registry import REWARD_MODEL_REGISTRY
from lightning_ding.reward_model.base import Batch
from lightning_ding.reward_model.config import RewardModelConfig
from lightning_ding.reward_model.expert import ExpertConfig, ExpertRewardModel

NOTHING = 1e-12  # weight that rounding leaves


@dataclass(frozen=True, kw_only=True)
class PWILConfig(ExpertConfig):
    """Keys of primal Wasserstein imitation."""

    type: str | None = "pwil"
    alpha: float = 5.0
    """pwil: largest reward of a step, > 0."""
    beta: float = 5.0
    """pwil: how fast the reward falls with the cost, > 0."""
    horizon: int = 1000
    """pwil: steps T of an episode, >= 1, best the limit of the env; steps after them have no reward."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("alpha", "beta"):
            require(getattr(self, name) > 0, f"reward_model.{name}", "> 0", getattr(self, name))
        require(self.horizon >= 1, "reward_model.horizon", ">= 1", self.horizon)
        for one in fields(RewardModelConfig) if self.type == "pwil" else ():  # else of the command line, for all models
            value, is_free = getattr(self, one.name), one.name in ("type", "import_names")
            allowed = f"left at its default ({one.default!r}) with pwil, which learns nothing"
            require(is_free or value == one.default, f"reward_model.{one.name}", allowed, value)


@REWARD_MODEL_REGISTRY.register("pwil")
class PWILRewardModel(ExpertRewardModel[PWILConfig]):
    """Primal Wasserstein imitation; the arguments are those of RewardModel. The env's reward is not used."""

    config_class: ClassVar[type[PWILConfig]] = PWILConfig
    rewards_once: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("episode_id",)

    def __init__(self, config: PWILConfig, section: Mapping[str, Any], discount_factor: float) -> None:
        super().__init__(config, section, discount_factor)
        shape = section["obs_shape"]
        shape = shape[0] if isinstance(shape, (list, tuple)) and len(shape) == 1 else shape
        require(isinstance(shape, int), "model.obs_shape", "a number with reward_model.type 'pwil'", shape)
        self.size: int = shape + self.encode_action.size
        """F."""
        self.register_buffer("scale", torch.ones(self.size))
        self._atoms = torch.empty(0, self.size)
        self._left: dict[
            int, tuple[int, Tensor]
        ] = {}  # of each env: its episode, and the weights of the expert's steps

    def bind(self, policy: Any) -> None:
        """Read the expert's data.

        Raises:
            ValueError: If there is no such data set, or it does not fit the policy.
        """
        for name in ("norm_obs", "norm_reward"):
            allowed = "False with reward_model.type 'pwil', whose rewards are computed once"
            require(not policy.normaliser.kinds[name], name, allowed, policy.normaliser.kinds[name])
        super().bind(policy)
        self.take_expert(self._expert["obs"], self._expert["action"])

    def take_expert(self, obs: Tensor, action: Tensor) -> None:
        """Take the expert's steps: observations (E, D), and actions in the units of the network."""
        atoms = self._joined(obs, action)
        deviation = atoms.std(0, correction=0)
        scale: Tensor = cast(Tensor, self.scale)
        scale.copy_(torch.where(deviation > 0, deviation, torch.ones_like(deviation)))
        self._atoms = atoms

    @torch.no_grad()
    def rewards_of(self, transitions: Batch) -> Tensor:
        """Return the rewards of S collected transitions, shape (S,), on the CPU.

        Args:
            transitions: ``obs``, ``action``, ``env_id`` and ``episode_id``, those of an env in chronological order.
        """
        joined = self._joined(transitions["obs"], transitions["action"])
        env_id, episode_id = (transitions[name].cpu() for name in ("env_id", "episode_id"))
        reward, place = torch.zeros(len(joined)), _places(env_id)
        for number in range(int(place.max()) + 1 if len(place) else 0):  # one step of each env at a time
            rows = torch.nonzero(place == number)[:, 0]
            ids = list(zip(env_id[rows].tolist(), episode_id[rows].tolist(), strict=True))
            left = torch.stack([self._weights(*one) for one in ids])
            cost, left = couple(self.distance(joined[rows]), left, 1 / self.config.horizon)
            self._left |= {env: (episode, left[row]) for row, (env, episode) in enumerate(ids)}
            reward[rows] = self.config.alpha * torch.exp(-self._factor * cost).nan_to_num(0.0)
        return reward

    def score(self, batch: Batch) -> Tensor:
        """Return the rewards that transitions got when they were collected, shape (B,)."""
        return cast(Tensor, batch["reward"])

    def distance(self, joined: Tensor) -> Tensor:
        """Return the distances of steps, shape (N, F), to those of the expert, (N, E), in standard deviations."""
        scale = cast(Tensor, self.scale).cpu()
        return torch.cdist(joined / scale, self._atoms / scale)

    @property
    def _factor(self) -> float:
        return self.config.beta * self.config.horizon / math.sqrt(self.size)

    def _joined(self, obs: Tensor, action: Tensor) -> Tensor:
        return torch.cat([obs.cpu().float().flatten(1), self.encode_action(action.cpu())], 1)

    def _weights(self, env: int, episode: int) -> Tensor:
        """Return the weights that the expert's steps have left in an episode of an env, shape (E,)."""
        known, left = self._left.get(env, (None, None))
        if left is None or known != episode:
            return torch.full((len(self._atoms),), 1 / len(self._atoms), dtype=torch.float64)
        return left

    def rank_state(self) -> dict[str, Any]:
        """Return the weights of the expert's steps in the unfinished episodes of this rank."""
        envs = sorted(self._left)
        left = [self._left[env][1] for env in envs]
        return {
            "env_id": envs,
            "episode_id": [self._left[env][0] for env in envs],
            "left": torch.stack(left) if left else torch.empty(0),
        }

    def load_rank_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``rank_state`` returned."""
        parts = zip(state["env_id"], state["episode_id"], state["left"], strict=True)
        self._left = {int(env): (int(episode), left.clone()) for env, episode, left in parts}


def couple(distance: Tensor, left: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """Take weight from the nearest steps of the expert; return the costs, and the weights that are left.

    Args:
        distance: Distances of N steps to those of the expert, shape (N, E).
        left: Weights of the expert's steps, shape (N, E), in double precision.
        weight: Weight of each of the N steps, > 0.

    Returns:
        The costs, shape (N,), infinite where no weight was left, and the weights afterwards, shape (N, E).

    Example:
        >>> distance, left = torch.tensor([[3.0, 1.0]]), torch.tensor([[0.5, 0.5]], dtype=torch.float64)
        >>> cost, left = couple(distance, left, 0.75)
        >>> cost.tolist(), left.tolist()
        ([1.25], [[0.25, 0.0]])
    """
    left = torch.where(left > NOTHING, left, 0.0)
    ordered, order = torch.where(left > 0, distance.double(), torch.inf).sort(1)
    weights = left.gather(1, order)
    before = weights.cumsum(1) - weights
    taken = (weight - before).clamp(min=0).minimum(weights)
    cost = (taken * ordered.nan_to_num(posinf=0.0)).sum(1)
    cost = torch.where(taken.sum(1) > 0, cost, torch.inf)
    return cost.float(), left.scatter(1, order, (weights - taken).clamp(min=0))


def _places(env_id: Tensor) -> Tensor:
    """Return how many earlier rows are of the same env, for each row."""
    same = env_id.argsort(stable=True)
    ordered = env_id[same]
    first = torch.searchsorted(ordered, ordered)
    places = torch.empty_like(same)
    places[same] = torch.arange(len(same)) - first
    return places
