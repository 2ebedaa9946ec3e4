"""Small data sets with known contents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from lightning_ding import nested


def counting_steps(lengths: tuple[int, ...] = (3, 2, 4), terminated: tuple[bool, ...] = (True, False, False)) -> Any:
    """Return steps of episodes that end by termination or by a time limit.

    Observation number t of episode e is (10 e + t, 1), so a wrong neighbour shows. The reward of step t is t + 1.
    """
    parts = []
    for number, (length, is_terminated) in enumerate(zip(lengths, terminated, strict=True)):
        seen = np.stack([10.0 * number + np.arange(length + 1), np.ones(length + 1)], axis=1).astype(np.float32)
        last = np.arange(length) == length - 1
        parts.append(
            {
                "obs": seen[:-1],
                "next_obs": seen[1:],
                "action": (np.arange(length) % 2).astype(np.int64),
                "reward": np.arange(1.0, length + 1, dtype=np.float32),
                "terminated": last & is_terminated,
                "truncated": last & (not is_terminated),
            }
        )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def target_steps(size: int = 2000, seed: int = 0) -> Any:
    """Return one-step episodes in ``TargetEnv(low=-2, high=2)`` of a bad policy that covers all actions.

    An action is 0.3 x plus noise of standard deviation 0.6, where x would be the best.
    """
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (size, 1)).astype(np.float32)
    action = np.clip(0.3 * x + rng.normal(0.0, 0.6, (size, 1)), -2, 2).astype(np.float32)
    reward = (1 - ((action - x) / 2) ** 2)[:, 0]
    over = np.ones(size, dtype=bool)
    return {"obs": x, "action": action, "reward": reward, "next_obs": x, "terminated": over, "truncated": ~over}


def steps_in(env: gym.Env[Any, Any], act: Callable[[], Any], size: int, seed: int = 0) -> Any:
    """Return ``size`` steps of episodes in an env, in which ``act`` chooses the actions; episode e has its own seed."""
    steps: list[dict[str, Any]] = []
    episode, is_over = seed, True
    while len(steps) < size:
        if is_over:
            obs, _ = env.reset(seed=episode)
            episode += 1
        action = act()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        step = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs}
        steps.append({**step, "terminated": terminated, "truncated": truncated})
        obs, is_over = next_obs, terminated or truncated
    return nested.stack_arrays([nested.to_array(step) for step in steps])
