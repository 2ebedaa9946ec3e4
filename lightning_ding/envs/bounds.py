"""Warnings for observations outside the bounds of their space, and for those that single precision cannot tell apart.

Shapes: N envs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

CHECKED_BATCHES = 100
"""Number of batches of observations, one for each step and reset of a vector env, whose bounds are checked."""
LARGE, FEW_STEPS, NOISE = 1000.0, 16, 1e-12
"""Size from which numbers are checked for lost variation, fewest steps of single precision that it should have, and
variation relative to the size that counts as rounding."""
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
            leaf = _at(obs, path)
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


class VariationCheck:
    """Warns once in a process if observations of double precision all but equal each other in single precision.

    Their variation is lost where it is less than a few of the steps in which single precision counts there, as that of
    time stamps in seconds and of prices is. The first batches decide; small numbers, whose noise may be as small, are
    left out.

    Args:
        space: Observation space of one env.
        name: Name of the env in the warning.

    Example:
        >>> VariationCheck(spaces.Box(-1, 1, (2,), np.float64), "Pole").left
        100
        >>> VariationCheck(spaces.Box(-1, 1, (2,), np.float32), "Pole").left
        0
    """

    def __init__(self, space: spaces.Space[Any], name: str) -> None:
        self._name = name
        self._extremes = {path: (np.inf, -np.inf) for path, box in _boxes(space, ()) if box.dtype == np.float64}
        self.left = CHECKED_BATCHES if self._extremes else 0
        """Number of batches that are still checked."""

    def check(self, obs: Any) -> None:
        """Look at a batch of observations, and warn after the last one if variation is lost.

        Args:
            obs: Observations, nested arrays with leading axis N.
        """
        self.left -= 1
        for path, (low, high) in self._extremes.items():
            leaf = _at(obs, path)
            self._extremes[path] = np.minimum(low, leaf.min(0)), np.maximum(high, leaf.max(0))
        if not self.left:
            for path, (low, high) in self._extremes.items():
                if self._warns(path, np.asarray(low), np.asarray(high)):
                    return

    def _warns(self, path: tuple[str, ...], low: Any, high: Any) -> bool:
        lost = loses_variation(low, high)
        if not lost.any() or f"variation of {self._name}" in _reported:
            return False
        _reported.add(f"variation of {self._name}")
        place = tuple(np.argwhere(lost)[0])
        where = "".join(f"[{key!r}]" for key in path) + (f" at index {tuple(map(int, place))}" if place else "")
        log.warning(
            "the observations%s of %s lie between %s and %s, and single precision, in which networks see them, has "
            "steps of %s there: their variation is lost. Set norm_obs to true, which shifts them in double precision, "
            "or subtract a constant in a wrapper",
            where,
            self._name,
            low[place],
            high[place],
            np.spacing(np.float32(high[place])),
        )
        return True


def loses_variation(low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which numbers of double precision single precision cannot tell apart, from their extremes.

    Example:
        >>> loses_variation(np.array([1.7e9, 0.1]), np.array([1.7e9 + 60, 0.2])).tolist()
        [True, False]
    """
    size = np.maximum(np.abs(low), np.abs(high))
    with np.errstate(over="ignore", invalid="ignore"):
        step = np.spacing(size.astype(np.float32)).astype(np.float64)
        return np.asarray((size >= LARGE) & (high - low < FEW_STEPS * step) & (high - low > NOISE * size))


def _at(obs: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        obs = obs[key]
    return obs


def _boxes(space: spaces.Space[Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], spaces.Box]]:
    """Yield the boxes of a space, and the keys that lead to them."""
    if isinstance(space, spaces.Dict):
        for key, below in space.spaces.items():
            yield from _boxes(below, (*path, key))
    elif isinstance(space, spaces.Box):
        yield path, space


def _bounded(space: spaces.Space[Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], spaces.Box]]:
    """Yield the boxes of a space with a bound that its dtype does not imply, and the keys that lead to them."""
    for place, box in _boxes(space, path):
        kind: Any = box.dtype
        limits = np.iinfo(kind) if kind.kind in "iu" else None
        lowest, highest = (-np.inf, np.inf) if limits is None else (limits.min, limits.max)
        if (box.low > lowest).any() or (box.high < highest).any():
            yield place, box
