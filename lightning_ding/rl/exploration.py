"""Exploration: random and epsilon-greedy actions.

Shapes: B batch (one row for each env), A actions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


def epsilon_greedy(
    q: NDArray[np.float32], epsilon: float, rng: np.random.Generator, action_mask: NDArray[Any] | None = None
) -> NDArray[np.int64]:
    """Return greedy actions, each replaced by a uniformly random legal one with probability epsilon.

    The coin is thrown for every row on its own, so that not all envs explore in the same step.

    Args:
        q: Action values, illegal actions at minus infinity, shape (B, A).
        epsilon: Probability of a random action, in [0, 1].
        rng: Source of the coins and the random actions.
        action_mask: Non-zero where an action is legal, shape (B, A); None means that all are.

    Returns:
        Actions, shape (B,).
    """
    greedy: NDArray[np.int64] = q.argmax(1)
    explore = rng.random(len(q)) < epsilon
    if action_mask is None:
        return np.where(explore, rng.integers(q.shape[1], size=len(q)), greedy)
    return np.where(explore, random_actions(action_mask, rng), greedy)


def random_actions(
    action_mask: NDArray[Any], rng: np.random.Generator, sizes: Sequence[int] | None = None
) -> NDArray[np.int64]:
    """Return uniformly random legal actions.

    Args:
        action_mask: Non-zero where an action is legal, shape (B, A), at least one in each row; with ``sizes``, the
            masks of the D dimensions of an action side by side, A in all.
        rng: Source of the actions.
        sizes: Number of actions in each dimension, D of them; None if an action has no dimensions.

    Returns:
        Actions, shape (B,), or (B, D) with ``sizes``.

    Raises:
        ValueError: If ``sizes`` do not add up to A.

    Example:
        >>> random_actions(np.array([[0, 1, 0], [0, 0, 1]]), np.random.default_rng())
        array([1, 2])
    """
    mask = np.asarray(action_mask) != 0
    lottery = rng.random(mask.shape) * mask  # the largest ticket among the legal actions wins
    if sizes is None:
        actions: NDArray[np.int64] = lottery.argmax(1)
        return actions
    if sum(sizes) != mask.shape[1]:
        raise ValueError(f"sizes must add up to {mask.shape[1]}, the width of action_mask, got {tuple(sizes)}")
    parts = np.split(lottery, np.cumsum(sizes)[:-1], axis=1)
    return np.stack([part.argmax(1) for part in parts], axis=1)


def random_legal_actions(space: spaces.Space[Any], action_mask: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Return uniformly random legal actions, as the env counts them.

    Args:
        space: The discrete action space of one env or player.
        action_mask: Non-zero where an action is legal, shape (B, A); the masks of several dimensions side by side.
        rng: Source of the actions.

    Raises:
        ValueError: If the mask is not as wide as there are actions.

    Example:
        >>> random_legal_actions(spaces.Discrete(2, start=5), np.array([[0, 1]]), np.random.default_rng())
        array([6])
    """
    sizes, start = discrete_counts(space)
    actions: NDArray[Any] = random_actions(action_mask, rng, sizes) + np.asarray(start)
    return actions.reshape(-1, *cast("tuple[int, ...]", space.shape))


def discrete_counts(space: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how many values each integer of a discrete space has, and the smallest of each.

    Args:
        space: A Discrete, MultiDiscrete or MultiBinary space; one of several axes is read row by row.
    """
    if isinstance(space, spaces.MultiBinary):
        return (2,) * math.prod(space.shape), (0,) * math.prod(space.shape)
    if isinstance(space, spaces.Discrete):
        return (int(space.n),), (int(space.start),)
    nvec, start = np.ravel(space.nvec), np.ravel(space.start)
    return tuple(int(size) for size in nvec), tuple(int(first) for first in start)
