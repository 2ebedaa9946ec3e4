"""Faults of an env: which exceptions are its own, and the errors that name it, its step and its reset.

They are the same in this process and in env processes.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import traceback
from typing import Any

import gymnasium as gym

from lightning_ding.envs.answers import BrokenEnvError, InvalidAnswerError, name_of

CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError)
"""The errors of cancelled tasks, of which only the second is an ``Exception``."""


def is_of_env(error: BaseException) -> bool:
    """Return whether an exception in a step or reset is a fault of the env, and not the end of this process.

    A ``CancelledError`` is a fault, because only code of the env can have cancelled a task of the env. ``SystemExit``
    and ``KeyboardInterrupt`` are faults too, unless a signal caused them: then the traceback contains a signal handler,
    or Ctrl-C has Python's default handler, which has no traceback.
    """
    if isinstance(error, (Exception, asyncio.CancelledError)):
        return True
    if not isinstance(error, (SystemExit, KeyboardInterrupt)):
        return False
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return False
    handlers = [getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()]
    return all(frame.f_code not in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def named_error(error: BaseException, env: gym.Env[Any, Any], env_id: int, place: str) -> BaseException:
    """Return the error to raise for an exception in a step or reset: one that names the env if the API was violated.

    Args:
        error: The exception.
        env: The env.
        env_id: Index of the env in its vector env.
        place: The step or reset of the env, as returned by :func:`lightning_ding.envs.answers.place_of`.
    """
    who = f"env {env_id}, {name_of(env)},"
    if type(error) is InvalidAnswerError:
        return BrokenEnvError(f"{who} violates gymnasium's API in {place}: {error}")
    if isinstance(error, (SystemExit, KeyboardInterrupt)) and is_of_env(error):
        return BrokenEnvError(f"{who} must not end its process, raised {error!r} in {place}")
    if isinstance(error, CANCELLED):
        return BrokenEnvError(f"{who} must handle the cancellation of its tasks, raised {error!r} in {place}")
    return error
