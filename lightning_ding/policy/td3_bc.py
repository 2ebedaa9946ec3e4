"""TD3+BC: TD3 on a data set, with an actor that also imitates the data.

Paper: Fujimoto and Gu 2021, eq. 3 and 5 (https://arxiv.org/abs/2106.06860). Their normalisation of observations is
``norm_obs`` of the datamodule.

Where this differs: the mean absolute value that scales the actor's objective is that of all ranks' minibatches; noise
and the distance to the data are in normalised units of actions, [-1, 1] in every dimension.

Shapes: B batch, A dimensions of an action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor

from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.ddpg import DDPGCollectConfig, DDPGPolicy
from lightning_ding.policy.qac import ActorCriticBatch, QACConfig, QACModelConfig, QACPolicy
from lightning_ding.policy.td3 import TD3LearnConfig
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.ranks import sum_over_ranks, world_size


@dataclass(frozen=True, kw_only=True)
class TD3BCModelConfig(QACModelConfig):
    """The actor and the critics."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_box = not isinstance(self.action_shape, Mapping)
        require(
            is_box, "model.action_shape", "a number of dimensions: there is no choice to imitate", self.action_shape
        )


@dataclass(frozen=True, kw_only=True)
class TD3BCLearnConfig(TD3LearnConfig):
    """Options for updates."""

    update_per_collect: int = 10
    """Updates of a round, >= 1."""
    learning_rate_actor: float = 3e-4
    """Step size of the actor's optimizer, > 0."""
    learning_rate_critic: float = 3e-4
    """Step size of the critics' optimizer, > 0."""
    alpha: float = 2.5
    """Weight of the values against imitation in the actor's loss, >= 0; 0 only imitates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alpha >= 0, "learn.alpha", ">= 0", self.alpha)


@dataclass(frozen=True, kw_only=True)
class TD3BCConfig(QACConfig):
    """Everything that can be set of TD3+BC."""

    model: TD3BCModelConfig = field(default_factory=TD3BCModelConfig)
    """The actor and the critics."""
    learn: TD3BCLearnConfig = field(default_factory=TD3BCLearnConfig)
    """Options for updates."""
    collect: DDPGCollectConfig = field(default_factory=DDPGCollectConfig)
    """Options for collecting, when training continues in an env: the amount, the collector and the exploration."""


@POLICY_REGISTRY.register("td3_bc")
class TD3BCPolicy(DDPGPolicy):
    """TD3+BC for continuous actions; vector, image and dict observations.

    :class:`QACPolicy` describes a network passed as ``model``; its ``compute_actor`` returns ``action``.

    Example:
        >>> TD3BCPolicy({"learn": {"alpha": 1.0}}).config.learn.actor_update_freq
        2
    """

    config_class: ClassVar[type[PolicyConfig]] = TD3BCConfig
    supports_tensors: ClassVar[bool] = False
    trains_on: ClassVar[str] = "dataset"
    config: TD3BCConfig  # type: ignore[assignment]

    def actor_loss(self, batch: ActorCriticBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actor's loss (eq. 3) on a prepared minibatch, and the metrics to report, detached.

        It reports scalars: ``actor_loss``, and ``bc_loss``, the mean squared distance to the actions in the data.
        """
        action = self.model.compute_actor(batch["obs"])["action"]
        q = self.model.compute_critic(batch["obs"], action, members=1)["q_value"]
        bc_loss = F.mse_loss(action, batch["action"])
        size = sum_over_ranks(q.detach().abs().mean()) / world_size()  # eq. 5
        loss = bc_loss - self.config.learn.alpha / size.clamp(min=1e-8) * q.mean()
        return loss, {"actor_loss": loss.detach(), "bc_loss": bc_loss.detach()}

    def _shapes_of(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any]:
        return QACPolicy._shapes_of(self, observation_space, action_space)

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "bc_loss"]
