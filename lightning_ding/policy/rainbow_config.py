"""The config of Rainbow: what it adds to that of all Q-learning, and where its defaults are others."""

from __future__ import annotations

from dataclasses import dataclass, field

from lightning_ding.config import require
from lightning_ding.policy.c51_config import C51Config, CategoricalModelConfig
from lightning_ding.policy.q_learning_config import EpsConfig, QLearningOtherConfig
from lightning_ding.worker_config import ReplayBufferConfig


@dataclass(frozen=True)
class RainbowModelConfig(CategoricalModelConfig):
    """The Q-network: an encoder and a dueling head of noisy layers."""

    noise_std: float = 0.5
    """Size of the noise of a layer at the start, times the square root of its inputs, > 0."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        require(self.noise_std > 0, "model.noise_std", "> 0", self.noise_std)


def _rainbow_other() -> QLearningOtherConfig:
    buffer = ReplayBufferConfig(type="advanced", replay_buffer_size=1_000_000)
    return QLearningOtherConfig(EpsConfig(start=0.05, end=0.05), buffer)


@dataclass(frozen=True)
class RainbowConfig(C51Config):
    """Everything that can be set of Rainbow."""

    nstep: int = 3
    """Steps of the return, >= 1; fewer at an episode's end."""
    priority: bool = True
    """Tell the buffer the size of each error; needs a prioritised buffer."""
    priority_IS_weight: bool = True  # noqa: N815 - DI-engine's name
    """Weigh errors by the buffer's importance-sampling weights; needs priority."""
    model: RainbowModelConfig = field(default_factory=RainbowModelConfig)  # type: ignore[assignment]
    """The Q-network."""
    other: QLearningOtherConfig = field(default_factory=_rainbow_other)
    """Exploration, beside the noise, and a prioritised replay."""
