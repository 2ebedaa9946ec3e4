"""Munchausen DQN: a soft DQN whose reward is increased by the scaled log probability of the action taken.

Paper: Vieillard et al. 2020, eq. 2 (https://arxiv.org/abs/2007.14430); the other parts are those of ``dqn``. The target
is

    r + m_alpha * clip(entropy_tau * log pi(a|s), m_clip, 0) + gamma * soft value of s',

where pi is the softmax of the target network's values divided by ``entropy_tau``.

Where this differs: with ``nstep`` above 1, only the first of the n rewards gets the bonus, and only the last state has
an entropy; the paper has one step. Each dimension of a multi-discrete action has a policy and a bonus of its own. The
remaining differences are those of DQN.

Shapes: B batch, A actions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.dqn import DQNConfig, DQNLearnConfig, DQNPolicy
from lightning_ding.policy.q_learning import QBatch
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class SoftQLearnConfig(DQNLearnConfig):
    """Options for updates."""

    double_q: bool = False
    """Must be false: a soft value has no next action to choose."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not self.double_q, "learn.double_q", "False with a soft value", self.double_q)


@dataclass(frozen=True, kw_only=True)
class MDQNConfig(DQNConfig):
    """Everything that can be set of Munchausen DQN; the defaults of its constants are those of the paper."""

    nstep: int | None = 1
    """Steps of the return, >= 1; fewer at an episode's end. None means 3 where a buffer sums the rewards, and 1
    for batches without discount, which do not come from such a buffer."""
    entropy_tau: float = 0.03
    """Weight of the policy's entropy, tau in the paper, > 0."""
    m_alpha: float = 0.9
    """Weight of the log probability that is added to the reward, in [0, 1]; 0 is soft DQN."""
    m_clip: float = -1.0
    """Smallest value of tau log pi, < 0."""
    learn: SoftQLearnConfig = field(default_factory=SoftQLearnConfig)
    """Options for updates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.entropy_tau > 0, "entropy_tau", "> 0", self.entropy_tau)
        require(0 <= self.m_alpha <= 1, "m_alpha", "in [0, 1]", self.m_alpha)
        require(self.m_clip < 0, "m_clip", "< 0", self.m_clip)


@POLICY_REGISTRY.register("mdqn")
class MDQNPolicy(DQNPolicy):
    """Munchausen DQN for discrete, multi-discrete and multi-binary actions; all kinds of observations; action masks.

    The arguments are those of :class:`Policy`; a ``model`` maps observations to ``{"logit": action values}``.

    Example:
        >>> policy = MDQNPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.eval_mode.forward({0: torch.zeros(4), 1: torch.ones(4)})[1]["action"].shape
        torch.Size([])
    """

    config_class: ClassVar[type[PolicyConfig]] = MDQNConfig
    config: MDQNConfig

    def target_outputs(self, batch: Any) -> dict[str, Any]:
        """Return the target network's values of the next observations, and ``before``, those of the observations."""
        return {**super().target_outputs(batch), "before": self._of_target(batch["obs"], "logit")}

    @torch.no_grad()
    def _targets(self, batch: QBatch) -> list[Tensor]:
        reward, discount_t, tau = batch["reward"], batch["discount_t"], self.config.entropy_tau
        q_tm1 = [q for q, _ in self._values(batch["target"]["before"], batch["obs"])]
        q_t = [q for q, _ in self._values(batch["target"], batch["next_obs"])]
        bonuses = [
            rl.munchausen_bonus(q, action, tau, self.config.m_clip)
            for q, action in zip(q_tm1, self._parts(batch["action"]), strict=True)
        ]
        rewards = [reward + self.config.m_alpha * bonus for bonus in bonuses]
        return [rl.soft_q_target(total, discount_t, q, tau) for total, q in zip(rewards, q_t, strict=True)]
