"""What goes wrong in the process of an env, and how it is told."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


class EnvProcessError(RuntimeError):
    """An env failed in its process, or its process died or gave no answer in time.

    Args:
        message: What happened to which env, with the remote traceback if there is one.
        env_ids: The envs that failed.
        summaries: One line for each failure, e.g. ``"ValueError: no such action"``.
    """

    def __init__(self, message: str, env_ids: Sequence[int] = (), summaries: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.env_ids = tuple(env_ids)
        """The envs that failed."""
        self.summaries = tuple(summaries)
        """One line for each failure, if they are known."""


@dataclass(frozen=True)
class Failure:
    """What went wrong in one process."""

    kind: Literal["raised", "died", "hung"]
    """Only behind ``"raised"`` is the process still there."""
    env_ids: tuple[int, ...]
    """The env that raised, if that is known; otherwise all that were in the process."""
    doing: str
    """What the process was doing, e.g. ``"step()"``."""
    summary: str
    """One line, e.g. ``"ValueError: no such action"``."""
    trace: str = ""
    """The traceback of what was raised."""

    def tell(self, detail: str = "") -> str:
        """Return the whole story, one line and the traceback."""
        who = f"env {self.env_ids[0]}" if len(self.env_ids) == 1 else f"envs {list(self.env_ids)}"
        trace = f"\n{self.trace.rstrip()}" if self.trace else ""
        return f"{who} failed in {self.doing}: {self.summary}{detail}{trace}"

    def fault_of(self, env_id: int) -> str:
        """Return the line that an env of that process has for ``info["fault"]``."""
        if env_id in self.env_ids:
            return self.summary if self.kind == "raised" else f"{self.summary} in {self.doing}"
        return f"env {self.env_ids[0]} in the same process: {self.summary}"


def end_of(exit_code: int | None) -> str:
    """Return how a process ended, in words."""
    if exit_code is None:
        return "its process went silent"
    if exit_code >= 0:
        return f"its process ended with exit code {exit_code}"
    try:
        return f"its process was ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"its process was ended by signal {-exit_code}"
