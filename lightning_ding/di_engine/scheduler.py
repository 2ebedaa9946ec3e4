"""DI-engine's ``Scheduler`` of ``ding.utils``: a value that changes when a metric stops improving."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from easydict import EasyDict

from lightning_ding.config import require

DEFAULTS: dict[str, Any] = {
    "schedule_flag": False,
    "schedule_mode": "reduce",
    "factor": 0.05,
    "change_range": [-1, 1],
    "threshold": 1e-4,
    "optimize_mode": "min",
    "patience": 10,
    "cooldown": 0,
}
CHANGES: dict[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "div": operator.truediv,
    "multi": operator.mul,
    "reduce": operator.sub,
}


class Scheduler:
    """Changes a value after a number of metrics that are no better than the one before.

    Args:
        merged_scheduler_config: Mapping of these entries: ``schedule_mode``, which is ``"reduce"`` or ``"add"`` for a
            difference of ``factor``, and ``"multi"`` or ``"div"`` for a factor; ``change_range``, the bounds of the
            value; ``threshold``, the least improvement of a metric; ``optimize_mode``, ``"min"`` or ``"max"``;
            ``patience``, the number of metrics without an improvement after which the value changes with the next one;
            ``cooldown``, the number of metrics that do not count at the start and after a change.

    Example:
        >>> scheduler = Scheduler({"schedule_mode": "reduce", "factor": 0.25, "patience": 1})
        >>> [scheduler.step(metric, 1.0) for metric in (3.0, 2.0, 2.0, 2.0)]
        [1.0, 1.0, 1.0, 0.75]
    """

    config: ClassVar[dict[str, Any]] = DEFAULTS

    @classmethod
    def default_config(cls) -> EasyDict:
        """Return the defaults as a new ``EasyDict``."""
        return EasyDict(cls.config)

    def __init__(self, merged_scheduler_config: Mapping[str, Any]) -> None:
        cfg = {**DEFAULTS, **merged_scheduler_config}
        for name, allowed in (("schedule_mode", tuple(CHANGES)), ("optimize_mode", ("min", "max"))):
            require(cfg[name] in allowed, name, f"one of {allowed}", cfg[name])
        for name in ("patience", "cooldown"):
            require(cfg[name] >= 0, name, ">= 0", cfg[name])
        require(cfg["factor"] > 0, "factor", "> 0", cfg["factor"])
        self._change, self._factor = CHANGES[cfg["schedule_mode"]], cfg["factor"]
        self._bounds = tuple(cfg["change_range"])
        self._threshold, self._sign = cfg["threshold"], 1 if cfg["optimize_mode"] == "max" else -1
        self._patience, self._cooldown = cfg["patience"], cfg["cooldown"]
        self.last_metrics: float | None = None
        """The newest metric; None before the first one."""
        self.bad_epochs_num = 0
        """Metrics in a row that count and were no better than the one before."""
        self._waits = self._cooldown

    def step(self, metrics: float, param: float) -> float:
        """Take the newest metric, and return the value, changed if it is time.

        Args:
            metrics: The metric.
            param: The present value.

        Raises:
            ValueError: If the metric is not finite.
        """
        require(math.isfinite(metrics), "metrics", "finite", metrics)
        last, self.last_metrics = self.last_metrics, metrics
        is_better = last is None or self._sign * (metrics - last) > self._threshold
        is_ignored = self._waits > 0
        self.bad_epochs_num = 0 if is_better or is_ignored else self.bad_epochs_num + 1
        self._waits -= is_ignored
        if self.bad_epochs_num <= self._patience:
            return param
        self._waits, self.bad_epochs_num = self._cooldown, 0
        value = self._change(param, self._factor)
        return float(min(max(value, self._bounds[0]), self._bounds[1]))
