"""A value that changes as a run goes on: a pure function of the env steps taken and of the budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

ScheduleType = Literal["constant", "linear", "exp", "cosine", "piecewise"]
ScheduleUnit = Literal["env_step", "budget"]
TYPES: tuple[ScheduleType, ...] = ("constant", "linear", "exp", "cosine", "piecewise")
UNITS: tuple[ScheduleUnit, ...] = ("env_step", "budget")


@dataclass(frozen=True)
class Schedule:
    """A value that moves from ``start`` to ``end`` as the run goes on.

    The value depends on nothing but the arguments of :meth:`value`, so a resumed run needs no state of it and all
    ranks agree.

    Args:
        type: ``"constant"`` stays at ``start``; ``"linear"`` reaches ``end`` at ``decay`` in a straight line;
            ``"cosine"`` reaches it in half a period of a cosine (Loshchilov and Hutter 2017, eq. 5,
            https://arxiv.org/abs/1608.03983); ``"exp"`` is end + (start - end) e^(-x / decay); ``"piecewise"``
            interpolates linearly between ``points``. All keep their last value afterwards.
        start: Value at 0.
        end: Value in the long run.
        decay: Scale of the x axis in ``unit``, > 0.
        unit: ``"env_step"`` counts env steps over all ranks; ``"budget"`` counts shares of the run's budget, so that 1
            is its end.
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
        if self.type == "exp":
            return self.end + (self.start - self.end) * math.exp(-x / self.decay)
        share = min(x / self.decay, 1.0)
        if self.type == "cosine":
            share = (1 - math.cos(math.pi * share)) / 2
        return self.start + (self.end - self.start) * share

    def is_over(self, step: float, budget: int | None = None) -> bool:
        """Return whether the value has reached its end before ``step`` and does not change any more."""
        if self.type in ("constant", "exp"):
            return False
        last = self.points[-1][0] if self.type == "piecewise" else self.decay
        return self._position(step, budget) > last

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
