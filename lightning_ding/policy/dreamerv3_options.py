"""The options of DreamerV3, see :mod:`lightning_ding.policy.dreamerv3`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lightning_ding.config import moved, require, searched
from lightning_ding.policy.base.optimizers import OptimizerConfig
from lightning_ding.policy.replay_policy import ReplayCollectConfig, ReplayConfig, ReplayLearnConfig
from lightning_ding.worker.config import ReplayBufferConfig


@dataclass(frozen=True, kw_only=True)
class DreamerV3ModelConfig:
    """The world model, the actor and the critic."""

    MOVED: ClassVar[dict[str, str]] = moved(
        core="the world model has its own kind of recurrent layers: set size, or deter, hidden and blocks",
    )

    obs_shape: Any = None
    """Size or shape of an observation, or a dict of them; None means that it is taken from the env."""
    action_shape: int | None = None
    """Number of actions, or dimensions of a continuous action; None means that it is taken from the env."""
    action_space: Literal["discrete", "continuous"] | None = None
    """Kind of actions; None means the env's, or discrete without an env."""
    action_low: Sequence[float] | None = None
    """Smallest value of each dimension of the action; None means the env's, or -1 without an env."""
    action_high: Sequence[float] | None = None
    """Largest value of each dimension of the action; None means the env's, or 1 without an env."""
    action_integer: bool | None = None
    """Whether continuous actions are rounded, for an env with a Box of integers; None means that it is taken from the
    env."""
    action_start: int | None = None
    """Smallest action of a Discrete space; None means the env's, or 0 without an env."""
    size: Literal["1m", "12m", "25m", "50m", "100m", "200m", "400m"] = "1m"
    """Named widths of all layers, by the approximate number of parameters."""
    deter: int | None = None
    """Size of the deterministic part of a state, a multiple of blocks; None means that of size."""
    hidden: int | None = None
    """Width of the layers of the dynamics, >= 1; None means that of size."""
    classes: int | None = None
    """Classes of each latent variable, >= 2; None means those of size."""
    depth: int | None = None
    """Channels of the layers for images, >= 1; None means those of size."""
    units: int | None = None
    """Width of all other layers, >= 1; None means that of size."""
    groups: int = 32
    """Number of latent variables, >= 1."""
    blocks: int = 8
    """Blocks of the recurrent layer, >= 1."""
    bins: int = 255
    """Bins of predicted rewards and values, odd, >= 3."""

    def __post_init__(self) -> None:
        for name in ("deter", "hidden", "classes", "depth", "units", "groups", "blocks"):
            value, least = getattr(self, name), 2 if name == "classes" else 1
            require(value is None or value >= least, f"model.{name}", f">= {least}", value)
        require(self.bins >= 3 and self.bins % 2 == 1, "model.bins", "odd and >= 3", self.bins)


@dataclass(frozen=True, kw_only=True)
class DreamerV3OptimizerConfig(OptimizerConfig):
    """The class of the optimizer and its further arguments."""

    type: Literal["adam", "adamw", "laprop", "rmsprop", "sgd"] = "laprop"
    """Class in torch.optim, or laprop, see :class:`LaProp`."""
    eps: float = 1e-20
    """Added to the denominator of the step, > 0; not for sgd."""


@dataclass(frozen=True, kw_only=True)
class DreamerV3LearnConfig(ReplayLearnConfig):
    """Options for updates."""

    update_per_collect: int = 1
    """Updates after each collection of n_sample transitions, >= 1; train_ratio replaces it."""
    train_ratio: float | None = None
    """Steps in minibatches for each step of the envs, > 0; n_sample train_ratio must be a multiple of batch_size
    learn_unroll_len. None means update_per_collect."""
    batch_size: int = searched(16, "choice(8, 16, 32)")
    """Sequences of a minibatch on each rank, >= 1."""
    learning_rate: float = searched(4e-5, "log(1e-5, 1e-3)")
    """Step size, > 0."""
    optimizer: DreamerV3OptimizerConfig = field(default_factory=DreamerV3OptimizerConfig)
    """The class of the optimizer."""
    agc: float | None = 0.3
    """Largest norm of the gradient of each tensor in units of the norm of its weights, > 0; None for no limit. Only
    with laprop."""
    warmup: int = 1000
    """Updates in which the step size grows from 0, >= 0; only with laprop."""
    target_theta: float | None = 0.02
    """Step size of the slow critic after every update, in (0, 1]; None copies the critic instead."""
    lambda_: float = 0.95
    """Trade-off of bias and variance in returns, in [0, 1]."""
    free_nats: float = 1.0
    """Divergence of the posterior from the prior that costs nothing, in nats, >= 0."""
    dynamics_weight: float = 1.0
    """Weight of the loss that moves the prior to the posterior, >= 0."""
    representation_weight: float = 0.1
    """Weight of the loss that moves the posterior to the prior, >= 0."""
    replay_value_weight: float = 0.3
    """Weight of the critic's loss on the steps of the minibatch, >= 0."""
    entropy_weight: float = 3e-4
    """Weight of the actor's entropy, >= 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.learning_rate > 0, "learn.learning_rate", "> 0", self.learning_rate)
        require(0 <= self.lambda_ <= 1, "learn.lambda_", "in [0, 1]", self.lambda_)
        for name in ("train_ratio", "agc"):
            value = getattr(self, name)
            require(value is None or value > 0, f"learn.{name}", "> 0 or None", value)
        weights = [name for name in vars(self) if name.endswith("_weight")]
        for name in ("warmup", "free_nats", *weights):
            require(getattr(self, name) >= 0, f"learn.{name}", ">= 0", getattr(self, name))
        if self.optimizer.type != "laprop":
            got = (self.agc, self.warmup)
            require(got == (None, 0), "learn.agc and learn.warmup", "None and 0 without optimizer.type laprop", got)
        has_resets = self.reset_freq is not None or self.reset_at or self.reset_parts
        got_resets = (self.reset_freq, self.reset_at, self.reset_parts)
        require(not has_resets, "learn.reset_freq, reset_at and reset_parts", "unset with dreamerv3", got_resets)
        single = self.train_ratio is None or self.update_per_collect == 1
        require(single, "learn.update_per_collect", "1 with train_ratio", self.update_per_collect)


@dataclass(frozen=True, kw_only=True)
class DreamerV3CollectConfig(ReplayCollectConfig):
    """Options for collecting: the amount and the collector."""

    n_sample: int = 8
    """Transitions of a round on each rank, >= 1."""


@dataclass(frozen=True, kw_only=True)
class DreamerV3OtherConfig:
    """Replay."""

    replay_buffer: ReplayBufferConfig = field(
        default_factory=lambda: ReplayBufferConfig(type="sequence", replay_buffer_size=100_000)
    )
    """The replay buffer, one that draws sequences."""


@dataclass(frozen=True, kw_only=True)
class DreamerV3Config(ReplayConfig):
    """Everything that can be set of DreamerV3."""

    discount_factor: float = searched(0.997, "choice(0.98, 0.99, 0.995, 0.997, 0.999)")
    """gamma, in [0, 1]."""
    learn_unroll_len: int = 64
    """Steps of a sequence, >= 2."""
    horizon: int = 15
    """Steps of an imagined trajectory, >= 1."""
    imagine_last: int | None = None
    """Last rows of each sequence from which trajectories are imagined, in [2, learn_unroll_len + 1]; None means all."""
    model: DreamerV3ModelConfig = field(default_factory=DreamerV3ModelConfig)
    """The world model, the actor and the critic."""
    learn: DreamerV3LearnConfig = field(default_factory=DreamerV3LearnConfig)
    """Options for updates."""
    collect: DreamerV3CollectConfig = field(default_factory=DreamerV3CollectConfig)
    """Options for collecting: the amount and the collector."""
    other: DreamerV3OtherConfig = field(default_factory=DreamerV3OtherConfig)
    """Replay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.nstep in (1, None), "nstep", "1 with dreamerv3", self.nstep)
        require(not self.priority, "priority", "False with dreamerv3", self.priority)
        acts = "0 with dreamerv3, whose first actions are almost uniform"
        require(self.random_collect_size == 0, "random_collect_size", acts, self.random_collect_size)
        require(self.learn_unroll_len >= 2, "learn_unroll_len", ">= 2", self.learn_unroll_len)
        require(self.horizon >= 1, "horizon", ">= 1", self.horizon)
        rows, last = self.learn_unroll_len + 1, self.imagine_last
        require(last is None or 2 <= last <= rows, "imagine_last", f"in [2, {rows}] or None", last)
        if (ratio := self.learn.train_ratio) is not None:
            steps = self.learn.batch_size * self.learn_unroll_len
            updates = ratio * self.collect.n_sample / steps
            allowed = f"a multiple of {steps / self.collect.n_sample:g}, so that a round has whole updates"
            require(updates >= 1 and updates == round(updates), "learn.train_ratio", allowed, ratio)

    def unsearched(self) -> set[str]:
        """Return the options that have one value here."""
        return {"nstep"}
