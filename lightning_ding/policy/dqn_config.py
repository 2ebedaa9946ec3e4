"""The config of DQN: what it adds to that of all Q-learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from lightning_ding.policy.q_learning_config import (
    QLearningConfig,
    QLearningLearnConfig,
    QLearningModelConfig,
)


@dataclass(frozen=True)
class DQNModelConfig(QLearningModelConfig):
    """The Q-network: an encoder and a head."""

    action_shape: int | Sequence[int] | None = None
    """Number of actions, or one for each dimension; None takes it from the env."""
    dueling: bool = True
    """Split the head into a state value and advantages."""


@dataclass(frozen=True)
class DQNLearnConfig(QLearningLearnConfig):
    """How updates are made."""

    default_copy_freq: ClassVar[int] = 250
    update_per_collect: int = 2
    """Updates after each collection of n_sample transitions, >= 1."""
    batch_size: int = 128
    """Transitions of a minibatch on each rank, >= 1."""
    learning_rate: float = 5e-4
    """Step size, > 0."""
    target_update_freq: int | None = None
    """Updates between two copies into the target network, >= 1; None means 250, or no copies with target_theta."""
    loss: Literal["huber", "mse"] = "huber"
    """Loss of the temporal-difference error."""


@dataclass(frozen=True)
class DQNConfig(QLearningConfig):
    """Everything that can be set of DQN."""

    nstep: int | None = None
    """Steps of the return, >= 1; fewer at an episode's end. None means 3 where a buffer sums the rewards, and takes
    batches without discount, which are made by hand, for single steps."""
    model: DQNModelConfig = field(default_factory=DQNModelConfig)
    """The Q-network."""
    learn: DQNLearnConfig = field(default_factory=DQNLearnConfig)
    """How updates are made."""
