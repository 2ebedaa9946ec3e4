"""The config of A2C: every field with its meaning, its range and its only default."""

from __future__ import annotations

from dataclasses import dataclass, field

from lightning_ding.config import require
from lightning_ding.policy.learn_config import ScheduleConfig
from lightning_ding.policy.on_policy_config import (
    ActorCriticModelConfig,
    OnPolicyCollectConfig,
    OnPolicyConfig,
    OnPolicyLearnConfig,
)


@dataclass(frozen=True)
class A2CLearnConfig(OnPolicyLearnConfig):
    """How updates are made."""

    batch_size: int | None = None
    """Transitions of a minibatch on each rank, >= 1, give or take what makes them equal; None for the whole rollout."""
    learning_rate: float = 1e-3
    """Step size at the start, > 0."""
    lr_scheduler: ScheduleConfig = field(default_factory=lambda: ScheduleConfig(type="linear"))
    """A factor of the step size that changes as the run goes on; by default it falls to 0 at the end of the budget, and
    stays at 1 in a run without one."""
    value_weight: float = 0.5
    """Weight of the critic's loss, >= 0."""
    entropy_weight: float = 0.01
    """Weight of the policy's entropy, which keeps it exploring, >= 0."""
    adv_norm: bool = True
    """Standardise the advantages of each minibatch, over all ranks."""
    ignore_done: bool = False
    """Bootstrap from terminal states too; for old configs whose envs end by a time limit only."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        require(self.value_weight >= 0, "learn.value_weight", ">= 0", self.value_weight)


@dataclass(frozen=True)
class A2CCollectConfig(OnPolicyCollectConfig):
    """How much is collected, and by which collector."""

    n_sample: int | None = 128
    """Transitions of a rollout on each rank, >= 1, a few more if the envs do not divide it; None with n_episode."""
    gae_lambda: float = 0.95
    """Bias-variance mix of the advantages, in [0, 1]."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        require(0 <= self.gae_lambda <= 1, "collect.gae_lambda", "in [0, 1]", self.gae_lambda)


@dataclass(frozen=True)
class A2CModelConfig(ActorCriticModelConfig):
    """The network of an actor and a critic."""

    share_encoder: bool = False
    """Let actor and critic have one encoder."""


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """Everything that can be set of A2C."""

    model: A2CModelConfig = field(default_factory=A2CModelConfig)
    """The network."""
    learn: A2CLearnConfig = field(default_factory=A2CLearnConfig)
    """How updates are made."""
    collect: A2CCollectConfig = field(default_factory=A2CCollectConfig)
    """How much is collected, and by which collector."""
