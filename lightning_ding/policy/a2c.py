"""A2C: one pass over a rollout, each action weighed by its generalised advantage.

Papers: Mnih et al. 2016, section 4 and algorithm S3 (https://arxiv.org/abs/1602.01783), here with all envs stepping
together; advantages: Schulman et al. 2016, eq. 16 (https://arxiv.org/abs/1506.02438).

Where this differs: Adam instead of RMSProp; the last step of a rollout is kept and bootstraps from the true next
observation, as a time limit does; gamma is 0.99 by default, as for every algorithm here. ``train_iter`` counts
minibatches.

Shapes: B batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import searched
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.on_policy import ActorCriticPolicy, RolloutBatch
from lightning_ding.policy.on_policy_options import (
    ActorCriticCollectConfig,
    ActorCriticLearnConfig,
    OnPolicyConfig,
    SDEActorCriticModelConfig,
)
from lightning_ding.policy.state_dependent_exploration import SDECollectConfig, check_sde
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.schedules import ScheduleConfig


@dataclass(frozen=True, kw_only=True)
class A2CLearnConfig(ActorCriticLearnConfig):
    """Options for updates."""

    batch_size: int | None = searched(None, None)
    """Transitions of a minibatch on each rank, >= 1, adjusted to give equal sizes; None for the whole rollout."""
    learning_rate: float = 1e-3
    """Step size at the start, > 0."""
    lr_scheduler: ScheduleConfig = field(default_factory=lambda: ScheduleConfig(type="linear"))
    """A factor of the step size that changes during the run; by default it falls to 0 at the end of the budget, and
    stays at 1 in a run without one."""
    value_weight: float = 0.25
    """Weight of the mean squared error of the critic, >= 0; PPO's multiplies half of it."""
    entropy_weight: float = 0.01
    """Weight of the policy's entropy, which keeps it exploring, >= 0."""

    @staticmethod
    def from_older(section: dict[str, Any]) -> dict[str, Any]:
        """Return a saved section of a version in which ``value_weight`` multiplied half the mean squared error."""
        return section | {"value_weight": section["value_weight"] / 2}


@dataclass(frozen=True, kw_only=True)
class A2CCollectConfig(ActorCriticCollectConfig, SDECollectConfig):
    """Options for collecting: the amount and the collector."""

    n_sample: int | None = 128
    """Transitions of a rollout on each rank, >= 1, a few more if the envs do not divide it; None with n_episode."""


@dataclass(frozen=True, kw_only=True)
class A2CModelConfig(SDEActorCriticModelConfig):
    """The network of an actor and a critic."""

    share_encoder: bool = False
    """Use one encoder for actor and critic."""


@dataclass(frozen=True, kw_only=True)
class A2CConfig(OnPolicyConfig):
    """Everything that can be set of A2C."""

    model: A2CModelConfig = field(default_factory=A2CModelConfig)
    """The network."""
    learn: A2CLearnConfig = field(default_factory=A2CLearnConfig)
    """Options for updates."""
    collect: A2CCollectConfig = field(default_factory=A2CCollectConfig)
    """Options for collecting: the amount and the collector."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.learn.check_model(self.model)
        check_sde(self.model, self.collect)


@POLICY_REGISTRY.register("a2c")
class A2CPolicy(ActorCriticPolicy[A2CConfig]):
    """A2C; discrete, multi-discrete, continuous and hybrid actions, action masks; vector, image and dict observations.

    The arguments are those of :class:`Policy`; a ``model`` has the methods ``compute_actor``, ``compute_critic`` and
    ``compute_actor_critic``, as :class:`VAC`.

    Example:
        >>> import torch
        >>> policy = A2CPolicy({"model": {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}})
        >>> policy.eval_mode.forward(torch.zeros(3, 4))["action"].shape
        torch.Size([3])
    """

    config_class: ClassVar[type[PolicyConfig]] = A2CConfig
    supports_tensors: ClassVar[bool] = True
    config: A2CConfig

    def _policy_loss(self, log_prob: Tensor, batch: RolloutBatch) -> tuple[Tensor, dict[str, Tensor]]:
        return rl.policy_gradient_loss(log_prob, batch["advantage"]), {}

    def _value_loss(self, value: Tensor, batch: RolloutBatch) -> Tensor:
        return F.mse_loss(value, batch["return"])
