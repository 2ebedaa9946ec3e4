"""The configs of DDPG and TD3: every field with its meaning, its range and its only default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from lightning_ding.config import require
from lightning_ding.policy.q_learning_config import EpsConfig
from lightning_ding.policy.qac_config import QACConfig, QACLearnConfig, QACModelConfig, QACOtherConfig
from lightning_ding.policy.replay_config import ReplayCollectConfig


@dataclass(frozen=True)
class NoiseRangeConfig:
    """Where noise is clipped."""

    min: float = -0.5
    """Smallest value, in normalised units, < max."""
    max: float = 0.5
    """Largest value, in normalised units."""

    def __post_init__(self) -> None:
        """Check the range."""
        require(self.min < self.max, "learn.noise_range.min", f"below learn.noise_range.max ({self.max})", self.min)


@dataclass(frozen=True)
class DDPGModelConfig(QACModelConfig):
    """The actor and the critic."""

    action_start: int | None = None
    """First number of a hybrid action's choice in the env; None takes it from the env, or 0."""
    twin_critic: bool = False
    """Two critics, the smaller of whose values makes the target."""
    last_layer_init: float | None = 3e-3
    """The last layers start uniform within this distance of 0, > 0; None starts them as all others."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        has_choice = self.action_shape is None or isinstance(self.action_shape, Mapping)
        require(
            has_choice or self.action_start is None, "model.action_start", "None without a choice", self.action_start
        )


@dataclass(frozen=True)
class DDPGLearnConfig(QACLearnConfig):
    """How updates are made."""

    learning_rate_actor: float = 1e-3
    """Step size of the actor's optimizer, > 0."""
    learning_rate_critic: float = 1e-3
    """Step size of the critics' optimizer, > 0."""
    actor_update_freq: int = 1
    """Updates of the critics between two of the actor and the targets, >= 1."""
    noise: bool = False
    """Add clipped normal noise to the target actor's actions."""
    noise_sigma: float = 0.2
    """Standard deviation of that noise, in normalised units, >= 0; needs noise."""
    noise_range: NoiseRangeConfig = field(default_factory=NoiseRangeConfig)
    """Where that noise is clipped; needs noise."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        for name in ("learning_rate_actor", "learning_rate_critic"):
            require(getattr(self, name) > 0, f"learn.{name}", "> 0", getattr(self, name))
        require(self.actor_update_freq >= 1, "learn.actor_update_freq", ">= 1", self.actor_update_freq)
        require(self.noise_sigma >= 0, "learn.noise_sigma", ">= 0", self.noise_sigma)
        unused = self.noise_sigma == 0.2 and self.noise_range == NoiseRangeConfig()
        got = (self.noise_sigma, self.noise_range)
        require(self.noise or unused, "learn.noise_sigma and learn.noise_range", "left alone without learn.noise", got)


@dataclass(frozen=True)
class DDPGCollectConfig(ReplayCollectConfig):
    """How much is collected, by which collector, and how it explores."""

    noise_type: Literal["gauss", "ou"] = "gauss"
    """gauss is independent normal noise; ou, of Ornstein and Uhlenbeck, drifts."""
    noise_sigma: float = 0.1
    """Size of the noise that is added to actions, in normalised units, >= 0."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        require(self.noise_sigma >= 0, "collect.noise_sigma", ">= 0", self.noise_sigma)


@dataclass(frozen=True)
class DDPGOtherConfig(QACOtherConfig):
    """Replay, and the exploration of choices."""

    eps: EpsConfig = field(default_factory=EpsConfig)
    """The schedule of random choices; needs a hybrid action."""


@dataclass(frozen=True)
class DDPGConfig(QACConfig):
    """Everything that can be set of DDPG."""

    model: DDPGModelConfig = field(default_factory=DDPGModelConfig)
    """The actor and the critic."""
    learn: DDPGLearnConfig = field(default_factory=DDPGLearnConfig)
    """How updates are made."""
    collect: DDPGCollectConfig = field(default_factory=DDPGCollectConfig)
    """How much is collected, by which collector, and how it explores."""
    other: DDPGOtherConfig = field(default_factory=DDPGOtherConfig)
    """Replay, and the exploration of choices."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        chooses = self.model.action_shape is None or isinstance(self.model.action_shape, Mapping)
        require(chooses or self.other.eps == EpsConfig(), "other.eps", "left alone without choices", self.other.eps)


@dataclass(frozen=True)
class TD3ModelConfig(DDPGModelConfig):
    """The actor and the critics."""

    twin_critic: bool = True
    """Two critics, the smaller of whose values makes the target."""
    last_layer_init: float | None = None
    """The last layers start uniform within this distance of 0, > 0; None starts them as all others."""


@dataclass(frozen=True)
class TD3LearnConfig(DDPGLearnConfig):
    """How updates are made."""

    actor_update_freq: int = 2
    """Updates of the critics between two of the actor and the targets, >= 1."""
    noise: bool = True
    """Add clipped normal noise to the target actor's actions."""


@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    """Everything that can be set of TD3."""

    model: TD3ModelConfig = field(default_factory=TD3ModelConfig)
    """The actor and the critics."""
    learn: TD3LearnConfig = field(default_factory=TD3LearnConfig)
    """How updates are made."""
