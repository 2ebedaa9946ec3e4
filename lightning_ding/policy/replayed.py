"""The config of actor-critic algorithms that learn from a small replay buffer of their last rollouts.

Each transition keeps the probability with which its action was drawn, so that a newer policy can correct for the
difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lightning_ding.config import moved, require
from lightning_ding.policy.actor_critic import ActorCriticModelConfig
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.on_policy import OnPolicyLearnConfig
from lightning_ding.policy.qac import QACOtherConfig
from lightning_ding.policy.replay_policy import ReplayCollectConfig
from lightning_ding.search_spaces import Choice, searched

UNIFORM = "minibatches are drawn uniformly, because the loss corrects for the policy that acted only"


@dataclass(frozen=True, kw_only=True)
class ReplayedLearnConfig(OnPolicyLearnConfig):
    """Options for updates."""

    MOVED: ClassVar[dict[str, str]] = {
        key: advice for key, advice in OnPolicyLearnConfig.MOVED.items() if key != "update_per_collect"
    }

    update_per_collect: int = 4
    """Updates after each collection of n_sample transitions, >= 1."""
    batch_size: int = 64
    """Transitions or unrolls of a minibatch on each rank, >= 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.update_per_collect >= 1, "learn.update_per_collect", ">= 1", self.update_per_collect)


@dataclass(frozen=True, kw_only=True)
class ReplayedConfig(PolicyConfig):
    """The config of every such algorithm."""

    MOVED: ClassVar[dict[str, str]] = PolicyConfig.MOVED | moved(
        action_space="set model.action_space",
        priority=UNIFORM,
        priority_IS_weight=UNIFORM,
        random_collect_size="the probability of each action is needed, so the policy itself must act",
    )

    discount_factor: float = searched(0.99, Choice(0.9, 0.95, 0.98, 0.99, 0.995, 0.999))
    """gamma, in [0, 1]."""
    model: ActorCriticModelConfig = field(default_factory=ActorCriticModelConfig)
    """The network."""
    learn: ReplayedLearnConfig = field(default_factory=ReplayedLearnConfig)
    """Options for updates."""
    collect: ReplayCollectConfig = field(default_factory=ReplayCollectConfig)
    """Options for collecting: the amount and the collector."""
    other: QACOtherConfig = field(default_factory=QACOtherConfig)
    """Replay."""

    def __post_init__(self) -> None:
        require(0 <= self.discount_factor <= 1, "discount_factor", "in [0, 1]", self.discount_factor)
