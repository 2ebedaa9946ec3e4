"""IQL: values of the best actions in the data, without a query of any other action.

Paper: Kostrikov et al. 2021 (https://arxiv.org/abs/2110.06169), whose equations are meant below; constants are those of
the authors' code.

Where this differs: the standard deviation depends on the observation; the value network has the sizes of the critics,
but always plain layers (``model.critic_layers`` is of the critics only); importance-sampling weights weigh the critics'
loss only. The authors let the actor's step size fall to 0 with the shape of a cosine; here ``learn.lr_scheduler``
changes all step sizes, and is constant by default.

Shapes: B batch, A dimensions of an action, E critics.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require, searched
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.optimizers import make_optimizer
from lightning_ding.policy.qac import ActorCriticBatch
from lightning_ding.policy.weighted_actor import WeightedActorConfig, WeightedActorLearnConfig, WeightedActorPolicy
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class IQLLearnConfig(WeightedActorLearnConfig):
    """Options for updates."""

    learning_rate_value: float = searched(3e-4, "log(1e-5, 1e-2)")
    """Step size of the value network's optimizer, > 0."""
    tau: float = 0.7
    """Expectile of the value, in (0, 1): 0.5 is the value of the data's policy, near 1 that of its best actions."""
    beta: float = 3.0
    """Inverse temperature of the weights exp(beta * advantage) in the actor's loss, >= 0; 0 only imitates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.learning_rate_value > 0, "learn.learning_rate_value", "> 0", self.learning_rate_value)
        require(0 < self.tau < 1, "learn.tau", "in (0, 1)", self.tau)
        require(self.beta >= 0, "learn.beta", ">= 0", self.beta)


@dataclass(frozen=True, kw_only=True)
class IQLConfig(WeightedActorConfig):
    """Everything that can be set of IQL."""

    learn: IQLLearnConfig = field(default_factory=IQLLearnConfig)
    """Options for updates."""


@POLICY_REGISTRY.register("iql")
class IQLPolicy(WeightedActorPolicy[IQLConfig]):
    """IQL for continuous actions; vector, image and dict observations.

    :class:`WeightedActorPolicy` describes a network passed as ``model``, which also has ``compute_value(obs)`` and the
    module ``value`` with its parameters.

    Example:
        >>> policy = IQLPolicy({"model": {"obs_shape": 3, "action_shape": 1}})
        >>> policy.eval_mode.forward(torch.zeros(5, 3))["action"].shape
        torch.Size([5, 1])
    """

    config_class: ClassVar[type[PolicyConfig]] = IQLConfig
    trains_on: ClassVar[str] = "dataset"

    def _init_learn(self) -> None:
        super()._init_learn()
        learn, parameters = self.config.learn, self.model.value.parameters()
        self.updater.optimizers.append(make_optimizer(learn.optimizer, parameters, learn.learning_rate_value))

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        with self._target_in_eval_mode:  # outside of the losses, which may be compiled
            report = self.updater.minimise(self.value_loss, batch, 2)
            report |= self.updater.minimise(self.actor_loss, batch, 1)
        report |= self._learn_critics(batch)
        self._update_target("critic")
        return report

    def value_loss(self, batch: ActorCriticBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the value network (eq. 5) on a prepared minibatch, and the metrics to report, detached.

        It reports ``value_loss``, a scalar, and ``value``, shape (B,).
        """
        value = self.model.compute_value(batch["obs"])
        loss = rl.expectile_loss(value, self._q_of_data(batch), self.config.learn.tau)
        return loss, {"value_loss": loss.detach(), "value": value.detach()}

    @torch.no_grad()
    def _q_of_data(self, batch: ActorCriticBatch) -> Tensor:
        """Return the target critics' smallest value of the data's actions, shape (B,)."""
        q: Tensor = self.target_model.compute_critic(batch["obs"], batch["action"])["q_value"]
        return q.amin(0)

    def _weight(self, batch: ActorCriticBatch) -> Tensor:
        advantage = self._q_of_data(batch) - self.model.compute_value(batch["obs"])
        return rl.advantage_weight(advantage, self.config.learn.beta)  # eq. 7

    def _targets(self, batch: ActorCriticBatch) -> Tensor:
        value = self.model.compute_value(batch["next_obs"])  # eq. 6
        return torch.addcmul(batch["reward"], batch["discount_t"], value).detach()

    def _model_cfg(self) -> dict[str, Any]:
        return super()._model_cfg() | {"with_value": True}

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "value", "value_loss"]
