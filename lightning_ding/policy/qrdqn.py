"""QR-DQN: Q-learning with quantiles of the return, double Q-learning and n-step returns.

Papers: Dabney et al. 2018, eq. 10 and algorithm 1 (https://arxiv.org/abs/1710.10044); double: van Hasselt et al. 2016,
eq. 4 (https://arxiv.org/abs/1509.06461); n-step: Hessel et al. 2018, section 3 (https://arxiv.org/abs/1710.02298);
priorities: Schaul et al. 2016 (https://arxiv.org/abs/1511.05952).

Where this differs: the online network chooses the next action; set ``double_q`` to false to follow the paper. The loss
uses ``kappa``. A priority is the item's quantile Huber loss, which the update minimises. A truncated step bootstraps
from its true final observation, as in DQN.

Shapes: B batch, A actions, N quantiles.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.optimizers import OptimizerConfig
from lightning_ding.policy.q_learning import (
    QBatch,
    QLearningConfig,
    QLearningLearnConfig,
    QLearningModelConfig,
    QLearningPolicy,
)
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class QRDQNModelConfig(QLearningModelConfig):
    """The Q-network: an encoder and a head."""

    action_shape: int | None = None
    """Number of actions; None means that it is taken from the env."""
    num_quantiles: int = 32
    """Number of quantiles of each action's return, >= 1."""
    dueling: bool = False
    """Split the head into a state value and advantages."""

    def __post_init__(self) -> None:
        require(self.num_quantiles >= 1, "model.num_quantiles", ">= 1", self.num_quantiles)


@dataclass(frozen=True, kw_only=True)
class QRDQNOptimizerConfig(OptimizerConfig):
    """The class of the optimizers and their further arguments."""

    eps: float = 0.01 / 32
    """Added to the denominator of the step, > 0; not for sgd. The default is that of Dabney et al. 2018, and of IQN and
    FQF."""


@dataclass(frozen=True, kw_only=True)
class QRDQNLearnConfig(QLearningLearnConfig):
    """Options for updates."""

    optimizer: QRDQNOptimizerConfig = field(default_factory=QRDQNOptimizerConfig)
    """The class of the optimizers."""
    kappa: float = 1.0
    """Error up to which the quantile Huber loss is quadratic, > 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.kappa > 0, "learn.kappa", "> 0", self.kappa)


@dataclass(frozen=True, kw_only=True)
class QRDQNConfig(QLearningConfig):
    """Everything that can be set of QR-DQN."""

    model: QRDQNModelConfig = field(default_factory=QRDQNModelConfig)
    """The Q-network."""
    learn: QRDQNLearnConfig = field(default_factory=QRDQNLearnConfig)
    """Options for updates."""


@POLICY_REGISTRY.register("qrdqn")
class QRDQNPolicy(QLearningPolicy[QRDQNConfig]):
    """QR-DQN for discrete actions; vector, image and dict observations; action masks.

    The arguments are those of :class:`Policy`; a ``model`` maps observations to ``logit`` (B, A), ``q`` (B, A, N) and
    ``tau`` (N,).

    Example:
        >>> policy = QRDQNPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.eval_mode.forward({0: torch.zeros(4), 1: torch.ones(4)})[1]["action"].shape
        torch.Size([])
    """

    config_class: ClassVar[type[PolicyConfig]] = QRDQNConfig
    supports_tensors: ClassVar[bool] = True
    divides_by_kappa: ClassVar[bool] = False
    """Divide the quantile Huber loss by kappa, as in the papers that followed."""

    def target_outputs(self, batch: Any) -> dict[str, Any]:
        """Return the target network's values and quantiles of the next observations."""
        return self._of_target(batch["next_obs"], "logit", "q")

    def loss(self, batch: QBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the quantile Huber loss of a minibatch and the metrics to report; see :meth:`QLearningPolicy.loss`."""
        return self._quantile_loss(batch, *self._prediction(batch))

    def _quantile_loss(self, batch: QBatch, prediction: Tensor, tau: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and the metrics of :meth:`loss`, of the quantiles of the action taken and their levels."""
        target, kappa = self._target(batch), self.config.learn.kappa
        quantile_huber = rl.quantile_huber(prediction, target, tau, kappa)
        if self.divides_by_kappa:
            quantile_huber = quantile_huber / kappa
        loss = rl.weighted_mean(quantile_huber, self._weight(batch))
        q_value = prediction.detach().mean(1)
        report = {"total_loss": loss.detach(), "q_value": q_value, "target_q_value": target.mean(1)}
        if self.config.priority:
            report["priority"] = quantile_huber.detach()
        return loss, report

    def _prediction(self, batch: QBatch) -> tuple[Tensor, Tensor]:
        """Return the quantiles of the action taken, shape (B, N), and their levels, shape (N,) or (B, N)."""
        output = self._output(self.model, batch["obs"])
        return rl.take_action_distribution(output["q"], batch["action"]), output["tau"]

    @torch.no_grad()
    def _target(self, batch: QBatch) -> Tensor:
        """Return the quantiles of the target, shape (B, N)."""
        quantile_t = rl.take_action_distribution(batch["target"]["q"], self._next_action(batch))
        return rl.quantile_target(batch["reward"], batch["discount_t"], quantile_t)

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered Q-network."""
        return "qrdqn", ["lightning_ding.model.qrdqn"]
