"""Checking what a vector env with processes is given."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from lightning_ding.config import require
from lightning_ding.posix import require_posix

Info = dict[str, Any]
OnEnvError = Literal["raise", "restart"]


def start_method(name: str | None) -> str:
    """Return how processes are started; None is the best there is.

    Raises:
        ValueError: If this system cannot start them so, or has no processes as POSIX has them.
    """
    require_posix('mode="async"', 'mode="sync"')
    known = multiprocessing.get_all_start_methods()
    name = name or ("forkserver" if "forkserver" in known else "spawn")
    require(name in known, "context", f"one of {known}", name)
    return name


def check_arguments(
    num_envs: int,
    envs_per_process: int,
    on_env_error: str,
    restart_budget: int,
    timeouts: Mapping[str, float | None],
) -> None:
    """Check how many envs there are, what becomes of those that fail, and deadlines by name.

    Raises:
        ValueError: If something is out of its range.
    """
    require(num_envs >= 1, "env_fns", "one or more functions", num_envs)
    require(envs_per_process >= 1, "envs_per_process", ">= 1", envs_per_process)
    require(on_env_error in get_args(OnEnvError), "on_env_error", f"one of {get_args(OnEnvError)}", on_env_error)
    require(restart_budget >= 0, "restart_budget", ">= 0", restart_budget)
    for name, seconds in timeouts.items():
        if name == "close_timeout":
            require(seconds is not None and seconds > 0, name, "> 0", seconds)
        else:
            require(seconds is None or seconds > 0, name, "> 0 or None", seconds)


def seeds_of(seed: Any, num_envs: int) -> list[int | None]:
    """Return a seed for each env, from a number that is that of the first one, a list, or None."""
    if seed is None or isinstance(seed, (int, np.integer)):
        return [None if seed is None else int(seed) + env_id for env_id in range(num_envs)]
    seeds = list(seed)
    require(len(seeds) == num_envs, "seed", f"a number, None or {num_envs} of such", len(seeds))
    return seeds


def without_mask(options: Info | None, num_envs: int) -> tuple[Info | None, NDArray[np.bool_]]:
    """Return the options for the envs, and which envs to reset."""
    if options is None or "reset_mask" not in options:
        return options, np.ones(num_envs, dtype=bool)
    mask: Any = options["reset_mask"]
    is_mask = isinstance(mask, np.ndarray) and mask.dtype == bool and mask.shape == (num_envs,) and bool(mask.any())
    require(is_mask, "options['reset_mask']", f"a boolean array of shape ({num_envs},), true somewhere", mask)
    return {name: value for name, value in options.items() if name != "reset_mask"}, mask
