"""TQC: SAC with an ensemble of critics that predict quantiles, of which the target leaves out the largest.

Paper: Kuznetsov et al. 2020, section 4 (https://arxiv.org/abs/2005.04269). The actor and the temperature are those of
SAC, except that the actor maximises the mean of all quantiles of all critics instead of the smallest value.

Where this differs: as in SAC, see ``sac``. A priority is an item's loss, averaged over the critics. The number of
critics, of quantiles and of those left out, the batch size and the step sizes are those of the paper. The critics have
two layers of 256 units, as the actor; the paper's have three of 512. The temperature starts from SAC's 0.2, that of the
authors' code from 1.

Shapes: B batch, E critics, N quantiles, K quantiles of the target.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal  # noqa: F401 - the command line evaluates the types of all fields of a section here

import torch
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.model.residual import LayersConfig  # noqa: F401 - as Literal
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.qac import ActorCriticBatch, ContinuousNetworkConfig
from lightning_ding.policy.sac import SACCollectConfig, SACLearnConfig, SACModelConfig, SACPolicy, SoftConfig
from lightning_ding.policy.state_dependent_exploration import SquashedSDEModelConfig, check_sde
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class TQCModelConfig(SquashedSDEModelConfig, ContinuousNetworkConfig):
    """The actor and the critics."""

    MOVED: ClassVar[dict[str, str]] = SACModelConfig.MOVED

    ensemble_num: int = 5
    """Number of critics, >= 1."""
    num_quantiles: int = 25
    """Number of quantiles of the return that each critic predicts, >= 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("ensemble_num", "num_quantiles"):
            require(getattr(self, name) >= 1, f"model.{name}", ">= 1", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class TQCLearnConfig(SACLearnConfig):
    """Options for updates."""

    dropped_quantiles: int = 2
    """Number of quantiles per critic that the target leaves out, the largest of the ensemble, in [0,
    model.num_quantiles). More of them counter overestimation more strongly."""
    kappa: float = 1.0
    """Error up to which the quantile Huber loss is quadratic, > 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.kappa > 0, "learn.kappa", "> 0", self.kappa)


@dataclass(frozen=True, kw_only=True)
class TQCConfig(SoftConfig):
    """Everything that can be set of TQC."""

    model: TQCModelConfig = field(default_factory=TQCModelConfig)
    """The actor and the critics."""
    learn: TQCLearnConfig = field(default_factory=TQCLearnConfig)
    """Options for updates."""
    collect: SACCollectConfig = field(default_factory=SACCollectConfig)
    """Options for collecting: the amount, the collector and the exploration."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sde(self.model, self.collect)
        dropped, quantiles = self.learn.dropped_quantiles, self.model.num_quantiles
        allowed = f"in [0, {quantiles}), below model.num_quantiles"
        require(0 <= dropped < quantiles, "learn.dropped_quantiles", allowed, dropped)


@POLICY_REGISTRY.register("tqc")
class TQCPolicy(SACPolicy):
    """TQC for continuous actions; vector, image and dict observations.

    In addition to SAC's interface, ``compute_critic`` of a network passed as ``model`` returns ``quantile`` (E, B, N),
    and ``tau`` (N,), the levels of the quantiles.

    Example:
        >>> policy = TQCPolicy({"model": {"obs_shape": 3, "action_shape": 1}})
        >>> policy.model.compute_critic(torch.zeros(4, 3), torch.zeros(4, 1))["quantile"].shape
        torch.Size([5, 4, 25])
    """

    config_class: ClassVar[type[PolicyConfig]] = TQCConfig
    config: TQCConfig

    def critic_loss(self, batch: ActorCriticBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the critics' loss on a prepared minibatch and the metrics; see :meth:`QACPolicy.critic_loss`."""
        with torch.no_grad(), self._in_eval_mode.context:
            target = self._targets(batch)
        output = self.model.compute_critic(batch["obs"], batch["action"])
        losses = rl.ensemble_quantile_huber(output["quantile"], target, output["tau"], self.config.learn.kappa)
        loss = (batch["IS"] * losses if self.config.priority_IS_weight else losses).mean(1).sum()
        report = {"critic_loss": loss.detach(), "q_value": output["q_value"].detach(), "target_q_value": target.mean(1)}
        if self.config.priority:
            report["priority"] = losses.detach().mean(0)
        return loss, report

    def _targets(self, batch: ActorCriticBatch) -> Tensor:
        """Return samples of the target distribution, shape (B, K)."""
        action, log_prob = self._sample(batch["next_obs"], batch["next_noise"])
        quantile_t = self.target_model.compute_critic(batch["next_obs"], action)["quantile"]
        smallest = rl.truncated_quantiles(quantile_t, self.config.learn.dropped_quantiles)
        soft = smallest - self.alpha * log_prob[:, None]
        return rl.quantile_target(batch["reward"], batch["discount_t"], soft)

    def _actor_values(self, batch: ActorCriticBatch, action: Tensor) -> Tensor:
        return super()._actor_values(batch, action).mean(0, keepdim=True)
