"""Lines for people about a distributed run: its progress every ten seconds, and its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

REPORT = 10.0
"""Seconds between two lines."""


class ProgressLine:
    """Describes the progress of a run in one line.

    Args:
        clock: Function that returns the time in seconds.

    Example:
        >>> times = iter([0.0, 10.0])
        >>> line = ProgressLine(lambda: next(times))
        >>> counts = {"env_step": 0, "train_iter": 0, "episode": 0, "collectors": 2, "learners": 1, "restarts": 0}
        >>> line.of({**counts, "return_mean": None})
        'env step 0, update 0, 0 episodes, return -, 2 collectors, 1 learner, 0 restarts'
        >>> line.of({**counts, "env_step": 12800, "train_iter": 640, "episode": 70, "return_mean": 182.25})
        'env step 12,800 (1,280/s), update 640, 70 episodes, return 182.2, 2 collectors, 1 learner, 0 restarts'
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._before: tuple[float, int] | None = None

    def of(self, status: Mapping[str, Any]) -> str:
        """Return the line for the answer to the message ``status``.

        The rate is that since the last line, and the return the mean of the newest 100 episodes at most.
        """
        now, env_step = self._clock(), int(status["env_step"])
        rate = ""
        if self._before is not None and now > self._before[0]:
            rate = f" ({(env_step - self._before[1]) / (now - self._before[0]):,.0f}/s)"
        self._before = now, env_step
        returned = status["return_mean"]
        parts = [f"env step {env_step:,}{rate}", f"update {status['train_iter']:,}", f"{status['episode']:,} episodes"]
        parts += ["return -" if returned is None else f"return {returned:.1f}"]
        parts += [_counted(status[f"{role}s"], role) for role in ("collector", "learner")]
        return ", ".join([*parts, _counted(status["restarts"], "restart")])


def last_line(result: Mapping[str, Any], folder: str) -> str:
    """Return the line that tells people how a run ended.

    Args:
        result: Content of ``result.json``.
        folder: Folder of the run.

    Example:
        >>> result = {"env_step": 20800, "train_iter": 1000, "seconds": 23.9, "results": {"test/return_mean": 500.0}}
        >>> last_line({**result, "counters": {"restarts": 1}}, "runs/ppo")
        'finished: return 500.0, 20,800 env steps, 1,000 updates, 24 s, 1 restart; result in runs/ppo/result.json'
    """
    returned = result["results"].get("test/return_mean")
    parts = [] if returned is None else [f"return {returned:.1f}"]
    parts += [f"{result['env_step']:,} env steps", f"{result['train_iter']:,} updates", f"{result['seconds']:,.0f} s"]
    parts += [_counted(result["counters"]["restarts"], "restart")]
    return f"finished: {', '.join(parts)}; result in {folder}/result.json"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
