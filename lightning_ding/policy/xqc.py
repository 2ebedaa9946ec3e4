"""XQC: SAC whose critics predict a categorical distribution, with batch normalisation and unit weights.

Paper: Palenicek et al. 2025 (https://arxiv.org/abs/2509.25174), which builds on CrossQ (see ``crossq``) and adds a
target network, weights of norm 1 (``model.critic_layers.weights``) and the cross entropy with a projected distribution
(Bellemare et al. 2017, algorithm 1). The support is fixed, so rewards have to be scaled: ``norm_reward`` of the
datamodule divides them by the standard deviation of the discounted return.

With ``model.critic_layers.type`` and ``model.actor_layers.type`` set to ``simba_v2``, ``learn.actor_update_freq`` to 1
and ``norm_obs`` it has the networks and the losses of SimBa v2 (Lee et al. 2025), but not all settings of its authors:
they have an actor of one block of 128 and critics of two of 512, a step size that falls from 1e-4 to 5e-5, a single
critic where episodes do not terminate, rewards that are limited by the largest return as well, and a logarithm of the
standard deviation that is squashed to [-10, 2].

The critics and the target network predict for the actions taken and for the next actions in one batch, whose
statistics cover both. So the target network needs no running statistics: those of the trained critics, whose weights
are newer, do not fit its features. The target of an item is the distribution with the smallest mean among the critics.

Where this differs from the authors' code: learning begins after 1,000 random steps (``random_collect_size``), not
5,000. Under DDP each rank normalises by its own minibatch, as in CrossQ. Step sizes stay as they are, unless
``learn.lr_scheduler`` lowers them; the authors lower them to a tenth over the run. gamma is 0.99 for all envs; the
authors set it to 1 - 5 / T for a time limit of T steps, limited to [0.95, 0.995]. They make two updates for each env
step, here ``update_per_collect``. The actor's running statistics move only when it is updated, but
``actor_update_freq`` times; theirs move in each update of the critics. The logarithm of its standard deviation is
clamped to [-20, 2], not to [-10, 2]. First weights are drawn as in ``nn.Linear`` before they are projected, not as
orthogonal matrices.

Shapes: B batch, E critics, N atoms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_ding import nested, rl
from lightning_ding.config import require
from lightning_ding.model.residual import LayersConfig
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.c51 import warn_of_clipping
from lightning_ding.policy.crossq import CrossQPolicy
from lightning_ding.policy.qac import ActorCriticBatch, ContinuousNetworkConfig
from lightning_ding.policy.sac import SACLearnConfig, SoftConfig
from lightning_ding.registry import POLICY_REGISTRY


def _unit_layers() -> LayersConfig:
    return LayersConfig(norm="batch", weights="unit_all")


@dataclass(frozen=True, kw_only=True)
class XQCModelConfig(ContinuousNetworkConfig):
    """The actor and the critics."""

    has_statistics: ClassVar[bool] = True

    ensemble_num: int = 2
    """Number of critics, >= 1; the target is the distribution with the smallest mean."""
    critic_head_hidden_size: int = 512
    """Width of the critics' hidden layers, >= 1."""
    critic_head_layer_num: int = 3
    """Number of hidden layers of the critics after the first one, >= 0."""
    actor_head_layer_num: int = 3
    """Number of hidden layers of the actor after the first one, >= 0."""
    actor_layers: LayersConfig = field(default_factory=_unit_layers)
    """Kind and normalisation of the actor's layers."""
    critic_layers: LayersConfig = field(default_factory=_unit_layers)
    """Kind and normalisation of the critics' layers."""
    v_min: float = -5.0
    """Smallest return that the critics can represent, < v_max; smaller returns are clipped to it."""
    v_max: float = 5.0
    """Largest return that the critics can represent; larger returns are clipped to it."""
    n_atom: int = 101
    """Number of atoms of the support, at equal distances from v_min to v_max, >= 2."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.ensemble_num >= 1, "model.ensemble_num", ">= 1", self.ensemble_num)
        require(self.v_min < self.v_max, "model.v_min", f"below v_max ({self.v_max})", self.v_min)
        require(self.n_atom >= 2, "model.n_atom", ">= 2", self.n_atom)
        norm, allowed = self.critic_layers.norm, "batch, layer or None; the target network has no statistics of its own"
        require(norm != "batch_renorm", "model.critic_layers.norm", allowed, norm)


@dataclass(frozen=True, kw_only=True)
class XQCLearnConfig(SACLearnConfig):
    """Options for updates."""

    alpha: float = 0.01
    """Temperature, or the one to start from with auto_alpha, >= 0."""
    target_entropy: float | None = None
    """Entropy of the normalised action to reach, in nats; None means minus half its dimensions. Needs auto_alpha."""
    actor_update_freq: int = 3
    """Updates of the critics between two of the actor and the temperature, >= 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.actor_update_freq >= 1, "learn.actor_update_freq", ">= 1", self.actor_update_freq)


@dataclass(frozen=True, kw_only=True)
class XQCConfig(SoftConfig):
    """Everything that can be set of XQC."""

    model: XQCModelConfig = field(default_factory=XQCModelConfig)
    """The actor and the critics."""
    learn: XQCLearnConfig = field(default_factory=XQCLearnConfig)
    """Options for updates."""


@POLICY_REGISTRY.register("xqc")
class XQCPolicy(CrossQPolicy):
    """XQC for continuous actions; vector, image and dict observations.

    In addition to CrossQ's interface, ``compute_critic`` of a network passed as ``model`` returns ``distribution`` and
    ``log_distribution``, shape (E, B, N), and ``support`` (N,).

    Example:
        >>> policy = XQCPolicy({"model": {"obs_shape": 3, "action_shape": 1, "critic_head_hidden_size": 64}})
        >>> policy.model.compute_critic(torch.zeros(4, 3), torch.zeros(4, 1))["distribution"].shape
        torch.Size([2, 4, 101])
    """

    config_class: ClassVar[type[PolicyConfig]] = XQCConfig
    config: XQCConfig  # type: ignore[assignment]
    has_target: ClassVar[bool] = True
    _has_warned = False

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        with self._target_in_eval_mode:
            report = super()._forward_learn(batch)
        self._update_target("critic")
        return report

    def _update_statistics(self, part: torch.nn.Module, report: dict[str, Any], loss: Tensor, repeats: int = 1) -> None:
        """See :meth:`CrossQPolicy._update_statistics`; those of the actor move as fast as those of the critics."""
        of_actor = part is self.model.actor
        super()._update_statistics(part, report, loss, self.config.learn.actor_update_freq if of_actor else repeats)

    def critic_loss(self, batch: ActorCriticBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the critics' loss on a prepared minibatch and the metrics; see :meth:`CrossQPolicy.critic_loss`.

        The metrics include ``clipped_share`` (B,), the share of the target's mass that lies outside the support.
        """
        with torch.no_grad(), self._in_eval_mode.context:
            next_action, log_prob = self._sample(batch["next_obs"], batch["next_noise"])
            after = self._target_output(batch, next_action)
            target, clipped_share, target_q_value = self._target_distribution(batch, after, log_prob)
        output, statistics = self._prediction(batch, next_action)
        losses = -(target * output["log_distribution"]).sum(-1)
        loss = (batch["IS"] * losses if self.config.priority_IS_weight else losses).mean(1).sum()
        report = {"critic_loss": loss.detach(), "q_value": output["q_value"].detach(), **statistics}
        report |= {"target_q_value": target_q_value, "clipped_share": clipped_share}
        if self.config.priority:
            report["priority"] = losses.detach().mean(0)
        return loss, report

    def _prediction(self, batch: ActorCriticBatch, next_action: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the critics' output for the actions taken, and the statistics of the batch, if they are used."""
        if not self._uses_batch("critic"):
            return self.model.compute_critic(batch["obs"], batch["action"]), {}
        both = self.model.compute_critic(*_joint(batch, next_action), by_batch=True)
        output = {name: both[name].chunk(2, 1)[0] for name in ("q_value", "log_distribution")}
        return output, {"statistics": both["statistics"]}

    def _target_output(self, batch: ActorCriticBatch, next_action: Tensor) -> dict[str, Tensor]:
        """Return the means and the distributions of the target network for the next actions."""
        if not self._uses_batch("critic"):
            return self.target_model.compute_critic(batch["next_obs"], next_action)  # type: ignore[no-any-return]
        both = self.target_model.compute_critic(*_joint(batch, next_action), by_batch=True)
        after = {name: both[name].chunk(2, 1)[1] for name in ("q_value", "distribution")}
        return after | {"support": both["support"]}

    def _target_distribution(
        self, batch: ActorCriticBatch, after: dict[str, Tensor], log_prob: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the projected distribution, (B, N), its share beyond the support, (B,), and its mean, (B,)."""
        support = after["support"]
        smallest = after["q_value"].argmin(0)[None, :, None].expand(1, -1, len(support))
        probability_t = after["distribution"].gather(0, smallest).squeeze(0)
        soft_reward = batch["reward"] - batch["discount_t"] * self.alpha * log_prob
        moved = (rl.moved_support(soft_reward, batch["discount_t"], support), probability_t, support)
        target = rl.categorical_projection(*moved)
        return target, rl.share_beyond_support(*moved), rl.mean_return(target, support)

    def _target_entropy(self, report: dict[str, Tensor]) -> float | Tensor:
        given = self.config.learn.target_entropy
        return -self._action_size() / 2 if given is None else given

    def _uses_batch(self, part: str) -> bool:
        layers: LayersConfig = getattr(self.config.model, f"{part}_layers")
        return layers.uses_batch

    def _model_cfg(self) -> dict[str, Any]:
        return {name: value for name, value in super()._model_cfg().items() if name != "batch_renorm"}

    def check_means(self, means: Mapping[str, float]) -> None:
        """Warn once if much of the targets' mass lies outside the support; see :meth:`Policy.check_means`."""
        if not self._has_warned:
            self._has_warned = warn_of_clipping(means, self.config.model.v_min, self.config.model.v_max)

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "clipped_share"]


def _joint(batch: ActorCriticBatch, next_action: Tensor) -> tuple[Any, Tensor]:
    """Return observations and actions of one batch: those of the transitions, then the next ones."""
    obs = nested.concatenate([batch["obs"], batch["next_obs"]])
    return obs, torch.cat([batch["action"], next_action])
