"""The config that DQN and its relatives share: every field with its meaning, its range and its only default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lightning_ding.config import require
from lightning_ding.policy.config import PolicyConfig
from lightning_ding.worker_config import CollectorConfig, EvaluatorConfig, ReplayBufferConfig


@dataclass(frozen=True)
class QLearningModelConfig:
    """A Q-network: an encoder and a head."""

    obs_shape: Any = None
    """Size or shape of an observation, or a dict of them; None takes it from the env."""
    action_shape: Any = None
    """Number of actions; None takes it from the env."""
    encoder: str | None = None
    """Registered encoder (mlp, conv, dict or your own); None chooses by the observation's shape."""
    encoder_hidden_size_list: Sequence[int] | None = None
    """Widths of the encoder; None takes the encoder's default: 128, 128, 64 for vectors."""
    head_hidden_size: int | None = None
    """Width of the head's hidden layers; None takes the encoder's last width."""
    head_layer_num: int | None = None
    """Hidden layers of the head, >= 0; None means 1 in a dueling head, else 0."""
    activation: Literal["relu", "tanh", "elu", "gelu"] = "relu"
    """Behind every hidden layer."""


@dataclass(frozen=True)
class QLearningLearnConfig:
    """How updates are made."""

    update_per_collect: int = 5
    """Updates after each collection of n_sample transitions, >= 1."""
    batch_size: int = 64
    """Transitions of a minibatch on each rank, >= 1."""
    learning_rate: float = 1e-3
    """Step size of Adam, > 0."""
    target_update_freq: int | None = 100
    """Updates between two copies into the target network, >= 1; None when target_theta is used."""
    target_theta: float | None = None
    """Share of the network that moves into the target after every update, in (0, 1]; None when copying."""
    double_q: bool = True
    """Let the online network choose the action that the target network values."""
    grad_clip_norm: float | None = None
    """Largest norm of the gradient, > 0; None for no limit."""
    ignore_done: bool = False
    """Bootstrap from terminal states too; for old configs whose envs end by a time limit only."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(self.update_per_collect >= 1, "learn.update_per_collect", ">= 1", self.update_per_collect)
        require(self.batch_size >= 1, "learn.batch_size", ">= 1", self.batch_size)
        require(self.learning_rate > 0, "learn.learning_rate", "> 0", self.learning_rate)
        freq, theta = self.target_update_freq, self.target_theta
        allowed = "set when target_theta is None, and None when it is set"
        require((freq is None) != (theta is None), "learn.target_update_freq", f"{allowed} ({theta})", freq)
        require(freq is None or freq >= 1, "learn.target_update_freq", ">= 1", freq)
        require(theta is None or 0 < theta <= 1, "learn.target_theta", "in (0, 1]", theta)
        clip = self.grad_clip_norm
        require(clip is None or clip > 0, "learn.grad_clip_norm", "> 0 or None", clip)


@dataclass(frozen=True)
class QLearningCollectConfig:
    """How much is collected, and by which collector."""

    n_sample: int = 8
    """Transitions of a round on each rank, >= 1."""
    unroll_len: int = 1
    """Steps of a training sample; there is no memory, so only 1."""
    collector: CollectorConfig = field(default_factory=CollectorConfig)
    """The collector."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(self.n_sample >= 1, "collect.n_sample", ">= 1", self.n_sample)
        require(self.unroll_len == 1, "collect.unroll_len", "1 for DQN and its relatives", self.unroll_len)


@dataclass(frozen=True)
class QLearningEvalConfig:
    """How the policy is evaluated."""

    evaluator: EvaluatorConfig = field(default_factory=EvaluatorConfig)
    """The evaluator."""


@dataclass(frozen=True)
class EpsConfig:
    """The epsilon schedule."""

    type: Literal["linear", "exp"] = "linear"
    """linear reaches end at decay; exp comes near it with time constant decay; needs an end that is not start."""
    start: float = 1.0
    """Probability of a random action at the start, in [0, 1]."""
    end: float = 0.05
    """Probability of a random action in the long run, in [0, 1]."""
    decay: float = 10_000
    """Env steps over all ranks, > 0; needs an end that is not start."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(0 <= self.start <= 1, "other.eps.start", "in [0, 1]", self.start)
        require(0 <= self.end <= 1, "other.eps.end", "in [0, 1]", self.end)
        require(self.decay > 0, "other.eps.decay", "> 0", self.decay)
        allowed = f"left alone where start and end are equal ({self.start})"
        for name in ("type", "decay"):
            is_used = self.start != self.end or getattr(self, name) == getattr(type(self), name)
            require(is_used, f"other.eps.{name}", allowed, getattr(self, name))


@dataclass(frozen=True)
class QLearningOtherConfig:
    """Exploration and replay, which belong to neither mode."""

    eps: EpsConfig = field(default_factory=EpsConfig)
    """The epsilon schedule."""
    replay_buffer: ReplayBufferConfig = field(default_factory=lambda: ReplayBufferConfig(replay_buffer_size=20_000))
    """The replay buffer."""


@dataclass(frozen=True)
class QLearningConfig(PolicyConfig):
    """What can be set of DQN and all its relatives."""

    nstep: int = 1
    """Steps of the return, >= 1; fewer at an episode's end."""
    discount_factor: float = 0.99
    """gamma, in [0, 1]."""
    priority: bool = False
    """Tell the buffer the size of each error; needs a prioritised buffer."""
    priority_IS_weight: bool = False  # noqa: N815 - DI-engine's name
    """Weigh errors by the buffer's importance-sampling weights; needs priority."""
    random_collect_size: int = 512
    """Transitions collected with random actions before the first update on each rank, >= 0."""
    model: QLearningModelConfig = field(default_factory=QLearningModelConfig)
    """The Q-network."""
    learn: QLearningLearnConfig = field(default_factory=QLearningLearnConfig)
    """How updates are made."""
    collect: QLearningCollectConfig = field(default_factory=QLearningCollectConfig)
    """How much is collected, and by which collector."""
    eval: QLearningEvalConfig = field(default_factory=QLearningEvalConfig)
    """How the policy is evaluated."""
    other: QLearningOtherConfig = field(default_factory=QLearningOtherConfig)
    """Exploration and replay."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(self.nstep >= 1, "nstep", ">= 1", self.nstep)
        require(0 <= self.discount_factor <= 1, "discount_factor", "in [0, 1]", self.discount_factor)
        require(self.priority or not self.priority_IS_weight, "priority_IS_weight", "False without priority", True)
        require(self.random_collect_size >= 0, "random_collect_size", ">= 0", self.random_collect_size)
