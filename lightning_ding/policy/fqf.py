"""FQF: Q-learning with values of the return at quantile levels that a second network proposes for each observation.

Paper: Yang et al. 2019, proposition 1 and algorithm 1 (https://arxiv.org/abs/1911.02140); the other parts are those of
``iqn`` and ``qrdqn``.

Where this differs: the target network proposes the levels of the target, and the online network chooses the next
action; set ``double_q`` to false to follow the paper. The gradient of the levels is that of proposition 1 everywhere,
also where the values do not increase with the level. Adam trains the levels too, instead of RMSprop. The default rates
are the paper's. Adam moves a weight by about its rate in an update, so 2.5e-9 moves the levels in millions of updates
only. With a much larger rate the values may diverge: the loss gives the same weight to the values of all levels, so
where many levels lie close together, their part of the distribution has more weight than its probability.
Importance-sampling weights weigh the loss of the values only. The remaining differences are those of QR-DQN.

Shapes: B batch, A actions, N parts of [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.policy.base.config import NO_CLIP, PolicyConfig
from lightning_ding.policy.base.optimizers import make_optimizer
from lightning_ding.policy.iqn import IQNModelConfig
from lightning_ding.policy.q_learning import QBatch
from lightning_ding.policy.qrdqn import QRDQNConfig, QRDQNLearnConfig, QRDQNPolicy
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class FQFModelConfig(IQNModelConfig):
    """The Q-network: an encoder, an embedding of quantile levels, a head, and a layer that proposes the levels."""

    num_quantiles: int = 32
    """Number of parts into which [0, 1] is divided, >= 1."""


@dataclass(frozen=True, kw_only=True)
class FQFLearnConfig(QRDQNLearnConfig):
    """Options for updates."""

    learning_rate: float = 5e-5
    """Step size of the values, > 0."""
    learning_rate_fraction: float = 2.5e-9
    """Step size of the proposed levels, > 0."""
    ent_coef: float = 0.0
    """Weight of the entropy of the sizes of the parts, >= 0; it keeps the parts from vanishing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rate = self.learning_rate_fraction
        require(rate > 0, "learn.learning_rate_fraction", "> 0", rate)
        require(self.ent_coef >= 0, "learn.ent_coef", ">= 0", self.ent_coef)


@dataclass(frozen=True, kw_only=True)
class FQFConfig(QRDQNConfig):
    """Everything that can be set of FQF."""

    model: FQFModelConfig = field(default_factory=FQFModelConfig)
    """The Q-network."""
    learn: FQFLearnConfig = field(default_factory=FQFLearnConfig)
    """Options for updates."""


@POLICY_REGISTRY.register("fqf")
class FQFPolicy(QRDQNPolicy):
    """FQF for discrete actions; vector, image and dict observations; action masks.

    The arguments are those of :class:`Policy`; a ``model`` maps observations to ``logit`` (B, A), ``q`` (B, A, N) and
    ``tau`` (B, N), and has the module ``fraction`` and the method ``propose`` of :class:`FQF`.

    Example:
        >>> import torch
        >>> policy = FQFPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.eval_mode.forward({0: torch.zeros(4), 1: torch.ones(4)})[1]["action"].shape
        torch.Size([])
    """

    config_class: ClassVar[type[PolicyConfig]] = FQFConfig
    config: FQFConfig
    divides_by_kappa: ClassVar[bool] = True
    model: Any

    def _init_learn(self) -> None:
        self._make_target()
        learn, levels = self.config.learn, list(self.model.fraction.parameters())
        values = [one for name, one in self.model.named_parameters() if not name.startswith("fraction.")]
        self.updater.optimizers = [
            make_optimizer(learn.optimizer, values, learn.learning_rate),
            make_optimizer(learn.optimizer, levels, learn.learning_rate_fraction),
        ]

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        report = self.updater.minimise(self.fraction_loss, batch, 1, NO_CLIP)
        return report | super()._forward_learn(batch)

    def fraction_loss(self, batch: QBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the proposed levels, a scalar, and the metrics to report, detached.

        It reports ``fraction_loss``, a scalar, and ``fraction_entropy`` (B,).
        """
        with self._in_eval_mode:  # only the proposal itself, a linear layer, is differentiated
            proposed, action = self.model.propose(batch["obs"]), batch["action"]
        q_ends, q_middles = (rl.take_action_distribution(proposed[name], action) for name in ("q_ends", "q_middles"))
        loss = rl.fraction_loss(proposed["ends"], q_ends, q_middles).mean()
        entropy = proposed["entropy"]
        loss = loss - self.config.learn.ent_coef * entropy.mean()
        return loss, {"fraction_loss": loss.detach(), "fraction_entropy": entropy.detach()}

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "fraction_loss", "fraction_entropy"]

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered Q-network."""
        return "fqf", ["lightning_ding.model.fqf"]
