"""Prioritised buffers and transitions to push."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from lightning_ding.worker import AdvancedReplayBuffer


def buffer_of(size: int, seed: int | None = 0, **config: Any) -> AdvancedReplayBuffer:
    return AdvancedReplayBuffer({"replay_buffer_size": size, **config}, seed=seed)


def rows(*names: float, **columns: Any) -> dict[str, Any]:
    """Return transitions that are known by their reward."""
    return {"reward": np.array(names, dtype=float), **{key: np.array(value) for key, value in columns.items()}}


def prioritised(*priorities: float, **config: Any) -> AdvancedReplayBuffer:
    """Return a full buffer of rewards 0, 1, 2, ... with these priorities."""
    buffer = buffer_of(len(priorities), **config)
    buffer.push(rows(*range(len(priorities)), priority=priorities))
    return buffer


def set_priorities(buffer: AdvancedReplayBuffer, priorities: dict[float, float]) -> None:
    """Sample until each of these rewards was there, and update it."""
    missing = dict(priorities)
    while missing:
        batch = buffer.sample(1)
        name = batch["reward"].item()
        if name in missing:
            buffer.update({**batch, "priority": [missing.pop(name)]})


def weights_of(buffer: AdvancedReplayBuffer) -> list[float]:
    weights: list[float] = buffer.state_dict()["tensors"]["own/weight"].tolist()
    return weights


def assert_drawn_in_proportion(buffer: AdvancedReplayBuffer, weights: dict[float, float], **arguments: Any) -> None:
    """Compare 12,000 draws with weights by reward, which are not to be more than 25."""
    got = buffer.sample(3, num_batches=4000, **arguments)["reward"].flatten().tolist()
    counts, total = Counter(got), sum(weights.values())
    expected = {name: len(got) * weight / total for name, weight in weights.items()}
    assert set(counts) <= set(expected)
    # Draws of one minibatch are not independent but stratified, which only makes the statistic smaller.
    statistic = sum((counts[name] - number) ** 2 / number for name, number in expected.items())
    assert statistic < 2 * len(weights) + 12  # chi-square: p < 0.001 for up to 25 weights


def walk(start: int, amount: int) -> dict[str, Any]:
    """Return vector steps of two envs; env 0 ends every fifth step, env 1 never."""
    step, env_id = np.repeat(np.arange(start, start + amount), 2), np.tile([0, 1], amount)
    return {
        "obs": np.stack([env_id, step], axis=1).astype(np.float32),
        "next_obs": np.stack([env_id, step + 1], axis=1).astype(np.float32),
        "reward": (1.0 + step + 10 * env_id),
        "terminated": (env_id == 0) & (step % 5 == 4),
        "truncated": np.zeros(len(step), dtype=bool),
        "env_id": env_id,
    }


def pushed(start: int, amount: int) -> dict[str, Any]:
    names = np.arange(start, start + amount)
    return walk(start, amount) | {"policy_version": np.repeat(names // 4, 2), "priority": 1.0 + np.repeat(names % 3, 2)}
