"""CQL: SAC on a data set, with critics that are low for actions that are not in the data.

Paper: Kumar et al. 2020, eq. 4 and appendix F (https://arxiv.org/abs/2006.04779), the variant CQL(H) with importance
sampling. DI-engine's ``min_q_version`` 3 is this variant. ``min_q_weight``, ``num_actions`` and the step sizes of the
actor and the critics are those of the authors' code for locomotion.

Where this differs: the authors' code has networks of three layers of 256 units, learns the multiplier
(``with_lagrange``) with a threshold of 5, steps the temperature with 1e-4, and lets the actor imitate the data in its
first 40,000 updates. Here networks have two layers, ``with_lagrange`` is False with a threshold of 10, the
temperature's step size is 3e-4, and there is no imitation. ``with_q_entropy`` is False as in DI-engine and the authors'
code, so the entropy does not count in targets; the multiplier has a separate optimizer with the critics' step size, and
steps after the critics. Importance-sampling weights weigh the temporal-difference error only.

Shapes: B batch, A dimensions of an action, E critics, N actions of each kind.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from lightning_ding import nested, rl
from lightning_ding.config import require
from lightning_ding.policy.base.config import NO_CLIP, PolicyConfig
from lightning_ding.policy.base.optimizers import make_optimizer
from lightning_ding.policy.qac import ActorCriticBatch
from lightning_ding.policy.sac import SACConfig, SACLearnConfig, SACPolicy
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class CQLLearnConfig(SACLearnConfig):
    """Options for updates."""

    update_per_collect: int = 10
    """Updates of a round, >= 1."""
    learning_rate_policy: float = 1e-4
    """Step size of the actor's optimizer, > 0."""
    min_q_weight: float = 5.0
    """Weight of the conservative term in the critics' loss, >= 0."""
    num_actions: int = 10
    """Actions of each kind, random, of this and of the next observation, in the conservative term, >= 1."""
    with_q_entropy: bool = False
    """Count the entropy in the critics' targets, as SAC does."""
    with_lagrange: bool = False
    """Learn a factor of the conservative term, so that it comes to lagrange_thresh."""
    lagrange_thresh: float = 10.0
    """Weighted conservative term to reach; needs with_lagrange."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.min_q_weight >= 0, "learn.min_q_weight", ">= 0", self.min_q_weight)
        require(self.num_actions >= 1, "learn.num_actions", ">= 1", self.num_actions)
        is_used = self.with_lagrange or self.lagrange_thresh == 10.0
        default = "left at its default without learn.with_lagrange"
        require(is_used, "learn.lagrange_thresh", default, self.lagrange_thresh)


@dataclass(frozen=True, kw_only=True)
class CQLConfig(SACConfig):
    """Everything that can be set of CQL."""

    learn: CQLLearnConfig = field(default_factory=CQLLearnConfig)
    """Options for updates."""


class CQLBatch(ActorCriticBatch, total=False):
    """A minibatch of CQL, leading axis B."""

    uniform_noise: Tensor
    """N random actions, shape (B, N, A)."""
    gap_noise: Tensor
    """Noise of N actions at ``obs``, shape (B, N, A)."""
    next_gap_noise: Tensor
    """Noise of N actions at ``next_obs``, shape (B, N, A)."""


@POLICY_REGISTRY.register("cql")
class CQLPolicy(SACPolicy):
    """CQL for continuous actions; vector, image and dict observations.

    :class:`SACPolicy` describes a network passed as ``model``.

    Example:
        >>> policy = CQLPolicy({"model": {"obs_shape": 3, "action_shape": 1}})
        >>> policy.eval_mode.forward(torch.zeros(5, 3))["action"].shape
        torch.Size([5, 1])
    """

    config_class: ClassVar[type[PolicyConfig]] = CQLConfig
    supports_tensors: ClassVar[bool] = False
    trains_on: ClassVar[str] = "dataset"
    config: CQLConfig

    def _init_learn(self) -> None:
        super()._init_learn()
        learn = self.config.learn
        self.log_multiplier = nn.Parameter(torch.zeros(()), requires_grad=learn.with_lagrange)
        if learn.with_lagrange:
            kind = dataclasses.replace(learn.optimizer, weight_decay=0.0)
            self.updater.optimizers.append(make_optimizer(kind, [self.log_multiplier], learn.learning_rate_q))

    def _learn_critics(self, batch: ActorCriticBatch) -> dict[str, Any]:
        report = super()._learn_critics(batch)
        if self.config.learn.with_lagrange:
            place = len(self.updater.optimizers) - 1
            report |= self.updater.minimise(self.multiplier_loss, report, place, NO_CLIP)
        return report

    def critic_loss(self, batch: CQLBatch) -> tuple[Tensor, dict[str, Tensor]]:  # type: ignore[override]
        """Return SAC's loss of the critics plus the conservative term (eq. 4), and the metrics to report, detached.

        It also reports ``conservative_gap``, shape (E,): log sum exp of Q minus Q of the data, weighted.
        """
        with torch.no_grad(), self._in_eval_mode.context:
            target = self._targets(batch)
            drawn, log_density = self._sampled_actions(batch)
        actions = torch.cat([batch["action"].unsqueeze(1), drawn], 1)  # (B, 1 + 3 N, A)
        q = self.model.compute_critic(_repeated(batch["obs"], actions.shape[1]), actions.flatten(0, 1))["q_value"]
        q = q.unflatten(1, (len(actions), actions.shape[1]))
        loss, report = self._td_loss(batch, q[..., 0], target)
        penalised, further = self._in_penalty(batch, q[..., 1:])
        gap = self.config.learn.min_q_weight * rl.conservative_gap(penalised, log_density, q[..., 0])
        loss = loss + (self.log_multiplier.detach().exp().clamp(max=1e6) * gap).sum()
        return loss, {**report, "critic_loss": loss.detach(), "conservative_gap": gap.detach(), **further}

    def _in_penalty(self, batch: Any, q: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the values of the sampled actions that count in the conservative term, and metrics of them.

        Args:
            batch: The prepared minibatch.
            q: Values of the actions of :meth:`_sampled_actions`, N random ones first, shape (E, B, 3 N).
        """
        return q, {}

    def _sampled_actions(self, batch: CQLBatch) -> tuple[Tensor, Tensor]:
        """Return N actions of each kind, shape (B, 3 N, A), and the log densities of each, shape (B, 3 N)."""
        uniform = batch["uniform_noise"]
        size, number, dimensions = uniform.shape
        drawn, log_density = [uniform], [torch.full_like(uniform[..., 0], -dimensions * math.log(2))]
        for obs, noise in ((batch["obs"], batch["gap_noise"]), (batch["next_obs"], batch["next_gap_noise"])):
            action, log_prob = self._sample(_repeated(obs, number), noise.flatten(0, 1))
            drawn.append(action.unflatten(0, (size, number)))
            log_density.append(log_prob.unflatten(0, (size, number)))
        return torch.cat(drawn, 1), torch.cat(log_density, 1)

    def multiplier_loss(self, report: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the multiplier's logarithm: it grows while the gap exceeds ``lagrange_thresh``."""
        excess = (report["conservative_gap"] - self.config.learn.lagrange_thresh).mean()
        multiplier = self.log_multiplier.exp().clamp(max=1e6)
        return -multiplier * excess, {"multiplier": multiplier.detach()}

    def _targets(self, batch: ActorCriticBatch) -> Tensor:
        if self.config.learn.with_q_entropy:
            return super()._targets(batch)
        action, _ = self._sample(batch["next_obs"], batch["next_noise"])
        q_t = self.target_model.compute_critic(batch["next_obs"], action)["q_value"]
        return rl.pessimistic_target(batch["reward"], batch["discount_t"], q_t)

    def _noise(self, shape: Sequence[int]) -> dict[str, np.ndarray[Any, Any]]:
        each = [*shape, self.config.learn.num_actions, self._action_size()]
        uniform = self.rng.uniform(-1, 1, each).astype(np.float32)
        noise = {name: self._standard_normal(each) for name in ("gap_noise", "next_gap_noise")}
        return {**super()._noise(shape), "uniform_noise": uniform, **noise}

    def _state_dict_learn(self) -> dict[str, Any]:
        return super()._state_dict_learn() | {"log_multiplier": self.log_multiplier.detach().clone()}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        self.log_multiplier.data.copy_(state["log_multiplier"])

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "conservative_gap"]


def _repeated(obs: Any, number: int) -> Any:
    """Return observations, each ``number`` times in a row, leading axis B * number."""
    return nested.apply(lambda leaf: leaf.repeat_interleave(number, 0), obs)
