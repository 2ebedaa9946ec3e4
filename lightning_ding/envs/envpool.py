"""EnvPool's envs, which C++ threads step (extra ``envpool``), as vector envs with a seed for each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from typing_extensions import override

from lightning_ding.config import closest


class EnvPoolVectorEnv(VectorEnv[Any, Any, Any]):
    """A vector env of one of EnvPool's tasks, for ``mode="native"``.

    A pool takes its seed when it is created, so a reset with a seed creates the pool again. An env resets in the step
    after the end of an episode, and it shows the last observation of an episode as any other. Its state cannot be
    saved: a resumed run begins new episodes.

    Args:
        task_id: Name of the task in EnvPool, such as ``"Pong-v5"``.
        num_envs: Number of envs, >= 1.
        kwargs: Options of ``envpool.make``, such as ``num_threads``, and of the task.

    Raises:
        ImportError: If the extra ``envpool`` is not installed.
        ValueError: If there is no such task; the message names the nearest one.
    """

    metadata: dict[str, Any]

    def __init__(self, task_id: str, num_envs: int = 1, **kwargs: Any) -> None:
        try:
            import envpool
        except ImportError as error:
            needed = "EnvPool's envs need the extra 'envpool': pip install 'lightning_ding[envpool]'"
            raise ImportError(f"{needed} ({error})") from error
        known = envpool.list_all_envs()
        if task_id not in known:
            near = closest(task_id, known)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ValueError(f"env_id must be one of EnvPool's tasks after 'envpool:', got {task_id!r}{hint}")
        self._make = envpool.make
        self._options = {"task_id": task_id, "env_type": "gymnasium", "num_envs": num_envs, **kwargs}
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self._pool: Any = self._make(**self._options)
        self.single_observation_space = self._pool.observation_space
        self.single_action_space = self._pool.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._action_dtype = self._pool.spec.action_array_spec["action"].dtype

    @override
    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every env, in a new pool if there is a seed."""
        if seed is not None:
            given = seed if isinstance(seed, int) else next((one for one in seed if one is not None), 0)
            self._pool.close()
            self._pool = self._make(**self._options, seed=given % 2**31)
        obs, info = self._pool.reset()
        return obs, _plain(info)

    @override
    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every env."""
        obs, reward, terminated, truncated, info = self._pool.step(np.asarray(actions, self._action_dtype))
        return obs, reward, terminated, truncated, _plain(info)

    @override
    def close_extras(self, **kwargs: Any) -> None:
        """Close the pool."""
        self._pool.close()


def _plain(info: dict[str, Any]) -> dict[str, Any]:
    """Return the info; Atari's tasks report the score under ``reward``, while they may clip the rewards."""
    return {"raw_reward": np.asarray(info["reward"], np.float64), **info} if "reward" in info else info
