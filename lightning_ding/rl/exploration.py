"""Exploration with random actions: epsilon-greedy, uniform, and all within the action space.

Shapes: B batch (one row for each env), A actions, or dimensions of a continuous one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


def epsilon_greedy(
    q: NDArray[np.floating[Any]], epsilon: float, rng: np.random.Generator, action_mask: NDArray[Any] | None = None
) -> NDArray[np.int64]:
    """Return greedy actions, each replaced by a uniformly random legal one with probability epsilon.

    Each row explores independently, so not all envs explore in the same step.

    Args:
        q: Action values, illegal actions at minus infinity, shape (B, A).
        epsilon: Probability of a random action, in [0, 1].
        rng: Random number generator for the decision to explore and for the actions.
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
        action_mask: Non-zero where an action is legal, shape (B, A), with a legal action in each row. With ``sizes``
            the masks of the D dimensions are concatenated, so A is the sum of ``sizes``.
        rng: Random number generator.
        sizes: Number of actions in each of D dimensions; None for a single discrete action.

    Returns:
        Actions, shape (B,), or (B, D) with ``sizes``.

    Raises:
        ValueError: If ``sizes`` do not add up to A.

    Example:
        >>> random_actions(np.array([[0, 1, 0], [0, 0, 1]]), np.random.default_rng())
        array([1, 2])
    """
    mask = np.asarray(action_mask) != 0
    lottery = rng.random(mask.shape) * mask  # the legal action with the largest random number is chosen
    if sizes is None:
        actions: NDArray[np.int64] = lottery.argmax(1)
        return actions
    if sum(sizes) != mask.shape[1]:
        raise ValueError(f"sizes must add up to {mask.shape[1]}, the width of action_mask, got {tuple(sizes)}")
    parts = np.split(lottery, np.cumsum(sizes)[:-1], axis=1)
    return np.stack([part.argmax(1) for part in parts], axis=1)


def random_legal_actions(space: spaces.Space[Any], action_mask: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Return uniformly random legal actions in the numbering of the env's action space.

    Args:
        space: The discrete action space of one env or player.
        action_mask: Non-zero where an action is legal, shape (B, A); the masks of several dimensions are concatenated.
        rng: Random number generator.

    Raises:
        ValueError: If the width of the mask is not the number of actions.

    Example:
        >>> random_legal_actions(spaces.Discrete(2, start=5), np.array([[0, 1]]), np.random.default_rng())
        array([6])
    """
    sizes, start = discrete_counts(space)
    actions: NDArray[Any] = random_actions(action_mask, rng, sizes) + np.asarray(start)
    return actions.reshape(-1, *cast("tuple[int, ...]", space.shape))


def within_box(action: NDArray[Any], box: spaces.Box) -> NDArray[Any]:
    """Return actions in the type of a Box and within its bounds, whatever the rounding.

    Args:
        action: Finite numbers of any type, in the shape of the bounds, or with leading axes before it.
        box: A Box of floats. Where it is unbounded, the finite numbers of its type are the bounds.

    Example:
        >>> within_box(np.array([0.30000001192092896]), spaces.Box(0.1, 0.3, (1,), np.float64)).tolist()
        [0.3]
    """
    kind: Any = box.dtype
    if kind.itemsize >= action.dtype.itemsize:
        inside: NDArray[Any] = np.clip(action.astype(kind, copy=False), box.low, box.high)
        return inside
    limits = np.finfo(kind)
    inside = np.clip(action, np.maximum(box.low, limits.min), np.minimum(box.high, limits.max))
    return inside.astype(kind)


def discrete_counts(space: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the number of values of each integer of a discrete space, and the smallest value of each.

    Args:
        space: A Discrete, MultiDiscrete or MultiBinary space; several axes are flattened in row-major order.
    """
    if isinstance(space, spaces.MultiBinary):
        return (2,) * math.prod(space.shape), (0,) * math.prod(space.shape)
    if isinstance(space, spaces.Discrete):
        return (int(space.n),), (int(space.start),)
    nvec, start = np.ravel(space.nvec), np.ravel(space.start)
    return tuple(int(size) for size in nvec), tuple(int(first) for first in start)
