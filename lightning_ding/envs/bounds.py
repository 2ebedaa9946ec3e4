"""A warning for observations outside the bounds of their space.

Shapes: N envs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

CHECKED_BATCHES = 100
"""Number of batches of observations, one for each step and reset of a vector env, whose bounds are checked."""
_reported: set[str] = set()
log = logging.getLogger(__name__)


class BoundsCheck:
    """Compares the first observations of a vector env with the bounds of their space, and warns once in a process.

    Such observations are used as they are: many envs leave their bounds by rounding or by design, and networks do not
    depend on them.

    Args:
        space: Observation space of one env.
        name: Name of the env in the warning.

    Example:
        >>> check = BoundsCheck(spaces.Box(-1, 1, (2,)), "Pole")
        >>> check.left
        100
        >>> BoundsCheck(spaces.Box(-np.inf, np.inf, (2,)), "Pole").left
        0
    """

    def __init__(self, space: spaces.Space[Any], name: str) -> None:
        self._name = name
        self._boxes = list(_bounded(space, ()))
        self.left = CHECKED_BATCHES if self._boxes else 0
        """Number of batches that are still checked."""

    def check(self, obs: Any) -> None:
        """Warn if an observation is outside the bounds.

        Args:
            obs: Observations, nested arrays with leading axis N.
        """
        self.left -= 1
        for path, box in self._boxes:
            leaf = obs
            for key in path:
                leaf = leaf[key]
            outside = (leaf < box.low) | (leaf > box.high)
            if outside.any():
                self._warn(path, box, leaf, np.argwhere(outside)[0])
                return

    def _warn(self, path: tuple[str, ...], box: spaces.Box, leaf: Any, place: Any) -> None:
        self.left = 0
        if self._name in _reported:
            return
        _reported.add(self._name)
        env_id, entry = int(place[0]), tuple(place[1:].tolist())
        where = "".join(f"[{key!r}]" for key in path) + (f" at index {entry}" if entry else "")
        log.warning(
            "env %d, %s, returned an observation%s outside its space: %s, allowed: %s to %s. Such observations are "
            "used as they are, and not reported again",
            env_id,
            self._name,
            where,
            leaf[tuple(place)],
            box.low[entry],
            box.high[entry],
        )


def _bounded(space: spaces.Space[Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], spaces.Box]]:
    """Yield the boxes of a space with a bound that its dtype does not imply, and the keys that lead to them."""
    if isinstance(space, spaces.Dict):
        for key, below in space.spaces.items():
            yield from _bounded(below, (*path, key))
    elif isinstance(space, spaces.Box):
        limits = np.iinfo(space.dtype) if space.dtype.kind in "iu" else None
        lowest, highest = (-np.inf, np.inf) if limits is None else (limits.min, limits.max)
        if (space.low > lowest).any() or (space.high < highest).any():
            yield path, space
