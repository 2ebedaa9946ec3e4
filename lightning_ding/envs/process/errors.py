"""Failures of env processes, and the errors that report them."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gymnasium.error import Error as GymnasiumError

CHECKS = (ValueError, TypeError, KeyError, ImportError, FileNotFoundError, GymnasiumError)
"""Types of errors that a check of an argument raises."""
CHECKING = frozenset({"lightning_ding", "lightning", "gymnasium", "jsonargparse", "importlib"})
"""Packages whose errors of these types are about their arguments."""


OnEnvError = Literal["raise", "restart"]
"""Whether the failure of an env is raised, or its process is replaced."""


class EnvProcessError(RuntimeError):
    """An env failed in its process, or its process died or gave no answer in time.

    Args:
        message: Description of the failures, with the remote traceback if there is one.
        env_ids: Numbers of the envs that failed.
        refusal: First error that a check of an argument raised in a process, if any.
    """

    def __init__(self, message: str, env_ids: Sequence[int] = (), refusal: Exception | None = None) -> None:
        super().__init__(message)
        self.env_ids = tuple(env_ids)
        """Numbers of the envs that failed."""
        self.refusal = refusal
        """The first error that a check of an argument raised in a process, without its traceback."""


@dataclass(frozen=True)
class Failure:
    """A failure of one env process."""

    kind: Literal["raised", "died", "hung"]
    """The process is still alive only after ``"raised"``."""
    env_ids: tuple[int, ...]
    """The env that raised if it is known, otherwise all envs of the process."""
    operation: str
    """The operation that failed, e.g. ``"step()"``."""
    summary: str
    """A one-line description, e.g. ``"ValueError: no such action"``."""
    trace: str = ""
    """The traceback of the exception."""
    refusal: Exception | None = None
    """The exception if a check of an argument raised it."""
    current: int | None = None
    """The env that was stepped or reset when the process of several envs was lost, if it is known."""

    def describe(self, details: Mapping[int, str] | None = None) -> str:
        """Return a description of the failure, with its traceback and the given details of its envs."""
        about = self.env_ids if self.current is None else (self.current,)
        texts = [details[env_id] for env_id in about if env_id in details] if details else []
        detail = f" ({'; '.join(texts)})" if texts else ""
        who = f"env {self.env_ids[0]}" if len(self.env_ids) == 1 else f"envs {list(self.env_ids)}"
        trace = f"\n{self.trace.rstrip()}" if self.trace else ""
        return f"{who} failed in {self.operation}: {self.summary}{detail}{trace}"

    def fault_of(self, env_id: int) -> str:
        """Return ``info["fault"]`` for an env of the failed process."""
        if env_id in self.env_ids:
            return self.summary if self.kind == "raised" else f"{self.summary} in {self.operation}"
        return f"env {self.env_ids[0]} in the same process: {self.summary}"


def is_check_error(error: BaseException, kinds: tuple[type[Exception], ...] = CHECKS) -> bool:
    """Return whether a check of an argument raised an error, without the user's code in its traceback.

    Args:
        error: Exception with its traceback.
        kinds: Types of exceptions that checks raise.
    """
    if not isinstance(error, kinds):
        return False
    modules = _modules(error)
    if modules[-1:] == ["gymnasium.envs.registration"] and error.__cause__ is not None:  # wraps any TypeError
        modules += _modules(error.__cause__)
    packages = [module.partition(".")[0] for module in modules]
    of_user = set(packages) - CHECKING - {"torch"} - sys.stdlib_module_names
    return bool(packages) and packages[-1] in CHECKING and not of_user


def _modules(error: BaseException) -> list[str]:
    """Return the modules of the frames in a traceback; the last one raised the error."""
    return [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]


def describe_exit(exit_code: int | None) -> str:
    """Return a description of how a process ended."""
    if exit_code is None:
        return "its process went silent"
    if exit_code >= 0:
        return f"its process ended with exit code {exit_code}"
    try:
        return f"its process was ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"its process was ended by signal {-exit_code}"
