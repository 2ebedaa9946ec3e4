"""Checks that the actions of a data set are legal: in the action space of the env, and not excluded by a mask.

Shapes: N transitions, D dimensions of an action, A entries of a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding.config import require
from lightning_ding.envs.action_masks import KEY, mask_sizes

ROUNDING = 1e-4  # of the larger bound of a Box


def check_range(space: Any, action: NDArray[Any], name: str, starts_at_zero: bool, rows: NDArray[np.int64]) -> None:
    """Check that all actions are in a space of one array.

    Args:
        space: Box, Discrete, MultiDiscrete or MultiBinary.
        action: Actions, shape (N, ...).
        name: Name of the entry, such as ``action``.
        starts_at_zero: Whether discrete actions are counted from 0, and not as the space counts them.
        rows: Number of each transition in the source of the data, shape (N,).

    Raises:
        ValueError: Naming the space, the range of the data, and the first row that is outside of it.
    """
    low, high = _range_of(space, starts_at_zero)
    tolerance: Any = 0.0
    if isinstance(space, spaces.Box):
        bounds = np.abs(np.stack([low, high]).astype(np.float64))
        tolerance = ROUNDING * np.where(np.isfinite(bounds), bounds, 0.0).max(0)
    smallest, largest = action.min(0), action.max(0)
    if (smallest >= low - tolerance).all() and (largest <= high + tolerance).all():
        return
    outside = ((action < low - tolerance) | (action > high + tolerance)).reshape(len(action), -1).any(1)
    found = f"from {smallest.tolist()} to {largest.tolist()}; {_first(outside, action, rows)}"
    require(False, f"dataset's {name}", f"in {space}", found)


def check_masks(obs: Any, action: Any, space: Any, starts_at_zero: bool, rows: NDArray[np.int64]) -> None:
    """Check that no action is excluded by the ``action_mask`` of its observation, if there is one.

    Args:
        obs: Nested observations, leading axis N; an entry ``action_mask`` has the shape (N, A).
        action: Nested actions, leading axis N, in the space.
        space: Action space.
        starts_at_zero: Whether discrete actions are counted from 0, and not as the space counts them.
        rows: Number of each transition in the source of the data, shape (N,).

    Raises:
        ValueError: Naming the first row with such an action, or the size that a mask must have.
    """
    sizes = mask_sizes(space)
    if sizes is None or not isinstance(obs, Mapping) or KEY not in obs:
        return
    mask = np.asarray(obs[KEY]).reshape(len(rows), -1)
    allowed = f"of shape ({sum(sizes)},), one entry for each action of {space}"
    require(mask.shape[1] == sum(sizes), f"dataset's obs/{KEY}", allowed, mask.shape[1:])
    kind, choice = (space["action_type"], action["action_type"]) if isinstance(space, spaces.Dict) else (space, action)
    chosen = (choice - _range_of(kind, starts_at_zero)[0]).reshape(len(rows), -1)  # (N, D), from 0
    columns = np.cumsum((0, *sizes[:-1])) + chosen.astype(np.int64)
    is_excluded = (np.take_along_axis(mask, columns, 1) == 0).any(1)
    if is_excluded.any():
        allowed = f"one that the {KEY} of its observation allows"
        require(False, "dataset's action", allowed, _first(is_excluded, choice, rows))


def _first(is_bad: NDArray[np.bool_], action: NDArray[Any], rows: NDArray[np.int64]) -> str:
    """Return a description of the first bad row in the order of the source."""
    bad = np.flatnonzero(is_bad)
    first = bad[rows[bad].argmin()]
    return f"{action[first].tolist()} in row {rows[first]}, the first of {len(bad)} such rows"


def _range_of(space: Any, starts_at_zero: bool) -> tuple[Any, Any]:
    """Return the smallest and the largest value of a space."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape), np.ones(space.shape)
    sizes = np.asarray(space.n if isinstance(space, spaces.Discrete) else space.nvec)
    start = np.zeros_like(sizes) if starts_at_zero else np.asarray(space.start)
    return start, start + sizes - 1
