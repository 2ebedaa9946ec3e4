"""CrossQ: SAC without target networks, with batch renormalisation in the critics and in the actor.

Paper: Bhatt et al. 2024 (https://arxiv.org/abs/1902.05605); batch renormalisation: Ioffe 2017
(https://arxiv.org/abs/1702.03275). The critics evaluate the actions taken and the next actions in one batch, so that
its statistics cover both distributions; the values of the next actions are the target.

Where this differs: as in SAC, see ``sac``. The next actions come from the actor with its running statistics, as do the
values in the actor's loss, as in the authors' code. The temperature's step size is SAC's 3e-4, and its optimizer has
the betas (0.5, 0.999) of the others; SBX, which has the authors' implementation, trains it with the actor's step size
of 1e-3 and Adam's default betas. Learning begins after 1,000 random steps (``random_collect_size``) instead of the
authors' 5,000. Under DDP each rank normalises by the statistics of its minibatch; the running statistics take the mean
over the ranks.

Shapes: B batch, E critics.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_ding import nested, rl
from lightning_ding.config import require
from lightning_ding.model.batch_renorm import update_layers
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.optimizers import OptimizerConfig
from lightning_ding.policy.qac import ActorCriticBatch, ContinuousNetworkConfig
from lightning_ding.policy.sac import SACLearnConfig, SACPolicy, SoftConfig
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.ranks import sum_over_ranks, world_size


@dataclass(frozen=True, kw_only=True)
class CrossQModelConfig(ContinuousNetworkConfig):
    """The actor and the critics."""

    has_statistics: ClassVar[bool] = True

    ensemble_num: int = 2
    """Number of critics, >= 1; the target is the smallest of their values."""
    critic_head_hidden_size: int = 2048
    """Width of the critics' hidden layers, >= 1."""
    renorm_momentum: float = 0.01
    """Step size of the running statistics, in (0, 1]."""
    renorm_warmup: int = 100_000
    """Updates with batch normalisation before batch renormalisation begins, >= 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.ensemble_num >= 1, "model.ensemble_num", ">= 1", self.ensemble_num)
        require(0 < self.renorm_momentum <= 1, "model.renorm_momentum", "in (0, 1]", self.renorm_momentum)
        require(self.renorm_warmup >= 0, "model.renorm_warmup", ">= 0", self.renorm_warmup)
        layers = (self.actor_layers, self.critic_layers)
        fits = all(one.is_plain for one in layers) or all(one.uses_batch for one in layers)
        allowed = "both plain, or both with the norm 'batch' or 'batch_renorm'"
        require(fits, "model.actor_layers and model.critic_layers", allowed, [(one.type, one.norm) for one in layers])
        renorm = (self.renorm_momentum, self.renorm_warmup)
        names = "model.renorm_momentum and model.renorm_warmup"
        allowed = "left at their defaults with model.critic_layers, which has momentum and warmup"
        require(self.critic_layers.is_plain or renorm == (0.01, 100_000), names, allowed, renorm)


@dataclass(frozen=True, kw_only=True)
class CrossQLearnConfig(SACLearnConfig):
    """Options for updates."""

    learning_rate_q: float = 1e-3
    """Step size of the critics' optimizer, > 0."""
    learning_rate_policy: float = 1e-3
    """Step size of the actor's optimizer, > 0."""
    alpha: float = 1.0
    """Temperature, or the one to start from with auto_alpha, >= 0; the authors' code starts from 1."""
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(betas=(0.5, 0.999)))
    """The optimizers."""
    actor_update_freq: int = 3
    """Updates of the critics between two of the actor and the temperature, >= 1."""
    target_theta: float | None = None
    """None: there is no target network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.actor_update_freq >= 1, "learn.actor_update_freq", ">= 1", self.actor_update_freq)
        for name in ("target_theta", "target_update_freq"):
            value = getattr(self, name)
            require(value is None, f"learn.{name}", "None, because there is no target network", value)

    def unsearched(self) -> set[str]:
        """Return the options of the target network, which there is not."""
        return {"target_theta", "target_update_freq"}


@dataclass(frozen=True, kw_only=True)
class CrossQConfig(SoftConfig):
    """Everything that can be set of CrossQ; the defaults are those of the paper, except as said above."""

    model: CrossQModelConfig = field(default_factory=CrossQModelConfig)
    """The actor and the critics."""
    learn: CrossQLearnConfig = field(default_factory=CrossQLearnConfig)
    """Options for updates."""


@POLICY_REGISTRY.register("crossq")
class CrossQPolicy(SACPolicy):
    """CrossQ for continuous actions; vector, image and dict observations.

    In addition to SAC's interface, ``compute_actor`` and ``compute_critic`` of a network passed as ``model`` take an
    argument ``by_batch``. With it they normalise by the statistics of the batch and also return ``statistics``, the
    argument of ``lightning_ding.model.batch_renorm.update_layers``.

    Example:
        >>> policy = CrossQPolicy({"model": {"obs_shape": 3, "action_shape": 1, "critic_head_hidden_size": 64}})
        >>> policy.model.compute_critic(torch.zeros(4, 3), torch.zeros(4, 1))["q_value"].shape
        torch.Size([2, 4])
    """

    config_class: ClassVar[type[PolicyConfig]] = CrossQConfig
    config: CrossQConfig
    has_target: ClassVar[bool] = False

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        report = self.updater.minimise(self.critic_loss, batch)
        self._update_statistics(self.model.critic, report, report["critic_loss"])
        if (self.progress.train_iter + 1) % self.config.learn.actor_update_freq == 0:
            report |= self._learn_actor(batch)
            self._update_statistics(self.model.actor, report, report["actor_loss"])
        return report

    def _update_statistics(self, part: torch.nn.Module, report: dict[str, Any], loss: Tensor, repeats: int = 1) -> None:
        """Update the running statistics of a part of the network from those of the minibatch, on all ranks alike.

        They move ``repeats`` times towards the same statistics. Nothing changes if the loss of the minibatch is not
        finite, since the optimizer skips it too.
        """
        if "statistics" not in report:
            return
        statistics = torch.where(loss.isfinite(), report.pop("statistics"), torch.nan)
        if world_size() > 1:
            statistics = sum_over_ranks(statistics) / world_size()
        for _ in range(repeats):
            update_layers(part, statistics)

    def critic_loss(self, batch: ActorCriticBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the critics' loss on a prepared minibatch and the metrics; see :meth:`QACPolicy.critic_loss`.

        The report also has ``statistics`` of the critics' layers, which are no metric.
        """
        with torch.no_grad(), self._in_eval_mode.context:
            next_action, log_prob = self._sample(batch["next_obs"], batch["next_noise"])
        obs = nested.concatenate([batch["obs"], batch["next_obs"]])
        output = self.model.compute_critic(obs, torch.cat([batch["action"], next_action]), by_batch=True)
        q, q_t = output["q_value"].chunk(2, 1)
        target = rl.soft_target(batch["reward"], batch["discount_t"], q_t, log_prob, self.alpha)
        loss, report = self._td_loss(batch, q, target)
        return loss, report | {"statistics": output["statistics"]}

    def actor_loss(self, batch: ActorCriticBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actor's loss and the metrics; see :meth:`SACPolicy.actor_loss`.

        The report also has ``statistics`` of the actor's layers, which are no metric.
        """
        if not self._uses_batch("actor"):
            return super().actor_loss(batch)
        output = self.model.compute_actor(batch["obs"], by_batch=True)
        loss, report = self._loss_of_actions(output, batch)
        return loss, report | {"statistics": output["statistics"]}

    def _uses_batch(self, part: str) -> bool:
        """Return whether the actor or the critics, by name, normalise by the statistics of a minibatch."""
        return True

    def _model_cfg(self) -> dict[str, Any]:
        return super()._model_cfg() | {"batch_renorm": self.config.model.critic_layers.is_plain}
