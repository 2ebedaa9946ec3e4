"""The config of C51: what it adds to that of all Q-learning."""

from __future__ import annotations

from dataclasses import dataclass, field

from lightning_ding.config import require
from lightning_ding.policy.q_learning_config import QLearningConfig, QLearningModelConfig


@dataclass(frozen=True)
class CategoricalModelConfig(QLearningModelConfig):
    """A network whose returns live on a fixed support."""

    action_shape: int | None = None
    """Number of actions; None takes it from the env."""
    v_min: float = -10.0
    """Smallest return that the network can tell, < v_max; smaller ones count as it."""
    v_max: float = 10.0
    """Largest return that the network can tell; larger ones count as it."""
    n_atom: int = 51
    """Atoms of the support, evenly from v_min to v_max, >= 2."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(self.v_min < self.v_max, "model.v_min", f"below v_max ({self.v_max})", self.v_min)
        require(self.n_atom >= 2, "model.n_atom", ">= 2", self.n_atom)


@dataclass(frozen=True)
class C51ModelConfig(CategoricalModelConfig):
    """The Q-network: an encoder and a head."""

    dueling: bool = False
    """Split the head into a state value and advantages."""


@dataclass(frozen=True)
class C51Config(QLearningConfig):
    """Everything that can be set of C51."""

    model: C51ModelConfig = field(default_factory=C51ModelConfig)
    """The Q-network."""
