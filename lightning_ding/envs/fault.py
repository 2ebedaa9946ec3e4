"""What goes wrong in envs: a barrier between one that fails now and then and a run, and errors that say more."""

from __future__ import annotations

import copy
import sys
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from lightning_ding.config import require

Info = dict[str, Any]

LARGEST = float(np.finfo(np.float32).max)


class FaultBarrier(gym.Wrapper[Any, Any, Any, Any]):
    """Turns what goes wrong in an env into the end of an episode.

    A fault is an exception, or an observation or a reward that is not finite or too large for float32. A step with a
    fault returns the last good observation, reward 0, ``truncated`` and ``{"abnormal": True, "fault":
    "<ExceptionType>: <message>"}``; a reset with a fault is tried again. What ends a process, such as
    KeyboardInterrupt, is no fault.

    Args:
        env: Any env.
        max_faults: Faults in a row, without a good step between them, that are borne; >= 1. The next one is raised.

    Raises:
        ValueError: If ``max_faults`` is out of range.

    Example:
        >>> env = FaultBarrier(gym.make("CartPole-v1"))
        >>> _ = env.reset(seed=0)
        >>> _, reward, terminated, truncated, info = env.step("left")
        >>> reward, terminated, truncated, info["fault"].split(":")[0]
        (0.0, False, True, 'AssertionError')
    """

    def __init__(self, env: gym.Env[Any, Any], max_faults: int = 10) -> None:
        super().__init__(env)
        require(max_faults >= 1, "max_faults", ">= 1", max_faults)
        self.max_faults = max_faults
        self._faults = 0
        self._obs: Any = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start a new episode, if need be at the second or a later attempt.

        Raises:
            RuntimeError: After more than ``max_faults`` faults in a row; the last one is its cause.
        """
        while True:
            try:
                obs, info = self.env.reset(seed=seed, options=options)
                _check("observation", obs)
            except Exception as error:
                self._bear(error)
                seed = None if seed is None else seed + 1  # the same seed would do the same again
            else:
                self._obs = copy.deepcopy(obs)
                return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        """Step the env.

        Raises:
            RuntimeError: After more than ``max_faults`` faults in a row; the last one is its cause.
        """
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
            _check("observation", obs)
            _check("reward", reward)
        except Exception as error:
            if self._obs is None:  # never reset
                raise
            self._bear(error)
            fault = f"{type(error).__name__}: {error}"
            return self._obs, 0.0, False, True, {"abnormal": True, "fault": fault}
        self._faults = 0
        self._obs = copy.deepcopy(obs)  # the env may write the next one, a bad one, into the same memory
        return obs, reward, terminated, truncated, info

    def _bear(self, error: Exception) -> None:
        self._faults += 1
        if self._faults > self.max_faults:
            raise RuntimeError(
                f"{self.env} failed {self._faults} times without a good step between, the last time with "
                f"{type(error).__name__}: {error}"
            ) from error


def explain_failure(error: Exception, env: VectorEnv, when: str) -> None:
    """Add to an error of a vector env when it came; its type and message stay as they are.

    Args:
        error: What the vector env raised.
        env: The vector env.
        when: What it was doing, e.g. ``"while ..."``.

    Raises:
        RuntimeError: If the error is that the process of an env died. The other processes are ended then, because a
            vector env that lost one would wait for it for ever, even to be closed.
    """
    envs = env.unwrapped
    if isinstance(envs, AsyncVectorEnv) and isinstance(error, (EOFError, ConnectionError)):
        dead = [env_id for env_id in range(envs.num_envs) if _is_dead(envs, env_id)]
        if dead:
            for process in envs.processes:
                process.terminate()
                process.join(timeout=1.0)
            envs.closed = True
            raise RuntimeError(f"the processes of the envs {dead} died {when}") from error
    if sys.version_info >= (3, 11):
        error.add_note(f"raised {when}")


def _is_dead(envs: AsyncVectorEnv, env_id: int) -> bool:
    """Return whether a process ended without saying why; if it said why, gymnasium has closed its pipe."""
    process = envs.processes[env_id]
    process.join(timeout=0.05)  # the pipe breaks a moment before the process is seen to have ended
    return envs.parent_pipes[env_id] is not None and not process.is_alive()


def fits_float32(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which numbers are finite and stay so as float32, in which transitions are kept."""
    fits: NDArray[np.bool_] = np.isfinite(values) if values.dtype.itemsize <= 4 else np.abs(values) <= LARGEST
    return fits


def what_is_wrong(values: NDArray[Any]) -> str:
    """Return what is wrong with numbers of which not all fit into float32."""
    if not np.isfinite(values).all():
        return "not finite"
    return f"too large for float32, in which it is kept (allowed: -{LARGEST:.2e} to {LARGEST:.2e})"


def _check(what: str, value: Any) -> None:
    """Raise if a number in ``value`` is not finite, or would not be as float32."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple):
        for part in value:
            _check(what, part)
        return
    values = np.asarray(value)
    if values.dtype.kind == "f" and not fits_float32(values).all():
        raise FloatingPointError(f"the {what} is {what_is_wrong(values)}: {value}")
