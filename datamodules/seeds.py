"""Seeds for everything random in a run, independent of each other and different on every rank."""

from __future__ import annotations

from typing import Literal

import numpy as np

PURPOSES = ("collector_envs", "exploration", "replay", "validate", "test")


class Seeds:
    """Seed sequences by purpose.

    Args:
        seed: The run's seed, >= 0.
        rank: The rank, so that two ranks see different data.
        env_step: Where the run is, so that a run that goes on does not see its first episodes again.

    Example:
        >>> Seeds(0, rank=0).exploration.generate_state(1) == Seeds(0, rank=1).exploration.generate_state(1)
        array([False])
    """

    def __init__(self, seed: int, rank: int = 0, env_step: int = 0) -> None:
        self._key = (seed, rank, env_step)

    @property
    def collector_envs(self) -> np.random.SeedSequence:
        """For the envs that training data comes from."""
        return self._sequence("collector_envs")

    @property
    def exploration(self) -> np.random.SeedSequence:
        """For the policy's exploration."""
        return self._sequence("exploration")

    @property
    def replay(self) -> np.random.SeedSequence:
        """For drawing minibatches."""
        return self._sequence("replay")

    def evaluation(self, stage: Literal["validate", "test"]) -> int:
        """Return the seed of the evaluation's episodes; it is the same on every rank."""
        return int(np.random.SeedSequence([self._key[0], PURPOSES.index(stage)]).generate_state(1)[0])

    def _sequence(self, purpose: str) -> np.random.SeedSequence:
        return np.random.SeedSequence([*self._key, PURPOSES.index(purpose)])
