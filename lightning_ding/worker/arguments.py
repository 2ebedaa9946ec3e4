"""Arguments that several workers take, checked in one place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_ding.config import require


def check_amount(name: str, value: Any) -> int:
    """Return how much was asked for.

    Args:
        name: Of the argument.
        value: A Python or numpy integer, >= 1.

    Raises:
        ValueError: If it is something else; a bool is no number.

    Example:
        >>> check_amount("n_sample", np.int64(3))
        3
    """
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    require(is_integer and value >= 1, name, "an int >= 1", value)
    return int(value)


def check_level_seeds(level_seeds: Sequence[int] | None, num_envs: int) -> NDArray[np.int64] | None:
    """Return the level that each of N envs plays, shape (N,); None if none were given.

    Raises:
        ValueError: If there is not one int for each env.
    """
    if level_seeds is None:
        return None
    seeds = np.asarray(level_seeds)
    is_right = seeds.shape == (num_envs,) and seeds.dtype.kind in "iu"
    require(is_right, "level_seeds", f"one int for each of {num_envs} envs", level_seeds)
    return seeds.astype(np.int64)


def check_levels_go_on(waiting: str, has_levels: bool, level_seeds: Any) -> None:
    """Raise if levels are switched on or off where one piece of data would have them in a part only.

    Args:
        waiting: What is there from the last call.
        has_levels: Whether that has levels.
        level_seeds: What this call was given.

    Raises:
        ValueError: If one has levels and the other has not.
    """
    if has_levels != (level_seeds is not None):
        raise ValueError(f"level_seeds must be given or not as for {waiting} from the last call, got {level_seeds!r}")
