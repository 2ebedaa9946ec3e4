"""AWAC: an actor that imitates the actions of the data, weighted by the advantage that its own critics give them.

Paper: Nair et al. 2020, algorithm 1 and eq. 13 (https://arxiv.org/abs/2006.09359).

Where this differs: the value of an observation is the mean over ``num_actions`` sampled actions, where the authors take
one; weights are bounded by 100, as in IQL, instead of normalised over the minibatch; the standard deviation depends on
the observation; importance-sampling weights weigh the critics' loss only.

Shapes: B batch, A dimensions of an action, E critics, N sampled actions of an observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.qac import ActorCriticBatch
from lightning_ding.policy.weighted_actor import WeightedActorConfig, WeightedActorLearnConfig, WeightedActorPolicy
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.ranks import sum_over_ranks, world_size


@dataclass(frozen=True, kw_only=True)
class AWACLearnConfig(WeightedActorLearnConfig):
    """Options for updates."""

    beta: float = 1.0
    """Inverse temperature of the weights exp(beta * advantage) in the actor's loss, >= 0; 0 only imitates."""
    num_actions: int = 1
    """Actions of the actor whose mean value is that of an observation, >= 1."""
    norm_advantage: bool = False
    """Divide advantages by their root mean square in the minibatches of all ranks, so that ``beta`` does not depend on
    the size of rewards and values."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.beta >= 0, "learn.beta", ">= 0", self.beta)
        require(self.num_actions >= 1, "learn.num_actions", ">= 1", self.num_actions)


@dataclass(frozen=True, kw_only=True)
class AWACConfig(WeightedActorConfig):
    """Everything that can be set of AWAC."""

    learn: AWACLearnConfig = field(default_factory=AWACLearnConfig)
    """Options for updates."""


@POLICY_REGISTRY.register("awac")
class AWACPolicy(WeightedActorPolicy[AWACConfig]):
    """AWAC for continuous actions; vector, image and dict observations.

    :class:`WeightedActorPolicy` describes a network passed as ``model``.

    Example:
        >>> policy = AWACPolicy({"model": {"obs_shape": 3, "action_shape": 1}})
        >>> policy.eval_mode.forward(torch.zeros(5, 3))["action"].shape
        torch.Size([5, 1])
    """

    config_class: ClassVar[type[PolicyConfig]] = AWACConfig
    trains_on: ClassVar[str] = "dataset"

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        report = self._learn_critics(batch)
        report |= self.updater.minimise(self.actor_loss, batch, 1)
        self._update_target("critic")
        return report

    def _weight(self, batch: ActorCriticBatch) -> Tensor:
        q = self.model.compute_critic(batch["obs"], batch["action"])["q_value"].amin(0)
        drawn = [self._sample(batch["obs"], noise) for noise in batch["noise"].unbind(-1)]
        values = [self.model.compute_critic(batch["obs"], action)["q_value"].amin(0) for action in drawn]
        advantage = q - torch.stack(values).mean(0)
        if self.config.learn.norm_advantage:
            size = (sum_over_ranks(advantage.square().mean()) / world_size()).sqrt()
            advantage = advantage / size.clamp(min=1e-8)
        return rl.advantage_weight(advantage, self.config.learn.beta)

    def _targets(self, batch: ActorCriticBatch) -> Tensor:
        action = self._sample(batch["next_obs"], batch["next_noise"])
        q_t = self.target_model.compute_critic(batch["next_obs"], action)["q_value"]
        return rl.pessimistic_target(batch["reward"], batch["discount_t"], q_t)

    def _sample(self, obs: Any, noise: Tensor) -> Tensor:
        """Return sampled actions within the box, shape (B, A)."""
        mean, log_sigma = self._distribution(obs)
        return torch.addcmul(mean, log_sigma.exp(), noise).clamp(-1, 1)

    def _noise(self, shape: Sequence[int]) -> dict[str, np.ndarray[Any, Any]]:
        shape, number = [*shape, self._action_size()], self.config.learn.num_actions
        return {"noise": self._standard_normal([*shape, number]), "next_noise": self._standard_normal(shape)}
