"""The part of a config's ``learn`` section that every algorithm has: the optimizer, clipping, and schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

from lightning_ding.config import moved, require
from lightning_ding.rl import Schedule


class GradClip(NamedTuple):
    """How the gradient of an update is clipped; by default it is not."""

    norm: float | None = None
    """Largest norm of the whole gradient, > 0."""
    value: float | None = None
    """Largest absolute value of each of its entries, > 0."""


@dataclass(frozen=True)
class ScheduleConfig:
    """A factor that multiplies a value of the config. It starts at 1 and is evaluated once a round."""

    MOVED: ClassVar[dict[str, str]] = moved(
        epoch_num="set type: linear, which ends with the run's budget; epoch_num counted rounds, and left the rest of "
        "a longer run without a learning rate",
        min_lr_lambda="set end, the factor in the long run",
    )

    type: Literal["constant", "linear", "exp", "cosine", "piecewise"] = "constant"
    """constant stays at 1; linear and cosine reach end at decay; exp approaches end with time constant decay;
    piecewise is linear between points."""
    unit: Literal["budget", "env_step"] = "budget"
    """Unit of decay and points: shares of the datamodule's max_env_step, or env steps over all ranks."""
    end: float = 0.0
    """Factor in the long run, >= 0; for linear, cosine and exp."""
    decay: float | None = None
    """Where end is reached, or the time constant of exp, > 0; None means the whole budget and needs that unit."""
    points: Sequence[Sequence[float]] | None = None
    """Pairs of position and factor, positions increasing from >= 0; for piecewise."""

    def check(self, path: str) -> None:
        """Check the combination of options; ``path`` is the section's name in errors.

        Raises:
            ValueError: If an option is out of its range, missing, or has no effect with the type.
        """
        require(self.end >= 0, f"{path}.end", ">= 0", self.end)
        require(self.decay is None or self.decay > 0, f"{path}.decay", "> 0 or None", self.decay)
        is_curve = self.type in ("linear", "exp", "cosine")
        for name, is_used in {"unit": self.type != "constant", "end": is_curve, "decay": is_curve}.items():
            unchanged = getattr(self, name) == getattr(type(self), name)
            require(is_used or unchanged, f"{path}.{name}", f"left alone with type {self.type}", getattr(self, name))
        is_known = not is_curve or self.unit == "budget" or self.decay is not None
        require(is_known, f"{path}.decay", "set with unit env_step", self.decay)
        allowed = "pairs (position, factor) with type piecewise, None with every other"
        require((self.type == "piecewise") == bool(self.points), f"{path}.points", allowed, self.points)
        positive = all(point[1] >= 0 for point in self.points or () if len(point) == 2)
        require(positive, f"{path}.points", "factors >= 0", self.points)
        self.schedule()

    def schedule(self) -> Schedule:
        """Return the factor as a function of the env steps."""
        decay = 1.0 if self.decay is None else self.decay
        return Schedule(self.type, 1.0, self.end, decay, self.unit, self.points or ())


@dataclass(frozen=True)
class OptimizerConfig:
    """The class of the optimizers and what they share; step sizes have fields of their own."""

    type: Literal["adam", "adamw", "rmsprop", "sgd"] = "adam"
    """Class in torch.optim. compile makes updates with adam and adamw only."""
    eps: float = 1e-8
    """Added to the denominator of the step, > 0; not for sgd."""
    weight_decay: float = 0.0
    """Share of the weights, >= 0, that adamw takes away in each step, times the step size; with the others it is added
    to the gradient. Temperatures do not decay."""
    momentum: float = 0.0
    """Share of the step before that is added, in [0, 1); for sgd and rmsprop."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(self.eps > 0, "learn.optimizer.eps", "> 0", self.eps)
        require(self.weight_decay >= 0, "learn.optimizer.weight_decay", ">= 0", self.weight_decay)
        require(0 <= self.momentum < 1, "learn.optimizer.momentum", "in [0, 1)", self.momentum)
        has_eps = self.type != "sgd" or self.eps == type(self).eps
        require(has_eps, "learn.optimizer.eps", "left alone with sgd", self.eps)
        has_momentum = self.type in ("sgd", "rmsprop") or self.momentum == 0
        require(has_momentum, "learn.optimizer.momentum", f"0 with {self.type}", self.momentum)


@dataclass(frozen=True)
class LearnConfig:
    """How updates are made, in every algorithm."""

    MOVED: ClassVar[dict[str, str]] = moved(
        eps="set optimizer.eps",
        weight_decay="set optimizer.weight_decay",
        momentum="set optimizer.momentum",
        optim="set optimizer.type, eps, weight_decay and momentum",
        grad_clip_type="set grad_clip_norm to clip by the norm, or grad_clip_value to clip each entry",
        grad_norm="set grad_clip_norm",
        clip_value="set grad_clip_value",
    )

    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """The class of the optimizers."""
    lr_scheduler: ScheduleConfig = field(default_factory=ScheduleConfig)
    """A factor of all step sizes that changes as the run goes on."""
    grad_clip_norm: float | None = None
    """Largest norm of the gradient that an optimizer steps with, > 0; None for no limit."""
    grad_clip_value: float | None = None
    """Largest absolute value of each entry of the gradient, > 0; None for no limit. Needs grad_clip_norm None."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("grad_clip_norm", "grad_clip_value"):
            clip = getattr(self, name)
            require(clip is None or clip > 0, f"learn.{name}", "> 0 or None", clip)
        one = self.grad_clip_norm is None or self.grad_clip_value is None
        allowed = f"None beside grad_clip_norm ({self.grad_clip_norm}); set that one to None to clip by value"
        require(one, "learn.grad_clip_value", allowed, self.grad_clip_value)
        self.lr_scheduler.check("learn.lr_scheduler")

    @property
    def grad_clip(self) -> GradClip:
        """How gradients are clipped."""
        return GradClip(self.grad_clip_norm, self.grad_clip_value)
