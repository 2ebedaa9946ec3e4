"""How many episodes each env owes, so that short episodes do not count more often than long ones.

Shapes: N envs, E episodes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_ding.config import require


def share_out(n_episode: int, num_envs: int, turn: int = 0) -> NDArray[np.int64]:
    """Return how many of E episodes each env owes: E // N, and one more for the E % N envs whose turn it is.

    With ``turn`` moved on by E after every call, the shares of any two envs never differ by more than one in all.

    Args:
        n_episode: E, >= 1.
        num_envs: N, >= 1.
        turn: The first env to owe one more; counted modulo N.

    Returns:
        Shape (N,).

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> share_out(n_episode=5, num_envs=3, turn=2)
        array([2, 1, 2])
    """
    require(n_episode >= 1, "n_episode", ">= 1", n_episode)
    require(num_envs >= 1, "num_envs", ">= 1", num_envs)
    behind = (np.arange(num_envs) - turn) % num_envs
    return n_episode // num_envs + (behind < n_episode % num_envs).astype(np.int64)
