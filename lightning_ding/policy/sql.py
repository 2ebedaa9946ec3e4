"""Soft Q-learning for discrete actions: DQN with a soft value, which collects with a softmax of its values.

Papers: Haarnoja et al. 2017, eq. 4 and 7 (https://arxiv.org/abs/1702.08165); discrete actions: Schulman et al. 2017,
section 2.2 (https://arxiv.org/abs/1704.06440); the other parts are those of ``dqn``.

Where this differs: actions are discrete, so the policy softmax(Q / alpha) is sampled exactly and needs no network of
its own. It is mixed with the uniform policy by ``other.eps``; set it to 0 for the softmax alone. Evaluations are
greedy. The remaining differences are those of DQN.

Shapes: B batch, A actions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.dqn import DQNConfig, DQNPolicy
from lightning_ding.policy.mdqn import SoftQLearnConfig
from lightning_ding.policy.q_learning import QBatch
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True, kw_only=True)
class SQLLearnConfig(SoftQLearnConfig):
    """Options for updates."""

    alpha: float = 0.1
    """Weight of the policy's entropy, > 0, in units of the reward."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alpha > 0, "learn.alpha", "> 0", self.alpha)


@dataclass(frozen=True, kw_only=True)
class SQLConfig(DQNConfig):
    """Everything that can be set of soft Q-learning."""

    nstep: int | None = 1
    """Steps of the return, >= 1; fewer at an episode's end. None means 3 where a buffer sums the rewards, and 1
    for batches without discount, which do not come from such a buffer."""
    learn: SQLLearnConfig = field(default_factory=SQLLearnConfig)
    """Options for updates."""


@POLICY_REGISTRY.register("sql")
class SQLPolicy(DQNPolicy):
    """Soft Q-learning for discrete, multi-discrete and multi-binary actions; all kinds of observations; action masks.

    The arguments are those of :class:`Policy`; a ``model`` maps observations to ``{"logit": action values}``.

    Example:
        >>> policy = SQLPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
        >>> policy.eval_mode.forward({0: torch.zeros(4), 1: torch.ones(4)})[1]["action"].shape
        torch.Size([])
    """

    config_class: ClassVar[type[PolicyConfig]] = SQLConfig
    supports_tensors: ClassVar[bool] = False
    config: SQLConfig

    @torch.no_grad()
    def _targets(self, batch: QBatch) -> list[Tensor]:
        q_t, alpha = self._values(batch["target"], batch["next_obs"]), self.config.learn.alpha
        return [rl.soft_q_target(batch["reward"], batch["discount_t"], q, alpha) for q, _ in q_t]

    def _preference(self, q: NDArray[np.float32]) -> NDArray[Any]:
        return rl.gumbel_perturbed(q, self.config.learn.alpha, self.rng)
