"""The options of policies that give a distribution over actions, of rollouts, and of critics with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lightning_ding.config import moved, require
from lightning_ding.policy.base.config import WITHOUT_SDE, LearnConfig, NetworkConfig, PolicyConfig
from lightning_ding.policy.base.optimizers import OptimizerConfig
from lightning_ding.policy.state_dependent_exploration import SDEModelConfig
from lightning_ding.search_spaces import Choice, LogUniform, searched
from lightning_ding.utils.schedules import ScheduleConfig
from lightning_ding.worker.config import CollectorConfig


@dataclass(frozen=True, kw_only=True)
class ActorModelConfig(NetworkConfig):
    """The network of an actor, with or without a critic."""

    MOVED: ClassVar[dict[str, str]] = NetworkConfig.MOVED | moved(
        core="this algorithm has no memory; recurrent_ppo is PPO with recurrent layers",
    )

    action_shape: Any = None
    """Number of actions or dimensions; one number for each dimension of a multi-discrete action; action_type_shape
    and action_args_shape of a hybrid one; None means that it is taken from the env."""
    action_space: Literal["discrete", "continuous", "hybrid"] | None = None
    """Kind of action; None means that it is taken from the env."""
    action_low: Sequence[float] | None = None
    """Smallest value of each dimension in the env; None means the env's, or -1 without an env."""
    action_high: Sequence[float] | None = None
    """Largest value of each dimension in the env; None means the env's, or 1 without an env."""
    action_integer: bool | None = None
    """Whether continuous actions are rounded, for an env with a Box of integers; None means that it is taken from the
    env."""
    action_start: int | Sequence[int] | None = None
    """Smallest action of a Discrete space, or of each dimension; None means the env's, or 0 without an env."""
    actor_head_hidden_size: int | None = None
    """Width of the actor head's hidden layers; None means the encoder's last width."""
    actor_head_layer_num: int | None = None
    """Number of hidden layers of the actor's head, >= 0; None means 1 with actor_head_hidden_size, else 0."""
    actor_hidden_size_list: Sequence[int] | None = None
    """Width of each layer of the actor's head, >= 1, in place of the two options above; a vector then has no encoder
    layers unless an option of the encoder is set. With a critic, needs critic_hidden_size_list."""
    sigma_type: Literal["independent", "conditioned", "fixed"] = "independent"
    """Standard deviation of continuous actions: learned for each dimension, by the network, or fixed."""
    fixed_sigma_value: float = 0.3
    """The standard deviation with sigma_type fixed, > 0, in units of half the action's range."""
    log_std_init: float | None = None
    """Logarithm of the initial standard deviation with sigma_type independent; None means -0.5, and 0 with
    state-dependent noise."""
    bound_type: Literal["tanh"] | None = None
    """Squash the mean of continuous actions; None means that the mean is not bounded, and the action is clipped."""

    def __post_init__(self) -> None:
        """Check that no option is set that has no effect with the kind of action."""
        kind, start = self.action_space, self.action_start
        require(
            kind != "discrete" or not self.action_integer, "model.action_integer", "None for discrete actions", True
        )
        require(kind != "continuous" or start is None, "model.action_start", "None for continuous actions", start)


@dataclass(frozen=True, kw_only=True)
class ActorCriticModelConfig(ActorModelConfig):
    """The network of an actor and a critic."""

    share_encoder: bool = True
    """Use one encoder for actor and critic."""
    critic_head_hidden_size: int | None = None
    """Width of the critic head's hidden layers; None means the encoder's last width."""
    critic_head_layer_num: int | None = None
    """Number of hidden layers of the critic's head, >= 0; None means 1 with critic_head_hidden_size, else 0."""
    critic_hidden_size_list: Sequence[int] | None = None
    """Width of each layer of the critic's head, >= 1, in place of the two options above; needs
    actor_hidden_size_list."""


@dataclass(frozen=True, kw_only=True)
class SDEActorCriticModelConfig(SDEModelConfig, ActorCriticModelConfig):
    """The network of an actor, which may explore with state-dependent noise, and a critic."""

    MOVED: ClassVar[dict[str, str]] = {
        key: hint for key, hint in ActorCriticModelConfig.MOVED.items() if key not in WITHOUT_SDE
    }


@dataclass(frozen=True, kw_only=True)
class OnPolicyOptimizerConfig(OptimizerConfig):
    """The class of the optimizer and its further arguments."""

    eps: float = 1e-5
    """Added to the denominator of the step, > 0; not for sgd."""


@dataclass(frozen=True, kw_only=True)
class OnPolicyLearnConfig(LearnConfig):
    """Options for updates."""

    MOVED: ClassVar[dict[str, str]] = LearnConfig.MOVED | moved(
        discount_factor="set discount_factor of the policy",
        update_per_collect="a rollout gives epoch_per_collect times its size divided by batch_size updates",
    )

    batch_size: int | None = searched(64, Choice(32, 64, 128, 256, 512))
    """Transitions of a minibatch on each rank, >= 1, adjusted to give equal sizes; None for the whole rollout."""
    learning_rate: float = searched(3e-4, LogUniform(1e-5, 1e-2))
    """Step size at the start, > 0."""
    optimizer: OnPolicyOptimizerConfig = field(default_factory=OnPolicyOptimizerConfig)
    """The class of the optimizer."""
    entropy_weight: float = 0.0
    """Weight of the policy's entropy, which keeps it exploring, >= 0."""
    entropy_weight_scheduler: ScheduleConfig = field(default_factory=ScheduleConfig)
    """A factor of entropy_weight that changes during the run; needs entropy_weight > 0."""
    grad_clip_norm: float | None = 0.5
    """Largest norm of the gradient, > 0; None for no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        size, path = self.batch_size, "learn.entropy_weight_scheduler"
        require(size is None or size >= 1, "learn.batch_size", ">= 1 or None", size)
        require(self.learning_rate > 0, "learn.learning_rate", "> 0", self.learning_rate)
        require(self.entropy_weight >= 0, "learn.entropy_weight", ">= 0", self.entropy_weight)
        self.entropy_weight_scheduler.check(path)
        is_used = self.entropy_weight > 0 or self.entropy_weight_scheduler == ScheduleConfig()
        require(is_used, path, "left at its default with entropy_weight 0", self.entropy_weight_scheduler.type)


@dataclass(frozen=True, kw_only=True)
class ActorCriticLearnConfig(OnPolicyLearnConfig):
    """Options for updates."""

    learning_rate_actor: float | None = None
    """Step size of a separate optimizer of the actor, > 0; needs learning_rate_critic and share_encoder false; None for
    one optimizer with learning_rate."""
    learning_rate_critic: float | None = None
    """Step size of a separate optimizer of the critic, > 0; needs learning_rate_actor."""
    value_weight: float = 0.5
    """Weight of the critic's loss, half its mean squared error, >= 0."""
    adv_norm: bool = True
    """Standardise the advantages of each minibatch, over all ranks; a single one stays as it is."""
    ignore_done: bool = False
    """Bootstrap from terminal states too; for old configs of envs that only a time limit ends."""
    value_norm: bool | Literal["symlog", "popart"] = False
    """Train the critic to predict returns divided by their root mean square (True), less their mean and divided by
    their standard deviation (popart), or their symmetric logarithm (symlog). Of the first two, a change leaves all
    values as they are."""
    ppo_param_init: bool = False
    """Orthogonal weights at the start, and an actor that is nearly uniform (Andrychowicz et al. 2021)."""
    rpo_alpha: float = 0.0
    """Largest uniform noise on the mean of continuous actions in updates, >= 0, in units of half the action's range;
    0.5 in the paper of RPO."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.value_weight >= 0, "learn.value_weight", ">= 0", self.value_weight)
        require(self.rpo_alpha >= 0, "learn.rpo_alpha", ">= 0", self.rpo_alpha)
        self._check_rates()

    def _check_rates(self) -> None:
        for name, other in (("actor", "critic"), ("critic", "actor")):
            rate, of_other = (getattr(self, f"learning_rate_{one}") for one in (name, other))
            require(rate is None or rate > 0, f"learn.learning_rate_{name}", "> 0 or None", rate)
            both = f"set with learn.learning_rate_{other}, and None without it"
            require((rate is None) == (of_other is None), f"learn.learning_rate_{name}", both, rate)
        unused = not self.has_two_rates or self.learning_rate == type(self).learning_rate
        allowed = "left at its default with learning_rate_actor and learning_rate_critic"
        require(unused, "learn.learning_rate", allowed, self.learning_rate)

    @property
    def has_two_rates(self) -> bool:
        """Whether actor and critic have separate optimizers."""
        return self.learning_rate_actor is not None

    def check_model(self, model: ActorCriticModelConfig) -> None:
        """Raise if actor and critic have separate optimizers and the network would share an encoder."""
        allowed = "False with learning_rate_actor and learning_rate_critic"
        require(not (self.has_two_rates and model.share_encoder), "model.share_encoder", allowed, model.share_encoder)


@dataclass(frozen=True, kw_only=True)
class OnPolicyCollectConfig:
    """Options for collecting: the amount and the collector."""

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
        one = "set when n_episode is None, and None when it is set"
        require((self.n_sample is None) != (self.n_episode is None), "collect.n_sample", one, self.n_sample)
        require(self.n_sample is None or self.n_sample >= 1, "collect.n_sample", ">= 1", self.n_sample)
        require(self.n_episode is None or self.n_episode >= 1, "collect.n_episode", ">= 1", self.n_episode)
        require(self.unroll_len == 1, "collect.unroll_len", "1", self.unroll_len)
        kind = self.collector.type
        other = "episode" if self.n_sample is not None else "sample"
        given = "n_sample" if self.n_sample is not None else "n_episode"
        require(kind != other, "collect.collector.type", f"a different one with collect.{given}", kind)
        waste = "False: the rollout holds whole episodes already"
        require(not self.collector.get_train_sample, "collect.collector.get_train_sample", waste, True)


@dataclass(frozen=True, kw_only=True)
class ActorCriticCollectConfig(OnPolicyCollectConfig):
    """Options for collecting: the amount and the collector."""

    gae_lambda: float = 0.95
    """Bias-variance mix of the advantages, in [0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.gae_lambda <= 1, "collect.gae_lambda", "in [0, 1]", self.gae_lambda)


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(PolicyConfig):
    """Everything that can be set of every on-policy algorithm."""

    MOVED: ClassVar[dict[str, str]] = PolicyConfig.MOVED | moved(
        action_space="set model.action_space",
        priority="there is no replay, so nothing to draw by priority",
        priority_IS_weight="there is no replay, so nothing to weigh",
        nstep="advantages reach as far as the rollout, see collect.gae_lambda",
        random_collect_size="a rollout must come from the policy itself",
    )

    discount_factor: float = searched(0.99, Choice(0.9, 0.95, 0.98, 0.99, 0.995, 0.999))
    """gamma, in [0, 1]."""

    def __post_init__(self) -> None:
        require(0 <= self.discount_factor <= 1, "discount_factor", "in [0, 1]", self.discount_factor)
