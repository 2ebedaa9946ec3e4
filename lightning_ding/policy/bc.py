"""Behaviour cloning: supervised learning of the actions in a data set.

Paper: Pomerleau 1989 (https://proceedings.neurips.cc/paper/1988/hash/812b4ba287f5ee0bc9d43bbf5bbe87fb-Abstract.html).

Where this differs: the loss is the negative log likelihood for all kinds of actions; ``loss_type`` has regression
losses for continuous ones. Continuous actions are in normalised units, [-1, 1] in every dimension.

Shapes: B batch, A actions, or dimensions of a continuous action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.policy.base.config import LearnConfig, PolicyConfig
from lightning_ding.policy.base.optimizers import make_optimizer
from lightning_ding.policy.on_policy import ActorPolicy
from lightning_ding.policy.on_policy_options import ActorModelConfig
from lightning_ding.policy.qac import QACOtherConfig
from lightning_ding.policy.replay_policy import ReplayCollectConfig
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.search_spaces import Choice, LogUniform, searched


@dataclass(frozen=True, kw_only=True)
class BCLearnConfig(LearnConfig):
    """Options for updates."""

    update_per_collect: int = 10
    """Updates of a round, >= 1."""
    batch_size: int = searched(256, Choice(32, 64, 128, 256, 512))
    """Transitions of a minibatch on each rank, >= 1."""
    learning_rate: float = searched(1e-3, LogUniform(1e-5, 1e-2))
    """Step size, > 0."""
    loss_type: Literal["nll", "mse_loss", "l1_loss"] = "nll"
    """Loss of continuous actions: negative log likelihood, or squared or absolute error of the mean."""
    ce_label_smooth: float = 0.0
    """Share of a discrete action's label that is spread over all actions, in [0, 1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("update_per_collect", "batch_size"):
            require(getattr(self, name) >= 1, f"learn.{name}", ">= 1", getattr(self, name))
        require(self.learning_rate > 0, "learn.learning_rate", "> 0", self.learning_rate)
        require(0 <= self.ce_label_smooth < 1, "learn.ce_label_smooth", "in [0, 1)", self.ce_label_smooth)


@dataclass(frozen=True, kw_only=True)
class BCConfig(PolicyConfig):
    """Everything that can be set of behaviour cloning."""

    model: ActorModelConfig = field(default_factory=ActorModelConfig)
    """The network."""
    learn: BCLearnConfig = field(default_factory=BCLearnConfig)
    """Options for updates."""
    collect: ReplayCollectConfig = field(default_factory=ReplayCollectConfig)
    """Options for collecting, when training continues in an env: the amount and the collector."""
    other: QACOtherConfig = field(default_factory=QACOtherConfig)
    """Replay."""


@POLICY_REGISTRY.register("bc")
class BCPolicy(ActorPolicy[BCConfig]):
    """Behaviour cloning; discrete, multi-discrete, continuous and hybrid actions, action masks; any observations.

    The arguments are those of :class:`Policy`; a ``model`` maps observations to ``{"logit": ...}``, as :class:`PG`.

    Example:
        >>> policy = BCPolicy({"model": {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}})
        >>> policy.eval_mode.forward(torch.zeros(3, 4))["action"].shape
        torch.Size([3])
    """

    config_class: ClassVar[type[PolicyConfig]] = BCConfig
    trains_on: ClassVar[str] = "dataset"

    def _init_learn(self) -> None:
        learn = self.config.learn
        self.updater.optimizers = [make_optimizer(learn.optimizer, self.model.parameters(), learn.learning_rate)]

    def _init_spaces(self) -> None:
        super()._init_spaces()
        learn, kind = self.config.learn, self.config.model.action_space
        is_used = kind != "discrete" or learn.loss_type == "nll"
        require(is_used, "learn.loss_type", "'nll' for discrete actions", learn.loss_type)
        is_used = kind != "continuous" or not learn.ce_label_smooth
        require(is_used, "learn.ce_label_smooth", "0 for continuous actions", learn.ce_label_smooth)

    def _forward_collect(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
        return {"action": self._to_env(self._distribution(self._logit(obs), obs).sample(self.rng))}

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        return self.updater.minimise(self.loss, batch)

    def loss(self, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch and the metrics to report.

        Args:
            batch: ``obs``, and ``action`` in the env's units, discrete ones counted from 0.

        Returns:
            The loss, and ``total_loss`` to report, a detached scalar.
        """
        logit = self._logit(batch["obs"])
        distribution = self._distribution(logit, batch["obs"])
        loss = self._distance(distribution, batch["action"]).mean()
        return loss, {"total_loss": loss.detach()}

    def _distance(self, distribution: Any, action: Any) -> Tensor:
        """Return the loss of each action, shape (B,)."""
        if isinstance(distribution, rl.HybridDistribution):
            choice, arguments = distribution.action_type, distribution.action_args
            return self._distance(choice, action["action_type"]) + self._distance(arguments, action["action_args"])
        if isinstance(distribution, rl.MultiCategorical):
            pairs = zip(distribution.parts, action.unbind(1), strict=True)
            return torch.stack([self._distance(part, chosen) for part, chosen in pairs]).sum(0)
        if isinstance(distribution, rl.Categorical):
            return rl.smoothed_cross_entropy(distribution.log_p, action, self.config.learn.ce_label_smooth)
        target = action if self.bounds is None else self.bounds.from_env(action)
        if self.config.learn.loss_type == "nll":
            log_prob: Tensor = distribution.log_prob(target)
            return -log_prob
        error = F.mse_loss if self.config.learn.loss_type == "mse_loss" else F.l1_loss
        per_dimension: Tensor = error(distribution.mode(), target, reduction="none")
        return per_dimension.mean(1)

    def default_model(self) -> tuple[str, list[str]]:
        """Return the registered actor network."""
        return "pg", ["lightning_ding.model.pg"]

    @property
    def discount_factor(self) -> float:
        """The discount factor: 1, because no return is computed."""
        return 1.0
