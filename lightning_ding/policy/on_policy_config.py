"""The parts of a config that all on-policy algorithms share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lightning_ding.config import moved, require
from lightning_ding.policy.config import EvalConfig, PolicyConfig
from lightning_ding.worker_config import CollectorConfig


@dataclass(frozen=True)
class ActorModelConfig:
    """The network of an actor, with or without a critic."""

    obs_shape: Any = None
    """Size or shape of an observation, or a dict of them; None takes it from the env."""
    action_shape: Any = None
    """Number of actions or dimensions; one number for each dimension of a multi-discrete action; action_type_shape
    and action_args_shape of a hybrid one; None takes it from the env."""
    action_space: Literal["discrete", "continuous", "hybrid"] | None = None
    """Kind of action; None takes it from the env."""
    action_low: Sequence[float] | None = None
    """Smallest value of each dimension in the env; None takes it from the env, or -1 without one."""
    action_high: Sequence[float] | None = None
    """Largest value of each dimension in the env; None takes it from the env, or 1 without one."""
    action_integer: bool | None = None
    """Round continuous actions to integers, as an env with a Box of integers needs; None takes it from the env."""
    action_start: int | Sequence[int] | None = None
    """First number of a discrete action in the env, or that of each dimension; None takes it from the env, or 0."""
    encoder: str | None = None
    """Registered encoder (mlp, conv, impala, dict or your own); None chooses by the observation's shape."""
    encoder_hidden_size_list: Sequence[int] | None = None
    """Widths of the encoder; None takes the encoder's default: 128, 128, 64 for vectors."""
    actor_head_hidden_size: int | None = None
    """Width of the actor head's hidden layers; None takes the encoder's last width."""
    actor_head_layer_num: int = 0
    """Hidden layers of the actor's head, >= 0."""
    encoder_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the encoder by name: layer_norm, activation; of images channels, feature_size, kernel_size and
    stride; of dicts fusion_size and image_encoder; see the page on networks."""
    activation: Literal["relu", "tanh", "elu", "gelu", "silu"] = "relu"
    """After every hidden layer."""
    layer_norm: bool = False
    """Normalise every hidden layer before its activation."""
    sigma_type: Literal["independent", "conditioned", "fixed"] = "independent"
    """Standard deviation of continuous actions: learned for each dimension, by the network, or fixed."""
    fixed_sigma_value: float = 0.3
    """The standard deviation with sigma_type fixed, > 0, in units of half the action's range."""
    bound_type: Literal["tanh"] | None = None
    """Squash the mean of continuous actions; None leaves it free, and clips the action."""

    def __post_init__(self) -> None:
        """Refuse what the kind of action has no use for."""
        kind, start = self.action_space, self.action_start
        require(
            kind != "discrete" or not self.action_integer, "model.action_integer", "None for discrete actions", True
        )
        require(kind != "continuous" or start is None, "model.action_start", "None for continuous actions", start)


@dataclass(frozen=True)
class ActorCriticModelConfig(ActorModelConfig):
    """The network of an actor and a critic."""

    share_encoder: bool = True
    """Let actor and critic have one encoder."""
    critic_head_hidden_size: int | None = None
    """Width of the critic head's hidden layers; None takes the encoder's last width."""
    critic_head_layer_num: int = 0
    """Hidden layers of the critic's head, >= 0."""


@dataclass(frozen=True)
class LRSchedulerConfig:
    """A learning rate that falls linearly."""

    epoch_num: int | None = None
    """Rounds after which the factor would be 0, >= 1; None keeps the learning rate as it is."""
    min_lr_lambda: float = 0.0
    """Smallest factor, in [0, 1]."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        path = "learn.lr_scheduler"
        require(self.epoch_num is None or self.epoch_num >= 1, f"{path}.epoch_num", ">= 1 or None", self.epoch_num)
        require(0 <= self.min_lr_lambda <= 1, f"{path}.min_lr_lambda", "in [0, 1]", self.min_lr_lambda)
        is_used = self.epoch_num is not None or self.min_lr_lambda == 0
        require(is_used, f"{path}.min_lr_lambda", "0 without epoch_num", self.min_lr_lambda)


@dataclass(frozen=True)
class OnPolicyLearnConfig:
    """How updates are made."""

    MOVED: ClassVar[dict[str, str]] = moved(
        discount_factor="set discount_factor of the policy",
        update_per_collect="a rollout gives epoch_per_collect times its size divided by batch_size updates",
        grad_clip_type="gradients are clipped by their norm, with grad_clip_norm",
        grad_clip_value="set grad_clip_norm",
        grad_norm="set grad_clip_norm",
    )

    batch_size: int | None = 64
    """Transitions of a minibatch on each rank, >= 1, give or take what makes them equal; None for the whole rollout."""
    learning_rate: float = 3e-4
    """Step size of Adam at the start, > 0."""
    eps: float = 1e-5
    """Added to the denominator of Adam, > 0."""
    lr_scheduler: LRSchedulerConfig = field(default_factory=LRSchedulerConfig)
    """How the step size falls."""
    entropy_weight: float = 0.0
    """Weight of the policy's entropy, which keeps it exploring, >= 0."""
    grad_clip_norm: float | None = 0.5
    """Largest norm of the gradient, > 0; None for no limit."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        size, clip = self.batch_size, self.grad_clip_norm
        require(size is None or size >= 1, "learn.batch_size", ">= 1 or None", size)
        require(self.learning_rate > 0, "learn.learning_rate", "> 0", self.learning_rate)
        require(self.eps > 0, "learn.eps", "> 0", self.eps)
        require(self.entropy_weight >= 0, "learn.entropy_weight", ">= 0", self.entropy_weight)
        require(clip is None or clip > 0, "learn.grad_clip_norm", "> 0 or None", clip)


@dataclass(frozen=True)
class OnPolicyCollectConfig:
    """How much is collected, and by which collector."""

    MOVED: ClassVar[dict[str, str]] = moved(discount_factor="set discount_factor of the policy")

    n_sample: int | None = None
    """Transitions of a rollout on each rank, >= 1, a few more if the envs do not divide it; None with n_episode."""
    n_episode: int | None = None
    """Episodes of a rollout on each rank, >= 1; None with n_sample."""
    unroll_len: int = 1
    """Steps of a training sample; these algorithms have no memory, so only 1."""
    collector: CollectorConfig = field(default_factory=CollectorConfig)
    """The collector: sample with n_sample, episode with n_episode."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        one = "set when n_episode is None, and None when it is set"
        require((self.n_sample is None) != (self.n_episode is None), "collect.n_sample", one, self.n_sample)
        require(self.n_sample is None or self.n_sample >= 1, "collect.n_sample", ">= 1", self.n_sample)
        require(self.n_episode is None or self.n_episode >= 1, "collect.n_episode", ">= 1", self.n_episode)
        require(self.unroll_len == 1, "collect.unroll_len", "1", self.unroll_len)
        kind = self.collector.type
        other = "episode" if self.n_sample is not None else "sample"
        given = "n_sample" if self.n_sample is not None else "n_episode"
        require(kind != other, "collect.collector.type", f"another one with collect.{given}", kind)
        waste = "False: the rollout holds whole episodes already"
        require(not self.collector.get_train_sample, "collect.collector.get_train_sample", waste, True)


@dataclass(frozen=True)
class OnPolicyConfig(PolicyConfig):
    """Everything that can be set of every on-policy algorithm."""

    MOVED: ClassVar[dict[str, str]] = PolicyConfig.MOVED | moved(
        action_space="set model.action_space",
        priority="there is no replay, so nothing to draw by priority",
        priority_IS_weight="there is no replay, so nothing to weigh",
        nstep="advantages reach as far as the rollout, see collect.gae_lambda",
        random_collect_size="a rollout must come from the policy itself",
    )

    discount_factor: float = 0.99
    """gamma, in [0, 1]."""
    eval: EvalConfig = field(default_factory=EvalConfig)
    """How the policy is evaluated."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(0 <= self.discount_factor <= 1, "discount_factor", "in [0, 1]", self.discount_factor)
