"""Uniform buffers and transitions to push."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lightning_ding.worker import NaiveReplayBuffer


def buffer_of(size: int, seed: int | None = 0) -> NaiveReplayBuffer:
    return NaiveReplayBuffer({"replay_buffer_size": size}, seed=seed)


def steps(start: int, amount: int, num_envs: int = 1) -> dict[str, Any]:
    """Return vector steps ``start`` and on of endless envs; in env i step s, obs is [i, s] and the reward 10 i + s."""
    step, env_id = np.repeat(np.arange(start, start + amount), num_envs), np.tile(np.arange(num_envs), amount)
    return {
        "obs": np.stack([env_id, step], axis=1).astype(np.float32),
        "next_obs": np.stack([env_id, step + 1], axis=1).astype(np.float32),
        "reward": (10.0 * env_id + step),
        "terminated": np.zeros(len(step), dtype=bool),
        "truncated": np.zeros(len(step), dtype=bool),
        "env_id": env_id,
    }


def filled(size: int, seed: int | None = 0) -> NaiveReplayBuffer:
    buffer = buffer_of(size, seed)
    buffer.push(steps(0, size))
    return buffer


def assert_equal(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() == right.keys()
    for name, values in left.items():
        torch.testing.assert_close(values, right[name], rtol=0, atol=0, msg=name)
