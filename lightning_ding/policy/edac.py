"""EDAC: SAC on a data set with many critics, kept diverse, of which the smallest value counts.

Paper: An et al. 2021, eq. 4 and algorithm 1 (https://arxiv.org/abs/2110.01548). Where critics agree on the direction in
which an action improves, the smallest of their values falls too little outside of the data; the loss of the critics
adds the similarity of their gradients by the action. With ``learn.eta`` 0 it is SAC-N of the same paper.

Where this differs: gradients are those by normalised actions. Networks have two layers of 256 units, where the paper
has three, and the temperature starts at 0.2. ``learn.with_q_entropy`` false leaves the entropy out of the targets.
Importance-sampling weights weigh the temporal-difference error only. The
remaining differences are those of SAC.

Shapes: B batch, A dimensions of an action, E critics.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.qac import ActorCriticBatch, ContinuousNetworkConfig
from lightning_ding.policy.sac import SACLearnConfig, SACPolicy, SoftConfig
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class EDACModelConfig(ContinuousNetworkConfig):
    """The actor and the critics."""

    ensemble_num: int = 10
    """Number of critics, >= 2."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.ensemble_num >= 2, "model.ensemble_num", ">= 2", self.ensemble_num)


@dataclass(frozen=True, kw_only=True)
class EDACLearnConfig(SACLearnConfig):
    """Options for updates."""

    update_per_collect: int = 10
    """Updates of a round, >= 1."""
    eta: float = 1.0
    """Weight of the similarity of the critics' gradients in their loss, >= 0; 0 leaves it out."""
    with_q_entropy: bool = True
    """Count the entropy in the critics' targets, as SAC does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.eta >= 0, "learn.eta", ">= 0", self.eta)


@dataclass(frozen=True, kw_only=True)
class EDACConfig(SoftConfig):
    """Everything that can be set of EDAC."""

    model: EDACModelConfig = field(default_factory=EDACModelConfig)
    """The actor and the critics."""
    learn: EDACLearnConfig = field(default_factory=EDACLearnConfig)
    """Options for updates."""


@POLICY_REGISTRY.register("edac")
class EDACPolicy(SACPolicy):
    """EDAC for continuous actions; vector, image and dict observations.

    In addition to SAC's interface, ``compute_critic`` of a network passed as ``model`` takes an action for each critic,
    shape (E, B, A), and must have a second derivative.

    Example:
        >>> policy = EDACPolicy({"model": {"obs_shape": 3, "action_shape": 1}})
        >>> policy.model.compute_critic(torch.zeros(4, 3), torch.zeros(4, 1))["q_value"].shape
        torch.Size([10, 4])
    """

    config_class: ClassVar[type[PolicyConfig]] = EDACConfig
    trains_on: ClassVar[str] = "dataset"
    supports_tensors: ClassVar[bool] = False
    config: EDACConfig

    def critic_loss(self, batch: ActorCriticBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return SAC's loss of the critics plus their similarity (eq. 4), and the metrics to report, detached.

        It also reports ``gradient_similarity``, a scalar, see :func:`rl.gradient_similarity`.
        """
        eta = self.config.learn.eta
        if not eta:
            return super().critic_loss(batch)
        with torch.no_grad(), self._in_eval_mode.context:
            target = self._targets(batch)
        anchor = next(iter(self.model.critic.parameters())).flatten()[0]  # requires_grad_ cannot be compiled
        action = batch["action"].expand(self.config.model.ensemble_num, -1, -1) + 0 * anchor
        q = self.model.compute_critic(batch["obs"], action)["q_value"]
        loss, report = self._td_loss(batch, q, target)
        (gradient,) = torch.autograd.grad(q.sum(), action, create_graph=True)  # an action has the value of one critic
        similarity = rl.gradient_similarity(gradient)
        loss = loss + eta * similarity
        return loss, {**report, "critic_loss": loss.detach(), "gradient_similarity": similarity.detach()}

    def _targets(self, batch: ActorCriticBatch) -> Tensor:
        if self.config.learn.with_q_entropy:
            return super()._targets(batch)
        action, _ = self._sample(batch["next_obs"], batch["next_noise"])
        q_t = self.target_model.compute_critic(batch["next_obs"], action)["q_value"]
        return rl.pessimistic_target(batch["reward"], batch["discount_t"], q_t)

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "gradient_similarity"]
