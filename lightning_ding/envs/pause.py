"""An env that stands still for a while, so that a vector env can wait for its slow members."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from lightning_ding.envs.vector import SEPARATE_ENVS


class Pausable(gym.Wrapper[Any, Any, Any, Any]):
    """Lets an env be paused: while ``paused`` is true, a step changes nothing.

    A paused step returns the last observation, reward 0, no end, and ``{"paused": True}``; a reset is a reset as
    always. So an env that is paused behind the end of an episode waits at the first observation of the next one.
    It must be the outermost wrapper, so that the others do not count what is no step. ``EnvStepper.pause`` sets
    ``paused`` in the envs of a vector env.

    Args:
        env: Any env.

    Example:
        >>> env = Pausable(gym.make("CartPole-v1"))
        >>> observation, _ = env.reset(seed=0)
        >>> env.paused = True
        >>> bool((env.step(0)[0] == observation).all()), env.step(0)[1:]
        (True, (0.0, False, False, {'paused': True}))
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.paused = False
        self._obs: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new episode, paused or not."""
        self._obs, info = self.env.reset(seed=seed, options=options)
        return self._obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env unless it is paused."""
        if self.paused:
            return self._obs, 0.0, False, False, {"paused": True}
        self._obs, reward, terminated, truncated, info = self.env.step(action)
        return self._obs, reward, terminated, truncated, info


def can_pause(env: VectorEnv) -> bool:
    """Return whether all envs of a vector env are ``Pausable``."""
    envs: Any = env.unwrapped
    return isinstance(envs, SEPARATE_ENVS) and all(envs.call("has_wrapper_attr", "paused"))


def check_paused(paused: NDArray[np.bool_], ended: NDArray[np.bool_]) -> None:
    """Check that paused envs stood still.

    Args:
        paused: Which envs are paused, shape (N,).
        ended: Which envs ended an episode in this step, shape (N,).

    Raises:
        RuntimeError: If one did both.
    """
    if (paused & ended).any():
        env_id = int((paused & ended).argmax())
        raise RuntimeError(f"env {env_id} ended an episode while it was paused: Pausable must be its outermost wrapper")
