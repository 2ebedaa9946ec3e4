"""Values that change during a run, as a pure function of the env steps taken and of the budget.

A new shape is a function in ``CURVES`` and a name in ``EpsilonType``, or in ``CurveType`` if epsilon may not have it.
The sections of a config take their types from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

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
        """Check the types and the ranges."""
        if self.type not in TYPES:
            raise ValueError(f"type must be one of {', '.join(map(repr, TYPES))}, got {self.type!r}")
        if self.unit not in UNITS:
            raise ValueError(f"unit must be 'env_step' or 'budget', got {self.unit!r}")
        if not self.decay > 0:
            raise ValueError(f"decay must be > 0, got {self.decay}")
        if (self.type == "piecewise") != bool(self.points):
            raise ValueError(f"points must be set with type='piecewise' and with no other, got {self.points!r}")
        is_table = all(len(point) == 2 for point in self.points) and all(point[0] >= 0 for point in self.points)
        if not is_table or any(after[0] <= before[0] for before, after in pairwise(self.points)):
            raise ValueError(f"points must be pairs (x, value) with increasing x >= 0, got {self.points!r}")

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
                "a schedule with unit='budget' needs to know the budget: set max_env_step on the datamodule "
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
