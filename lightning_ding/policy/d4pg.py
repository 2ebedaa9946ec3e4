"""D4PG: DDPG with a critic that predicts a categorical distribution of the return, n-step returns and priorities.

Paper: Barth-Maron et al. 2018, algorithm 1 (https://arxiv.org/abs/1804.08617); the projection is that of Bellemare et
al. 2017, algorithm 1 (https://arxiv.org/abs/1707.06887).

Where this differs: the defaults are DI-engine's, with 3 steps instead of 5, and a soft update of the targets instead of
copies. One process collects and learns unless the run is distributed. With ``model.twin_critic``, the target of an item
is the distribution with the smaller mean. A priority is the item's cross entropy, averaged over the critics, as in
DI-engine. Otherwise as in DDPG, see ``ddpg``.

Shapes: B batch, E critics, N atoms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.c51 import warn_of_clipping
from lightning_ding.policy.ddpg import DDPGConfig, DDPGModelConfig, DDPGOtherConfig, DDPGPolicy
from lightning_ding.policy.qac import ActorCriticBatch
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.worker.config import ReplayBufferConfig


@dataclass(frozen=True, kw_only=True)
class D4PGModelConfig(DDPGModelConfig):
    """The actor and the critic."""

    twin_critic: bool = False
    """Use two critics; the target is the distribution with the smaller mean."""
    v_min: float = -10.0
    """Smallest return that the critics can represent, < v_max; smaller returns are clipped to it."""
    v_max: float = 10.0
    """Largest return that the critics can represent; larger returns are clipped to it."""
    n_atom: int = 51
    """Number of atoms of the support, at equal distances from v_min to v_max, >= 2."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.v_min < self.v_max, "model.v_min", f"below v_max ({self.v_max})", self.v_min)
        require(self.n_atom >= 2, "model.n_atom", ">= 2", self.n_atom)


def _prioritised() -> DDPGOtherConfig:
    return DDPGOtherConfig(replay_buffer=ReplayBufferConfig(type="advanced", replay_buffer_size=1_000_000))


@dataclass(frozen=True, kw_only=True)
class D4PGConfig(DDPGConfig):
    """Everything that can be set of D4PG."""

    nstep: int = 3
    """Steps of the return, >= 1; fewer at an episode's end."""
    priority: bool = True
    """Pass the size of each error to the buffer as its priority; needs a prioritised buffer."""
    priority_IS_weight: bool = True  # noqa: N815 - a documented name
    """Weigh errors by the buffer's importance-sampling weights; needs priority."""
    model: D4PGModelConfig = field(default_factory=D4PGModelConfig)
    """The actor and the critic."""
    other: DDPGOtherConfig = field(default_factory=_prioritised)
    """Prioritised replay, and the exploration of choices."""


@POLICY_REGISTRY.register("d4pg")
class D4PGPolicy(DDPGPolicy):
    """D4PG for continuous and hybrid actions; vector, image and dict observations; masks of hybrid actions' choices.

    In addition to DDPG's interface, ``compute_critic`` of a network passed as ``model`` returns ``distribution`` and
    ``log_distribution``, shape (E, B, N), and ``support`` (N,).

    Example:
        >>> policy = D4PGPolicy({"model": {"obs_shape": 3, "action_shape": 1}})
        >>> policy.model.compute_critic(torch.zeros(4, 3), torch.zeros(4, 1))["distribution"].shape
        torch.Size([1, 4, 51])
    """

    config_class: ClassVar[type[PolicyConfig]] = D4PGConfig
    config: D4PGConfig
    _has_warned = False

    def critic_loss(self, batch: ActorCriticBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the critics' loss on a prepared minibatch and the metrics; see :meth:`QACPolicy.critic_loss`.

        The metrics include ``clipped_share`` (B,), the share of the target's mass that lies outside the support.
        """
        output = self.model.compute_critic(batch["obs"], batch["action"])
        with torch.no_grad():
            target, clipped_share = self._target_distribution(batch, output["support"])
        prediction = output["log_distribution"]
        losses = torch.stack([rl.cross_entropy(critic, target) for critic in prediction])  # one or two critics
        weighted = batch["IS"] * losses if self.config.priority_IS_weight else losses
        loss = weighted.mean(1).sum()
        target_q_value = rl.mean_return(target, output["support"])
        report = {"critic_loss": loss.detach(), "q_value": output["q_value"].detach(), "target_q_value": target_q_value}
        report["clipped_share"] = clipped_share
        if self.config.priority:
            report["priority"] = losses.detach().mean(0)
        return loss, report

    def _target_distribution(self, batch: ActorCriticBatch, support: Tensor) -> tuple[Tensor, Tensor]:
        """Return the projected distribution of the target, (B, N), and its share beyond the support, (B,)."""
        action = self._target_actions(batch["next_obs"], batch.get("next_noise"))
        output = self.target_model.compute_critic(batch["next_obs"], action)
        smaller = output["q_value"].argmin(0)[None, :, None].expand(1, -1, len(support))
        probability_t = output["distribution"].gather(0, smaller).squeeze(0)
        moved = (rl.moved_support(batch["reward"], batch["discount_t"], support), probability_t, support)
        return rl.categorical_projection(*moved), rl.share_beyond_support(*moved)

    def check_means(self, means: Mapping[str, float]) -> None:
        """Warn once if much of the targets' mass lies outside the support; see :meth:`Policy.check_means`."""
        if not self._has_warned:
            self._has_warned = warn_of_clipping(means, self.config.model.v_min, self.config.model.v_max)

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), "clipped_share"]
