"""The options of TD-MPC2, see :mod:`lightning_ding.policy.tdmpc2`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lightning_ding.config import moved, require, searched
from lightning_ding.policy.base.config import EvalConfig
from lightning_ding.policy.replay_policy import ReplayCollectConfig, ReplayConfig, ReplayLearnConfig
from lightning_ding.worker.config import ReplayBufferConfig


@dataclass(frozen=True, kw_only=True)
class TDMPC2ModelConfig:
    """The model of the env, the critics and the policy prior."""

    MOVED: ClassVar[dict[str, str]] = moved(
        core="a latent state depends on one observation; dreamerv3 has a model with recurrent layers",
    )

    obs_shape: Any = None
    """Size or shape of a vector observation; None means that it is taken from the env."""
    action_shape: int | None = None
    """Dimensions of a continuous action; None means that it is taken from the env."""
    action_low: Sequence[float] | None = None
    """Smallest value of each dimension of the action; None means the env's, or -1 without an env."""
    action_high: Sequence[float] | None = None
    """Largest value of each dimension of the action; None means the env's, or 1 without an env."""
    action_integer: bool | None = None
    """Whether actions are rounded, for an env with a Box of integers; None means that it is taken from the env."""
    size: Literal["1m", "5m", "19m", "48m", "317m"] = "1m"
    """Named widths of all layers, by the approximate number of parameters; the authors train single tasks with 5m."""
    encoder: int | None = None
    """Width of the encoder's hidden layers, >= 1; None means that of size."""
    encoder_layers: int | None = None
    """Layers of the encoder, the one of latent states included, >= 1; None means those of size."""
    hidden: int | None = None
    """Width of the two hidden layers of all other networks, >= 1; None means that of size."""
    latent: int | None = None
    """Size of a latent state, a multiple of simplex; None means that of size."""
    simplex: int = 8
    """Features of each group of a latent state, which sum to 1, >= 1."""
    ensemble_num: int = 5
    """Number of critics, >= 2; the authors have 2 with 1m and 8 with 317m."""
    dropout: float = 0.01
    """Probability that a hidden unit of a critic is left out in updates, in [0, 1)."""
    bins: int = 101
    """Bins of predicted rewards and values, odd, >= 3."""
    largest_bin: float = 10.0
    """symlog of the largest reward or value that can be predicted, > 0; 10 for about 22,000."""
    predicts_end: bool = True
    """Whether the model predicts terminations, after which nothing counts in plans; false saves a network in envs that
    only a time limit ends."""

    def __post_init__(self) -> None:
        for name in ("encoder", "encoder_layers", "hidden", "latent", "simplex"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"model.{name}", ">= 1", value)
        require(self.ensemble_num >= 2, "model.ensemble_num", ">= 2, as two critics are drawn", self.ensemble_num)
        require(0 <= self.dropout < 1, "model.dropout", "in [0, 1)", self.dropout)
        require(self.bins >= 3 and self.bins % 2 == 1, "model.bins", "odd and >= 3", self.bins)
        require(self.largest_bin > 0, "model.largest_bin", "> 0", self.largest_bin)


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """How actions are planned."""

    iterations: int = 6
    """Iterations of sampling, >= 1; the authors add 2 from 20 dimensions of an action."""
    num_samples: int = 512
    """Candidate plans of an iteration, those of the policy prior included, >= 1."""
    num_elites: int = 64
    """Best candidates, to which the distribution moves, in [1, num_samples]."""
    num_policy_samples: int = 24
    """Candidates from the policy prior, in [0, num_samples)."""
    min_std: float = 0.05
    """Smallest standard deviation of a normalised action, > 0."""
    max_std: float = 2.0
    """Standard deviation of a normalised action in the first iteration, and the largest one, >= min_std."""
    temperature: float = 0.5
    """Factor of the returns by which elites are weighted, >= 0: 0 weights them equally."""

    def __post_init__(self) -> None:
        require(self.iterations >= 1, "plan.iterations", ">= 1", self.iterations)
        require(self.num_samples >= 1, "plan.num_samples", ">= 1", self.num_samples)
        elites, proposed, total = self.num_elites, self.num_policy_samples, self.num_samples
        require(1 <= elites <= total, "plan.num_elites", f"in [1, {total}], up to plan.num_samples", elites)
        allowed = f"in [0, {total}), below plan.num_samples"
        require(0 <= proposed < total, "plan.num_policy_samples", allowed, proposed)
        require(self.min_std > 0, "plan.min_std", "> 0", self.min_std)
        require(self.max_std >= self.min_std, "plan.max_std", f">= plan.min_std ({self.min_std})", self.max_std)
        require(self.temperature >= 0, "plan.temperature", ">= 0", self.temperature)


@dataclass(frozen=True, kw_only=True)
class TDMPC2LearnConfig(ReplayLearnConfig):
    """Options for updates."""

    update_per_collect: int = 1
    """Updates after each collection of n_sample transitions, >= 1."""
    batch_size: int = searched(256, "choice(64, 128, 256)")
    """Sequences of a minibatch on each rank, >= 1."""
    learning_rate: float = searched(3e-4, "log(1e-4, 3e-3)")
    """Step size of the model, the critics and the policy prior, > 0."""
    encoder_lr_scale: float = 0.3
    """Factor of the encoder's step size, > 0."""
    grad_clip_norm: float | None = 20.0
    """Largest norm of the gradient that an optimizer steps with, > 0; None for no limit."""
    target_theta: float | None = 0.01
    """Step size of the soft update of the target critics after every update, in (0, 1]; None copies them instead."""
    consistency_weight: float = 20.0
    """Weight of the squared errors of predicted latent states, >= 0."""
    reward_weight: float = 0.1
    """Weight of the loss of predicted rewards, >= 0."""
    value_weight: float = 0.1
    """Weight of the critics' loss, >= 0."""
    end_weight: float = 1.0
    """Weight of the loss of predicted terminations, >= 0; only with model.predicts_end."""
    rho: float = 0.5
    """Factor of the weight of a loss for each further predicted step, in (0, 1]."""
    entropy_weight: float = 1e-4
    """Weight of the policy prior's entropy, >= 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("learning_rate", "encoder_lr_scale"):
            require(getattr(self, name) > 0, f"learn.{name}", "> 0", getattr(self, name))
        for name in ("consistency_weight", "reward_weight", "value_weight", "end_weight", "entropy_weight"):
            require(getattr(self, name) >= 0, f"learn.{name}", ">= 0", getattr(self, name))
        require(0 < self.rho <= 1, "learn.rho", "in (0, 1]", self.rho)


@dataclass(frozen=True, kw_only=True)
class TDMPC2CollectConfig(ReplayCollectConfig):
    """Options for collecting: the amount, the collector and how actions are chosen."""

    planning: bool = True
    """Whether actions are planned; false samples them from the policy prior."""


@dataclass(frozen=True, kw_only=True)
class TDMPC2EvalConfig(EvalConfig):
    """Options for evaluation."""

    planning: bool = True
    """Whether actions are planned; false takes the policy prior's mean."""


@dataclass(frozen=True, kw_only=True)
class TDMPC2OtherConfig:
    """Replay."""

    replay_buffer: ReplayBufferConfig = field(
        default_factory=lambda: ReplayBufferConfig(type="sequence", replay_buffer_size=1_000_000)
    )
    """The replay buffer, one that draws sequences."""


@dataclass(frozen=True, kw_only=True)
class TDMPC2Config(ReplayConfig):
    """Everything that can be set of TD-MPC2."""

    horizon: int = 3
    """Steps of a plan, and of the sequences that are learned from, >= 1."""
    random_collect_size: int = 1000
    """Transitions collected before the first update on each rank, >= 0: with random actions, or with those of the
    policy if it was trained before."""
    model: TDMPC2ModelConfig = field(default_factory=TDMPC2ModelConfig)
    """The model of the env, the critics and the policy prior."""
    plan: PlanConfig = field(default_factory=PlanConfig)
    """How actions are planned."""
    learn: TDMPC2LearnConfig = field(default_factory=TDMPC2LearnConfig)
    """Options for updates."""
    collect: TDMPC2CollectConfig = field(default_factory=TDMPC2CollectConfig)
    """Options for collecting: the amount, the collector and how actions are chosen."""
    eval: TDMPC2EvalConfig = field(default_factory=TDMPC2EvalConfig)
    """Options for evaluation."""
    other: TDMPC2OtherConfig = field(default_factory=TDMPC2OtherConfig)
    """Replay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.horizon >= 1, "horizon", ">= 1", self.horizon)
        require(self.nstep in (1, None), "nstep", "1 with tdmpc2, which plans the further steps", self.nstep)
        require(not self.priority, "priority", "False with tdmpc2", self.priority)
        weight, default = self.learn.end_weight, TDMPC2LearnConfig.end_weight
        allowed = f"left at its default ({default}) without model.predicts_end"
        require(self.model.predicts_end or weight == default, "learn.end_weight", allowed, weight)

    def unsearched(self) -> set[str]:
        """Return the options that have one value here."""
        return {"nstep"}
