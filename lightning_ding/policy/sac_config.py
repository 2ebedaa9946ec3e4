"""The config of SAC: every field with its meaning, its range and its only default."""

from __future__ import annotations

from dataclasses import dataclass, field

from lightning_ding.config import require
from lightning_ding.policy.qac_config import QACConfig, QACLearnConfig, QACModelConfig


@dataclass(frozen=True)
class SACModelConfig(QACModelConfig):
    """The actor and the critics."""

    last_layer_init: float | None = 3e-3
    """The last layers start uniform within this distance of 0, > 0; None starts them as all others."""


@dataclass(frozen=True)
class SACLearnConfig(QACLearnConfig):
    """How updates are made."""

    learning_rate_q: float = 3e-4
    """Step size of the critics' optimizer, > 0."""
    learning_rate_policy: float = 3e-4
    """Step size of the actor's optimizer, > 0."""
    learning_rate_alpha: float = 3e-4
    """Step size of the temperature's optimizer, > 0; needs auto_alpha."""
    alpha: float = 0.2
    """Temperature, or the one to start from with auto_alpha, >= 0."""
    auto_alpha: bool = True
    """Learn the temperature, so that the entropy comes to target_entropy."""
    log_space: bool = True
    """Learn the logarithm of the temperature; needs auto_alpha."""
    target_entropy: float | None = None
    """In nats, of the normalised action; None means minus its dimensions. Needs auto_alpha."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        for name in ("learning_rate_q", "learning_rate_policy", "learning_rate_alpha"):
            require(getattr(self, name) > 0, f"learn.{name}", "> 0", getattr(self, name))
        require(self.alpha >= 0, "learn.alpha", ">= 0", self.alpha)
        start = "> 0 to learn its logarithm"
        require(self.alpha > 0 or not (self.auto_alpha and self.log_space), "learn.alpha", start, self.alpha)
        got = (self.learning_rate_alpha, self.log_space, self.target_entropy)
        names = "learn.learning_rate_alpha, learn.log_space and learn.target_entropy"
        require(self.auto_alpha or got == (3e-4, True, None), names, "left alone without learn.auto_alpha", got)


@dataclass(frozen=True)
class SACConfig(QACConfig):
    """Everything that can be set of SAC."""

    model: SACModelConfig = field(default_factory=SACModelConfig)
    """The actor and the critics."""
    learn: SACLearnConfig = field(default_factory=SACLearnConfig)
    """How updates are made."""
