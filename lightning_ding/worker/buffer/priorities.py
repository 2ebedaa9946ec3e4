"""Numbers of prioritised replay (Schaul et al. 2016, section 3): the exponent of the importance weights, priorities."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from torch import Tensor

from lightning_ding.config import require
from lightning_ding.utils.schedules import Schedule
from lightning_ding.worker.buffer.sum_tree import Floats

LARGEST = float(np.finfo(np.float32).max)
Unit = Literal["train_iter", "env_step", "budget"]


class Beta:
    """The exponent beta, which grows in a straight line from its start to 1.

    Args:
        start: Value at the beginning, in [0, 1].
        steps: Time at which it reaches 1, in ``unit``, >= 0; 0 keeps it constant.
        unit: Unit of the time: updates, env steps, or shares of the budget of env steps.

    Example:
        >>> beta = Beta(0.5, 100, "train_iter")
        >>> beta.at(50, env_step=0, budget=None)
        0.75
        >>> beta.set(0.5, 50, env_step=0, budget=None)
        >>> beta.at(50, 0, None), beta.at(100, 0, None), beta.at(1000, 0, None)
        (0.5, 0.75, 1.0)
    """

    def __init__(self, start: float, steps: float, unit: Unit) -> None:
        self._start, self._steps, self._unit = start, steps, unit
        in_budget: Literal["env_step", "budget"] = "budget" if unit == "budget" else "env_step"
        self._schedule = Schedule("linear", start, 1.0, steps, in_budget) if steps else None
        self.given: tuple[float, float] | None = None
        """Value that :meth:`set` got, and the time of that; None if it was not called."""

    def at(self, train_iter: int, env_step: int, budget: int | None) -> float:
        """Return beta.

        Args:
            train_iter: Updates so far.
            env_step: Env steps so far.
            budget: Env steps of the whole run; None if they are not known.

        Raises:
            ValueError: If the unit is ``"budget"`` and there is none.
        """
        done = train_iter if self._unit == "train_iter" else max(env_step, 0)
        scheduled = self._start if self._schedule is None else self._schedule.value(done, budget)
        if self.given is None:
            return scheduled
        value, since = self.given
        if self._schedule is None:
            return value
        passed = self._time(train_iter, env_step, budget) - since
        return min(1.0, value + (1.0 - self._start) * passed / self._steps)

    def set(self, value: float, train_iter: int, env_step: int, budget: int | None) -> None:
        """Set beta, which from now on grows as fast as before; other arguments as of :meth:`at`.

        Raises:
            ValueError: If ``value`` is not in [0, 1].
        """
        require(isinstance(value, (int, float)) and 0 <= value <= 1, "beta", "in [0, 1]", value)
        self.given = (float(value), self._time(train_iter, env_step, budget))

    def _time(self, train_iter: int, env_step: int, budget: int | None) -> float:
        if self._unit == "train_iter":
            return float(train_iter)
        return max(env_step, 0) / (budget or 1 if self._unit == "budget" else 1)


def checked_priorities(priority: Any) -> Floats:
    """Return priorities as a flat array.

    Raises:
        ValueError: If a priority is negative, or not finite as a float32.
    """
    array = priority.numpy(force=True) if isinstance(priority, Tensor) else np.asarray(priority)
    flat: Floats = array.reshape(-1).astype(np.float64)
    if len(flat) and not 0 <= flat.min() <= flat.max() < LARGEST:  # false for NaN
        wrong = flat[~((flat >= 0) & (flat < LARGEST))][0]
        raise ValueError(f"priority must be finite and >= 0, got {wrong}")
    return flat
