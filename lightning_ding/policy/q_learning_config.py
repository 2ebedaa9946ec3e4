"""The config that DQN and its relatives share: every field with its meaning, its range and its only default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lightning_ding.config import require
from lightning_ding.policy.replay_config import ReplayCollectConfig, ReplayConfig, ReplayLearnConfig
from lightning_ding.rl import Schedule
from lightning_ding.worker_config import ReplayBufferConfig


@dataclass(frozen=True)
class QLearningModelConfig:
    """A Q-network: an encoder and a head."""

    obs_shape: Any = None
    """Size or shape of an observation, or a dict of them; None takes it from the env."""
    action_shape: Any = None
    """Number of actions; None takes it from the env."""
    action_start: int | Sequence[int] | None = None
    """First number of a discrete action in the env, or that of each dimension; None takes it from the env, or 0."""
    encoder: str | None = None
    """Registered encoder (mlp, conv, impala, dict or your own); None chooses by the observation's shape."""
    encoder_hidden_size_list: Sequence[int] | None = None
    """Widths of the encoder; None takes the encoder's default: 128, 128, 64 for vectors."""
    head_hidden_size: int | None = None
    """Width of the head's hidden layers; None takes the encoder's last width."""
    head_layer_num: int | None = None
    """Hidden layers of the head, >= 0; None means 1 in a dueling head, else 0."""
    encoder_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the encoder by name: layer_norm, activation; of images channels, feature_size, kernel_size and
    stride; of dicts fusion_size and image_encoder; see the page on networks."""
    activation: Literal["relu", "tanh", "elu", "gelu", "silu"] = "relu"
    """After every hidden layer."""
    layer_norm: bool = False
    """Normalise every hidden layer before its activation."""


@dataclass(frozen=True)
class QLearningLearnConfig(ReplayLearnConfig):
    """How updates are made."""

    default_copy_freq: ClassVar[int] = 100
    """Updates between two copies into the target network if the config does not say."""
    update_per_collect: int = 5
    """Updates after each collection of n_sample transitions, >= 1."""
    learning_rate: float = 1e-3
    """Step size, > 0."""
    target_update_freq: int | None = None
    """Updates between two copies into the target network, >= 1; None means 100, or no copies with target_theta."""
    target_theta: float | None = None
    """Share of the network that moves into the target after every update, in (0, 1]; None when copying."""
    double_q: bool = True
    """Let the online network choose the action that the target network values."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        require(self.learning_rate > 0, "learn.learning_rate", "> 0", self.learning_rate)
        freq, theta = self.target_update_freq, self.target_theta
        require(freq is None or theta is None, "learn.target_update_freq", f"None with target_theta ({theta})", freq)
        require(freq is None or freq >= 1, "learn.target_update_freq", ">= 1", freq)
        require(theta is None or 0 < theta <= 1, "learn.target_theta", "in (0, 1]", theta)

    @property
    def copies_target_every(self) -> int | None:
        """Updates between two copies into the target network; None when target_theta moves it."""
        if self.target_update_freq is None and self.target_theta is None:
            return self.default_copy_freq
        return self.target_update_freq


@dataclass(frozen=True)
class QLearningCollectConfig(ReplayCollectConfig):
    """How much is collected, and by which collector."""

    n_sample: int = 8
    """Transitions of a round on each rank, >= 1."""


EPS_SHARE = 0.1  # of the budget, after which a linear epsilon has reached its end
ASSUMED_BUDGET = 100_000  # env steps, for a run whose length is not known


@dataclass(frozen=True)
class EpsConfig:
    """The epsilon schedule."""

    type: Literal["linear", "exp"] = "linear"
    """linear reaches end at decay; exp approaches it with time constant decay; needs an end that is not start."""
    start: float = 1.0
    """Probability of a random action at the start, in [0, 1]."""
    end: float = 0.05
    """Probability of a random action in the long run, in [0, 1]."""
    decay: float | None = None
    """Scale of the schedule in unit, > 0; needs an end that is not start. None means a tenth of the run's budget, which
    is the datamodule's max_env_step; without one it means 10,000 env steps."""
    unit: Literal["env_step", "budget"] = "env_step"
    """Unit of decay: env steps over all ranks, or shares of the run's budget; a run without one counts as 100,000 env
    steps."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(0 <= self.start <= 1, "other.eps.start", "in [0, 1]", self.start)
        require(0 <= self.end <= 1, "other.eps.end", "in [0, 1]", self.end)
        require(self.decay is None or self.decay > 0, "other.eps.decay", "> 0 or None", self.decay)
        has_unit = self.decay is not None or self.unit == "env_step"
        require(has_unit, "other.eps.unit", "left alone without other.eps.decay", self.unit)
        allowed = f"left alone where start and end are equal ({self.start})"
        for name in ("type", "decay"):
            is_used = self.start != self.end or getattr(self, name) == getattr(type(self), name)
            require(is_used, f"other.eps.{name}", allowed, getattr(self, name))

    def schedule(self) -> Schedule:
        """Return epsilon as a function of the env steps and of the budget."""
        if self.decay is None:
            return Schedule(self.type, self.start, self.end, EPS_SHARE, "budget")
        return Schedule(self.type, self.start, self.end, self.decay, self.unit)


@dataclass(frozen=True)
class QLearningOtherConfig:
    """Exploration and replay, which belong to neither mode."""

    eps: EpsConfig = field(default_factory=EpsConfig)
    """The epsilon schedule."""
    replay_buffer: ReplayBufferConfig = field(default_factory=lambda: ReplayBufferConfig(replay_buffer_size=1_000_000))
    """The replay buffer."""


@dataclass(frozen=True)
class QLearningConfig(ReplayConfig):
    """What can be set of DQN and all its relatives."""

    random_collect_size: int = 512
    """Transitions collected with random actions before the first update on each rank, >= 0."""
    model: QLearningModelConfig = field(default_factory=QLearningModelConfig)
    """The Q-network."""
    learn: QLearningLearnConfig = field(default_factory=QLearningLearnConfig)
    """How updates are made."""
    collect: QLearningCollectConfig = field(default_factory=QLearningCollectConfig)
    """How much is collected, and by which collector."""
    other: QLearningOtherConfig = field(default_factory=QLearningOtherConfig)
    """Exploration and replay."""
