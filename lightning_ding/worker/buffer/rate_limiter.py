"""A limit on the ratio of pushed to sampled transitions: the faster side waits, and nothing is dropped."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from lightning_ding.config import require

logger = logging.getLogger(__name__)
NOTHING = 1e-3  # a smaller count of samples is taken as zero
SLACK = 1.01  # counts decay between a push and a sample, so a bound that is just reached must not count as crossed


@dataclass(frozen=True)
class PushSampleRateConfig:
    """Bounds of the ratio of pushed to sampled transitions."""

    max: float | None = None
    """Upper bound, > 0: a push that would exceed it waits; None or inf for no bound."""
    min: float = 0.0
    """Lower bound, >= 0: a sample that would fall below it waits."""

    def __post_init__(self) -> None:
        if self.max == math.inf:
            object.__setattr__(self, "max", None)


@dataclass(frozen=True)
class ThroughputConfig:
    """Limits of the rates at which a buffer is filled and sampled."""

    push_sample_rate_limit: PushSampleRateConfig = field(default_factory=PushSampleRateConfig)
    """Bounds of pushed / sampled over the window; the faster side waits for the other."""
    window_seconds: float = 30.0
    """Seconds after which a push or a sample counts only 1 % in the ratio, > 0."""
    sample_min_limit_ratio: float = 1.0
    """Multiple of the batch size that the buffer must hold before sampling, >= 1."""
    timeout_seconds: float = 60.0
    """Longest wait in seconds, > 0; after it an error names the reason."""

    def __post_init__(self) -> None:
        limit, path = self.push_sample_rate_limit, "thruput_controller.push_sample_rate_limit"
        require(limit.max is None or limit.max > 0, f"{path}.max", "> 0 or None", limit.max)
        require(limit.min >= 0, f"{path}.min", ">= 0", limit.min)
        above = limit.max is None or limit.max > limit.min
        require(
            above,
            f"{path}.max",
            f"above min ({limit.min}), so that pushing and sampling do not wait for each other",
            limit.max,
        )
        require(self.window_seconds > 0, "thruput_controller.window_seconds", "> 0", self.window_seconds)
        ratio = self.sample_min_limit_ratio
        require(ratio >= 1, "thruput_controller.sample_min_limit_ratio", ">= 1", ratio)
        require(self.timeout_seconds > 0, "thruput_controller.timeout_seconds", "> 0", self.timeout_seconds)

    @property
    def is_active(self) -> bool:
        """Whether there is a limit."""
        limit = self.push_sample_rate_limit
        return limit.max is not None or limit.min > 0 or self.sample_min_limit_ratio > 1


class RateLimiter:
    """Makes pushes and samples wait for each other.

    Both are counted with weights that decay to 1 % within the window. A push waits while (pushed + n) / sampled would
    be above ``max``, unless nothing was sampled recently. A sample waits while pushed / (sampled + n) would be below
    ``min``, or while the buffer holds less than ``sample_min_limit_ratio`` minibatches.

    Args:
        config: The bounds, the window and the longest wait.
        condition: Condition of the buffer's lock. Callers hold it, and notify it after every push and sample.
    """

    def __init__(self, config: ThroughputConfig, condition: threading.Condition) -> None:
        self.config = config
        self._condition = condition
        self.pushed = 0.0
        self.sampled = 0.0
        """Weighted counts, to which the buffer adds its pushes and samples."""
        self._since = time.monotonic()
        self.waited_seconds = 0.0
        """Total time that pushes and samples have waited."""

    def wait_to_push(self, amount: int) -> None:
        """Wait until ``amount`` transitions may be pushed.

        Raises:
            TimeoutError: After ``timeout_seconds``; the message names the reason of the wait.
        """
        highest = self.config.push_sample_rate_limit.max

        def reason() -> str | None:
            if highest is None or self.sampled < NOTHING:
                return None
            ratio = (self.pushed + amount) / self.sampled
            bound = f"thruput_controller.push_sample_rate_limit.max = {highest}"
            return f"pushed / sampled would be {ratio:.3g}, above {bound}" if ratio > highest * SLACK else None

        self._wait(f"a push of {amount}", reason)

    def wait_to_sample(self, amount: int, batch_size: int, count: Callable[[], int]) -> None:
        """Wait until ``amount`` transitions may be sampled.

        Args:
            amount: Number of transitions of all minibatches together.
            batch_size: Number of transitions of one minibatch.
            count: Function that returns the number of transitions in the buffer.

        Raises:
            TimeoutError: After ``timeout_seconds``; the message names the reason of the wait.
        """
        lowest, ratio = self.config.push_sample_rate_limit.min, self.config.sample_min_limit_ratio

        def reason() -> str | None:
            if count() < ratio * batch_size:
                name = "thruput_controller.sample_min_limit_ratio"
                return f"the buffer holds {count()} transitions, fewer than {name} = {ratio} times {batch_size}"
            reached = self.pushed / (self.sampled + amount)
            bound = f"thruput_controller.push_sample_rate_limit.min = {lowest}"
            return f"pushed / sampled would be {reached:.3g}, below {bound}" if reached * SLACK < lowest else None

        self._wait(f"a sample of {amount}", reason)

    def _wait(self, what: str, reason: Callable[[], str | None]) -> None:
        self._decay()
        why = reason()
        if why is None:
            return
        logger.warning("%s waits: %s", what, why)
        started = time.monotonic()
        deadline = started + self.config.timeout_seconds
        while why is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                self.waited_seconds += time.monotonic() - started
                raise TimeoutError(f"{what} waited for {self.config.timeout_seconds} s: {why}")
            self._condition.wait(min(left, 0.1))  # the counts decay with time, so check again now and then
            self._decay()
            why = reason()
        self.waited_seconds += time.monotonic() - started

    def _decay(self) -> None:
        now = time.monotonic()
        factor = 0.01 ** ((now - self._since) / self.config.window_seconds)
        self.pushed *= factor
        self.sampled *= factor
        self._since = now
