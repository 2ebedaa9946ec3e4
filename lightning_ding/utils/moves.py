"""The legal moves of a player in a game."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


def legal_moves(obs: Any, space: spaces.Discrete) -> NDArray[np.int64]:
    """Return the legal moves: those of the ``action_mask`` of an observation, or all without one.

    Args:
        obs: Observation of a player.
        space: Action space of the player.

    Example:
        >>> legal_moves({"action_mask": np.array([0, 1, 1])}, spaces.Discrete(3)).tolist()
        [1, 2]
    """
    mask = obs.get("action_mask") if isinstance(obs, Mapping) else None
    chosen = np.arange(space.n) if mask is None else np.flatnonzero(mask)
    return chosen + space.start


def random_move(legal: NDArray[np.int64], rng: np.random.Generator) -> int:
    """Return one of the legal moves, all with the same probability.

    Args:
        legal: Legal moves, at least one.
        rng: Random number generator that draws the move.
    """
    return int(legal[rng.integers(len(legal))])
