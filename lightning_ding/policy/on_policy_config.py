"""The parts of a config that all on-policy algorithms share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lightning_ding.config import moved, require
from lightning_ding.policy.config import EvalConfig, PolicyConfig
from lightning_ding.policy.learn_config import LearnConfig, OptimizerConfig, ScheduleConfig
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
class OnPolicyOptimizerConfig(OptimizerConfig):
    """The class of the optimizer and what else it is made with."""

    eps: float = 1e-5
    """Added to the denominator of the step, > 0; not for sgd."""


@dataclass(frozen=True)
class OnPolicyLearnConfig(LearnConfig):
    """How updates are made."""

    MOVED: ClassVar[dict[str, str]] = LearnConfig.MOVED | moved(
        discount_factor="set discount_factor of the policy",
        update_per_collect="a rollout gives epoch_per_collect times its size divided by batch_size updates",
    )

    batch_size: int | None = 64
    """Transitions of a minibatch on each rank, >= 1, give or take what makes them equal; None for the whole rollout."""
    learning_rate: float = 3e-4
    """Step size at the start, > 0."""
    optimizer: OnPolicyOptimizerConfig = field(default_factory=OnPolicyOptimizerConfig)
    """The class of the optimizer."""
    entropy_weight: float = 0.0
    """Weight of the policy's entropy, which keeps it exploring, >= 0."""
    entropy_weight_scheduler: ScheduleConfig = field(default_factory=ScheduleConfig)
    """A factor of entropy_weight that changes as the run goes on; needs one."""
    grad_clip_norm: float | None = 0.5
    """Largest norm of the gradient, > 0; None for no limit."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        size, path = self.batch_size, "learn.entropy_weight_scheduler"
        require(size is None or size >= 1, "learn.batch_size", ">= 1 or None", size)
        require(self.learning_rate > 0, "learn.learning_rate", "> 0", self.learning_rate)
        require(self.entropy_weight >= 0, "learn.entropy_weight", ">= 0", self.entropy_weight)
        self.entropy_weight_scheduler.check(path)
        is_used = self.entropy_weight > 0 or self.entropy_weight_scheduler == ScheduleConfig()
        require(is_used, path, "left alone with entropy_weight 0", self.entropy_weight_scheduler.type)


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
