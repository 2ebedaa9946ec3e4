"""Values that change during a run: epsilon, learning rates and weights of the loss.

:class:`Schedule` is such a value as a pure function of the env steps taken and of the budget. A new shape is a function
in ``CURVES`` and a name in ``EpsilonType``, or in ``CurveType`` if epsilon may not have it. :class:`EpsConfig` and
:class:`ScheduleConfig` are the sections of a config; :class:`ScheduledValues` applies the latter during a run.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torch.optim import Optimizer

from lightning_ding.config import moved, require

logger = logging.getLogger(__name__)

EpsilonType = Literal["linear", "exp"]
CurveType = Literal[EpsilonType, "cosine"]
ScheduleType = Literal["constant", CurveType, "piecewise"]
ScheduleUnit = Literal["env_step", "budget"]
TYPES: tuple[ScheduleType, ...] = get_args(ScheduleType)
UNITS: tuple[ScheduleUnit, ...] = get_args(ScheduleUnit)


def _linear(start: float, end: float, x: float) -> float:
    return start + (end - start) * min(x, 1.0)


def _exp(start: float, end: float, x: float) -> float:
    return end + (start - end) * math.exp(-x)


def _cosine(start: float, end: float, x: float) -> float:
    return _linear(start, end, (1 - math.cos(math.pi * min(x, 1.0))) / 2)


class Curve(NamedTuple):
    """A shape of the way from ``start`` to ``end``."""

    value: Callable[[float, float, float], float]
    """The value, given ``start``, ``end`` and the position in units of ``decay``, >= 0."""
    ends: bool = True
    """Whether ``end`` is reached, at position 1, and not only approached."""


CURVES: dict[CurveType, Curve] = {"linear": Curve(_linear), "exp": Curve(_exp, ends=False), "cosine": Curve(_cosine)}


@dataclass(frozen=True)
class Schedule:
    """A value that moves from ``start`` to ``end`` during a run.

    The value depends only on the arguments of :meth:`value`. A schedule therefore has no state to save, and all ranks
    compute the same value.

    Args:
        type: ``"constant"`` stays at ``start``; ``"linear"`` reaches ``end`` at ``decay`` in a straight line;
            ``"cosine"`` reaches it in half a period of a cosine (Loshchilov and Hutter 2017, eq. 5,
            https://arxiv.org/abs/1608.03983); ``"exp"`` is end + (start - end) e^(-x / decay); ``"piecewise"``
            interpolates linearly between ``points``. The value stays constant after ``decay``, except of
            ``"exp"``, and after the last point.
        start: Value at 0.
        end: Value at ``decay``; with ``"exp"``, the limit.
        decay: Length of the schedule (of ``"exp"``, the time constant) in ``unit``, > 0.
        unit: ``"env_step"`` measures in env steps over all ranks, ``"budget"`` in fractions of the run's budget, so 1
            is the end of the run.
        points: Pairs (x, value) with increasing x >= 0, in ``unit``; for ``"piecewise"`` only, which ignores ``start``,
            ``end`` and ``decay``.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> schedule = Schedule("linear", 1.0, 0.5, 100)
        >>> [schedule.value(step) for step in (0, 50, 100, 1000)]
        [1.0, 0.75, 0.5, 0.5]
        >>> Schedule("linear", 1.0, 0.0, 1.0, "budget").value(250, budget=1000)
        0.75
    """

    type: ScheduleType
    start: float
    end: float
    decay: float = 1.0
    unit: ScheduleUnit = "env_step"
    points: Sequence[Sequence[float]] = ()

    def __post_init__(self) -> None:
        require(self.type in TYPES, "type", f"one of {', '.join(map(repr, TYPES))}", self.type)
        require(self.unit in UNITS, "unit", "'env_step' or 'budget'", self.unit)
        require(self.decay > 0, "decay", "> 0", self.decay)
        has_points = (self.type == "piecewise") == bool(self.points)
        require(has_points, "points", "set with type='piecewise' and with no other", self.points)
        if self.points:
            is_table = all(len(point) == 2 and point[0] >= 0 for point in self.points)
            rises = is_table and all(after[0] > before[0] for before, after in pairwise(self.points))
            require(rises, "points", "pairs (x, value) with increasing x >= 0", self.points)

    def value(self, step: float, budget: int | None = None) -> float:
        """Return the value after ``step`` env steps.

        Args:
            step: Env steps over all ranks, >= 0.
            budget: Env steps of the whole run, > 0; needed with the unit ``"budget"``.

        Raises:
            ValueError: If the budget is needed and None.
        """
        if self.type == "constant":
            return self.start
        x = self._position(step, budget)
        if self.type == "piecewise":
            return self._interpolate(x)
        return CURVES[self.type].value(self.start, self.end, x / self.decay)

    def is_over(self, step: float, budget: int | None = None) -> bool:
        """Return whether the value has reached its end before ``step`` and stays constant."""
        if self.type == "constant":
            return False
        if self.type == "piecewise":
            return self._position(step, budget) > self.points[-1][0]
        return CURVES[self.type].ends and self._position(step, budget) > self.decay

    def _position(self, step: float, budget: int | None) -> float:
        if self.unit == "env_step":
            return step
        if budget is None:
            raise ValueError(
                "a schedule with unit='budget' needs a budget: set max_env_step on the datamodule "
                "(without a Trainer: policy.progress.budget), or use unit='env_step'"
            )
        return step / budget

    def _interpolate(self, x: float) -> float:
        (before, value), *rest = self.points
        if x <= before:
            return value
        for after, target in rest:
            if x <= after:
                return value + (target - value) * (x - before) / (after - before)
            before, value = after, target
        return value


@dataclass(frozen=True)
class ScheduleConfig:
    """A factor that multiplies a value of the config. It starts at 1 and is evaluated once a round."""

    MOVED: ClassVar[dict[str, str]] = moved(
        epoch_num="set type: linear, which ends with the run's budget; epoch_num counted rollouts, so with unit: "
        "env_step, decay is epoch_num times the env steps of a rollout",
        min_lr_lambda="set end, the factor in the long run",
    )

    type: ScheduleType = "constant"
    """Shape of the schedule, as in lightning_ding.utils.schedules.Schedule; constant stays at 1."""
    unit: Literal["budget", "env_step"] = "budget"
    """Unit of decay and points: shares of the datamodule's max_env_step, or env steps over all ranks."""
    end: float = 0.0
    """Factor in the long run, >= 0; needs a type other than constant and piecewise."""
    decay: float | None = None
    """Position at which end is reached, or the time constant of exp, > 0; None means the whole budget and needs that
    unit."""
    points: Sequence[Sequence[float]] | None = None
    """Pairs of position and factor, positions increasing from >= 0; for piecewise."""

    def check(self, path: str) -> None:
        """Check the combination of options; ``path`` is the section's name in errors.

        Raises:
            ValueError: If an option is out of its range, missing, or has no effect with the type.
        """
        require(self.end >= 0, f"{path}.end", ">= 0", self.end)
        require(self.decay is None or self.decay > 0, f"{path}.decay", "> 0 or None", self.decay)
        is_curve = self.type in CURVES
        for name, is_used in {"unit": self.type != "constant", "end": is_curve, "decay": is_curve}.items():
            unchanged = getattr(self, name) == getattr(type(self), name)
            require(
                is_used or unchanged,
                f"{path}.{name}",
                f"left at its default with type {self.type}",
                getattr(self, name),
            )
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


EPS_SHARE = 0.1  # share of the budget after which a linear epsilon reaches its end
ASSUMED_BUDGET = 100_000  # env steps, for a run whose length is not known


@dataclass(frozen=True)
class EpsConfig:
    """The epsilon schedule."""

    type: EpsilonType = "linear"
    """Shape of the schedule, as in lightning_ding.utils.schedules.Schedule; needs an end that is not start."""
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
        require(0 <= self.start <= 1, "other.eps.start", "in [0, 1]", self.start)
        require(0 <= self.end <= 1, "other.eps.end", "in [0, 1]", self.end)
        require(self.decay is None or self.decay > 0, "other.eps.decay", "> 0 or None", self.decay)
        has_unit = self.decay is not None or self.unit == "env_step"
        require(has_unit, "other.eps.unit", "left at its default without other.eps.decay", self.unit)
        allowed = f"left at its default where start and end are equal ({self.start})"
        for name in ("type", "decay"):
            is_used = self.start != self.end or getattr(self, name) == getattr(type(self), name)
            require(is_used, f"other.eps.{name}", allowed, getattr(self, name))

    def value(self, env_step: int, budget: int | None) -> float:
        """Return epsilon after ``env_step`` env steps of a run of ``budget`` env steps; None if that is not known."""
        return self._schedule.value(env_step, budget or ASSUMED_BUDGET)

    @functools.cached_property
    def _schedule(self) -> Schedule:
        if self.decay is None:
            return Schedule(self.type, self.start, self.end, EPS_SHARE, "budget")
        return Schedule(self.type, self.start, self.end, self.decay, self.unit)


LEARNING_RATE = "lr"  # all other names of sections begin with the field of ``learn`` that they schedule


class ScheduledValues:
    """The scheduled learning rates and weights of the loss, from the ``*_scheduler`` sections of ``learn``.

    A learning rate is ``initial_lr`` of the optimizer's group times the factor. A weight of the loss is passed as a
    tensor with the minibatch, so that code is not compiled again when it changes.

    A default schedule in shares of the budget keeps its factor at 1 in a run without a budget.

    Args:
        learn: The config's ``learn`` section.
    """

    def __init__(self, learn: Any) -> None:
        self._factors: dict[str, Schedule] = {
            name.removesuffix("_scheduler"): section.schedule()
            for name, section in vars(learn).items()
            if isinstance(section, ScheduleConfig) and section.type != "constant"
        }
        defaults: dict[str, Any] = {field.name: field.default_factory for field in dataclasses.fields(learn)}
        self._by_default = {
            name
            for name, one in self._factors.items()
            if one.unit == "budget" and defaults[f"{name}_scheduler"]().schedule() == one
        }
        self._base = {name: float(getattr(learn, name)) for name in self._factors if name != LEARNING_RATE}
        self._ended: set[str] = set()
        self.env_step = 0
        """Env steps that the values were computed for."""
        self.values: dict[str, float] = {}
        """Weights in the loss as they are now, by the name of their field in ``learn``."""
        self.tensors: dict[str, Tensor] = {}
        """The same as scalar tensors, for the loss."""

    def __bool__(self) -> bool:
        """Return whether anything is scheduled."""
        return bool(self._factors)

    @property
    def evaluated_at(self) -> dict[str, int]:
        """The ``env_step`` that the values were computed for, if anything is scheduled."""
        return {"env_step": self.env_step} if self._factors else {}

    @property
    def sets_learning_rate(self) -> bool:
        """Whether the learning rates are scheduled."""
        return LEARNING_RATE in self._factors

    def give_way(self) -> None:
        """Leave the learning rates to the user's schedulers, if their schedule in the config is the default."""
        if LEARNING_RATE in self._by_default:
            del self._factors[LEARNING_RATE]
            self._by_default.remove(LEARNING_RATE)

    def apply(
        self, env_step: int, budget: int | None, optimizers: Iterable[Optimizer], device: torch.device | str = "cpu"
    ) -> None:
        """Set all values to those after ``env_step`` env steps.

        Args:
            env_step: Env steps over all ranks before the round, >= 0.
            budget: Env steps of the whole run; needed by schedules in that unit.
            optimizers: Optimizers whose learning rates are set.
            device: Device on which the loss is computed.

        Raises:
            ValueError: If the budget is needed and None.
        """
        self.env_step = env_step
        in_use = {n: one for n, one in self._factors.items() if budget is not None or n not in self._by_default}
        factors = dict.fromkeys(self._factors, 1.0) | {n: one.value(env_step, budget) for n, one in in_use.items()}
        if LEARNING_RATE in factors:
            for group in (group for optimizer in optimizers for group in optimizer.param_groups):
                group["lr"] = group.setdefault("initial_lr", group["lr"]) * factors[LEARNING_RATE]
        values = {name: base * factors[name] for name, base in self._base.items()}
        if values != self.values or not self.tensors:
            self.values = values
            self.tensors = {name: torch.tensor(value, device=device) for name, value in values.items()}
        for name, one in in_use.items():
            if name not in self._ended and one.is_over(env_step, budget):
                self._ended.add(name)
                if factors[name] != 1.0:  # at 1 a warm-up ends, and the configured value holds
                    _warn_of_end(name, factors[name])


@rank_zero_only
def _warn_of_end(name: str, factor: float) -> None:
    text = "the schedule learn.%s_scheduler has ended; the run continues with its last factor, %g"
    logger.warning(text, name, factor)
