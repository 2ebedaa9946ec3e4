"""The config of REINFORCE: every field with its meaning, its range and its only default."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lightning_ding.config import moved
from lightning_ding.policy.on_policy_config import (
    ActorModelConfig,
    OnPolicyCollectConfig,
    OnPolicyConfig,
    OnPolicyLearnConfig,
)
from lightning_ding.worker_config import CollectorConfig


@dataclass(frozen=True)
class PGLearnConfig(OnPolicyLearnConfig):
    """How updates are made."""

    MOVED: ClassVar[dict[str, str]] = OnPolicyLearnConfig.MOVED | moved(
        ignore_done="there is no critic, so nothing is known of what lies behind an end",
    )

    batch_size: int | None = None
    """Transitions of a minibatch on each rank, >= 1, give or take what makes them equal; None for the whole rollout."""
    learning_rate: float = 1e-3
    """Step size at the start, > 0."""
    entropy_weight: float = 0.01
    """Weight of the policy's entropy, which keeps it exploring, >= 0."""
    grad_clip_norm: float | None = 5.0
    """Largest norm of the gradient, > 0; None for no limit."""
    return_norm: bool = True
    """Standardise the returns of each minibatch, over all ranks, in place of a baseline."""


@dataclass(frozen=True)
class PGCollectConfig(OnPolicyCollectConfig):
    """How much is collected, and by which collector."""

    n_episode: int | None = 8
    """Episodes of a rollout on each rank, >= 1; returns need whole ones."""
    collector: CollectorConfig = field(default_factory=lambda: CollectorConfig(type="episode"))
    """The collector of whole episodes."""


@dataclass(frozen=True)
class PGConfig(OnPolicyConfig):
    """Everything that can be set of REINFORCE."""

    deterministic_eval: bool = True
    """Evaluate the most probable actions; else draw them, the same way in each evaluation."""
    model: ActorModelConfig = field(default_factory=ActorModelConfig)
    """The network."""
    learn: PGLearnConfig = field(default_factory=PGLearnConfig)
    """How updates are made."""
    collect: PGCollectConfig = field(default_factory=PGCollectConfig)
    """How much is collected, and by which collector."""
