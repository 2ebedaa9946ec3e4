"""The config of QR-DQN: what it adds to that of all Q-learning."""

from __future__ import annotations

from dataclasses import dataclass, field

from lightning_ding.config import require
from lightning_ding.policy.q_learning_config import QLearningConfig, QLearningLearnConfig, QLearningModelConfig


@dataclass(frozen=True)
class QRDQNModelConfig(QLearningModelConfig):
    """The Q-network: an encoder and a head."""

    action_shape: int | None = None
    """Number of actions; None takes it from the env."""
    num_quantiles: int = 32
    """Quantiles of each action's return, >= 1."""
    dueling: bool = False
    """Split the head into a state value and advantages."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(self.num_quantiles >= 1, "model.num_quantiles", ">= 1", self.num_quantiles)


@dataclass(frozen=True)
class QRDQNLearnConfig(QLearningLearnConfig):
    """How updates are made."""

    kappa: float = 1.0
    """Error up to which the quantile Huber loss is quadratic, > 0."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        require(self.kappa > 0, "learn.kappa", "> 0", self.kappa)


@dataclass(frozen=True)
class QRDQNConfig(QLearningConfig):
    """Everything that can be set of QR-DQN."""

    model: QRDQNModelConfig = field(default_factory=QRDQNModelConfig)
    """The Q-network."""
    learn: QRDQNLearnConfig = field(default_factory=QRDQNLearnConfig)
    """How updates are made."""
