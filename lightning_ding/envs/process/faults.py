"""What a vector env remembers of its envs' faults: how many they were, and how they were last reset.

Shapes: N envs.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class Faults:
    """Counts the faults of N envs and draws the seeds of those that take their places.

    Args:
        num_envs: N.
        budget: Faults of an env without a whole episode between that are borne, >= 0.
    """

    def __init__(self, num_envs: int, budget: int) -> None:
        self.budget = budget
        self.total: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        """All faults of each env, shape (N,)."""
        self.in_a_row: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        """Those since its last whole episode, shape (N,)."""
        self._seeds: list[int | None] = [None] * num_envs
        self._since_seed = [0] * num_envs

    def seeded(self, env_id: int, seed: int | None) -> None:
        """Note that an env is reset, with a seed or without."""
        if seed is not None:
            self._seeds[env_id], self._since_seed[env_id] = seed, 0

    def add(self, env_ids: Iterable[int]) -> bool:
        """Count a fault of each of these envs and return whether they can be borne."""
        for env_id in env_ids:
            self.total[env_id] += 1
            self.in_a_row[env_id] += 1
            self._since_seed[env_id] += 1
        return bool((self.in_a_row <= self.budget).all())

    def ended(self, episodes: NDArray[np.bool_]) -> None:
        """Note where a whole episode ended, shape (N,)."""
        if self.in_a_row.any():
            self.in_a_row[episodes] = 0

    def seeds(self) -> list[int]:
        """Return for each env the seed that one in its place starts with."""
        drawn = []
        for seed, number in zip(self._seeds, self._since_seed, strict=True):
            sequence = np.random.SeedSequence(seed, spawn_key=(number,))
            drawn.append(int(sequence.generate_state(1)[0]))
        return drawn

    def last_reset(self, env_id: int) -> str:
        """Return how the env was last reset with a seed, in words."""
        seed = self._seeds[env_id]
        return "never reset with a seed" if seed is None else f"last reset with seed {seed}"
