"""The config that DDPG, TD3 and SAC share: every field with its meaning, its range and its only default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lightning_ding.config import require
from lightning_ding.policy.replay_config import ReplayConfig, ReplayLearnConfig
from lightning_ding.worker_config import ReplayBufferConfig


@dataclass(frozen=True)
class QACModelConfig:
    """The actor and the critics."""

    obs_shape: Any = None
    """Size or shape of an observation, or a dict of them; None takes it from the env."""
    action_shape: Any = None
    """Dimensions of the action, hybrid: ``{action_type_shape, action_args_shape}``; None takes it from the env."""
    action_low: Sequence[float] | None = None
    """Smallest value of each dimension of the action; None takes it from the env, -1 where there is none."""
    action_high: Sequence[float] | None = None
    """Largest value of each dimension of the action; None takes it from the env, 1 where there is none."""
    action_integer: bool | None = None
    """Round continuous actions to integers, as an env with a Box of integers needs; None takes it from the env."""
    twin_critic: bool = True
    """Two critics, the smaller of whose values makes the target."""
    actor_head_hidden_size: int = 256
    """Width of the actor's hidden layers, >= 1; needs some."""
    actor_head_layer_num: int = 2
    """Hidden layers of the actor, >= 0."""
    critic_head_hidden_size: int = 256
    """Width of the critics' hidden layers, >= 1; needs some."""
    critic_head_layer_num: int = 2
    """Hidden layers of the critics, >= 0."""
    encoder: str | None = None
    """Registered encoder (mlp, conv, impala, dict or your own); None chooses by the observation's shape, none for
    vectors."""
    encoder_hidden_size_list: Sequence[int] | None = None
    """Widths of the encoders; None takes none for vectors, and the encoder's default for others."""
    share_encoder: bool = False
    """The actor sees the critics' features, which the critics' loss alone trains; needs an encoder."""
    encoder_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the encoder by name: layer_norm, activation; of images channels, feature_size, kernel_size and
    stride; of dicts fusion_size and image_encoder; see the page on networks."""
    activation: Literal["relu", "tanh", "elu", "gelu", "silu"] = "relu"
    """After every hidden layer."""
    layer_norm: bool = False
    """Normalise every hidden layer before its activation."""
    last_layer_init: float | None = None
    """The last layers start uniform within this distance of 0, > 0; None starts them as all others."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        init = self.last_layer_init
        require(init is None or init > 0, "model.last_layer_init", "> 0 or None", init)
        for head in ("actor_head", "critic_head"):
            layers, size = getattr(self, f"{head}_layer_num"), getattr(self, f"{head}_hidden_size")
            require(layers >= 0, f"model.{head}_layer_num", ">= 0", layers)
            require(size >= 1, f"model.{head}_hidden_size", ">= 1", size)
            is_used = layers > 0 or size == getattr(type(self), f"{head}_hidden_size")
            require(is_used, f"model.{head}_hidden_size", "left alone without hidden layers", size)


@dataclass(frozen=True)
class QACLearnConfig(ReplayLearnConfig):
    """How updates are made."""

    batch_size: int = 256
    """Transitions of a minibatch on each rank, >= 1."""
    target_theta: float = 0.005
    """Share of the networks that moves into the targets at a time, in (0, 1]."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        require(0 < self.target_theta <= 1, "learn.target_theta", "in (0, 1]", self.target_theta)


@dataclass(frozen=True)
class QACOtherConfig:
    """Replay."""

    replay_buffer: ReplayBufferConfig = field(default_factory=lambda: ReplayBufferConfig(replay_buffer_size=1_000_000))
    """The replay buffer."""


@dataclass(frozen=True)
class QACConfig(ReplayConfig):
    """What can be set of DDPG, TD3 and SAC alike."""

    random_collect_size: int = 1000
    """Transitions collected with random actions before the first update on each rank, >= 0."""
    model: QACModelConfig = field(default_factory=QACModelConfig)
    """The actor and the critics."""
    learn: QACLearnConfig = field(default_factory=QACLearnConfig)
    """How updates are made."""
    other: QACOtherConfig = field(default_factory=QACOtherConfig)
    """Replay."""
