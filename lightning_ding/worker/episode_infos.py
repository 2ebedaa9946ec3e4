"""Numbers that envs give in the info of their steps, one for each episode.

Shapes: N envs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from lightning_ding.config import require
from lightning_ding.envs import Timestep
from lightning_ding.worker.episodes import SUCCESS_RATE

logger = logging.getLogger(__name__)

Statistic = Literal["last", "mean", "sum", "max"]
InfoKeys = Mapping[str, Statistic] | Sequence[str] | str
"""Names of numbers in the info of an env, or a mapping from names to statistics over the steps of an episode."""

SUCCESS = "is_success"
TAKEN = ("return_mean", "return_std", "return_min", "return_max", "length_mean", SUCCESS_RATE, "eps", "dropped_episode")
"""Names of other metrics of collecting and evaluating."""
INTERNAL = {"final_obs", "final_info", "abnormal", "fault"}
"""Entries of a vector env's info that are no values of an env."""


def info_statistics(info_keys: InfoKeys) -> dict[str, Statistic]:
    """Return the statistic of each name; ``last`` for names without one.

    Raises:
        ValueError: If a name is empty or that of another metric, or there is no such statistic.

    Example:
        >>> info_statistics(["laps"]), info_statistics({"cost": "sum"})
        ({'laps': 'last'}, {'cost': 'sum'})
    """
    names = [info_keys] if isinstance(info_keys, str) else info_keys
    found: dict[str, Any] = dict(names) if isinstance(names, Mapping) else dict.fromkeys(names, "last")
    for name, statistic in found.items():
        is_name = isinstance(name, str) and bool(name) and name not in TAKEN
        require(is_name, "info_keys", f"names in the info of the env, other than {', '.join(TAKEN)}", name)
        require(statistic in get_args(Statistic), f"info_keys[{name!r}]", f"one of {get_args(Statistic)}", statistic)
    return found


class EpisodeInfos:
    """Add up numbers in the info of N envs, and return one for each name when an episode ends.

    ``last`` is the number that the last step of an episode gives; ``mean``, ``sum`` and ``max`` are over those of its
    steps that give one. An episode without such a number has NaN. The info of a reset does not count.

    Args:
        statistics: Statistic of each name.
        num_envs: Number of envs N.
    """

    def __init__(self, statistics: Mapping[str, Statistic], num_envs: int) -> None:
        self.statistics = dict(statistics)
        over_steps = [name for name, statistic in self.statistics.items() if statistic != "last"]
        self._totals = {name: np.full(num_envs, np.nan) for name in over_steps}  # sums, or maxima
        self._counts = {name: np.zeros(num_envs, dtype=np.int64) for name in over_steps}
        self._unseen = set(self.statistics)
        self._warned: set[str] = set()

    def add(self, timestep: Timestep) -> None:
        """Add the numbers of a step."""
        if self._unseen:
            self._unseen -= {name for name in self._unseen if timestep.gives(name).any()}
        for name, total in self._totals.items():
            given = timestep.number(name)
            has_one = timestep.valid & ~np.isnan(given)
            join = np.fmax if self.statistics[name] == "max" else np.add
            known = np.where(np.isnan(total), given, join(total, given))
            self._totals[name] = np.where(has_one, known, total)
            self._counts[name] += has_one

    def take(self, timestep: Timestep, ended: NDArray[np.bool_]) -> dict[str, NDArray[np.float64]]:
        """Return the numbers of the episodes that ended in the step that was added last, and forget them.

        Args:
            timestep: The step.
            ended: Whether the episode of each env ended, shape (N,).

        Returns:
            Arrays of shape (N,) by name, that of ``info["is_success"]`` first, as ``success_rate``. They mean something
            only where ``ended`` is true.

        Raises:
            ValueError: If an episode ended without a fault, and no step so far has given a number that is asked for.
        """
        whole = ended & ~timestep.abnormal
        if self._unseen and whole.any():
            self._refuse(timestep)
        found = {SUCCESS_RATE: timestep.number(SUCCESS)}
        for name, statistic in self.statistics.items():
            if statistic == "last":
                found[name] = timestep.number(name)
                self._warn_once(name, whole & ~timestep.gives(name))
                continue
            total, count = self._totals[name], self._counts[name]
            found[name] = total / np.maximum(count, 1) if statistic == "mean" else total.copy()
            total[ended], count[ended] = np.nan, 0
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return what was added up in the unfinished episodes."""
        return {"statistics": self.statistics, "totals": self._totals, "counts": self._counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned, for the names that have the same statistic."""
        for name in self._totals:
            if state["statistics"].get(name) == self.statistics[name]:
                self._totals[name], self._counts[name] = state["totals"][name], state["counts"][name]

    def _refuse(self, timestep: Timestep) -> None:
        """Raise for a name that no step has given a number for."""
        name = min(self._unseen)
        infos = [info for info in (timestep.info, timestep.info.get("final_info")) if isinstance(info, dict)]
        given = next((info[name] for info in infos if name in info), None)
        known = sorted({key for info in infos for key in info if not key.startswith("_")} - INTERNAL)
        if given is not None:
            raise ValueError(f"info_keys must be names of numbers, but info[{name!r}] of the env is {given[0]!r}")
        raise ValueError(
            f"info_keys must be names of numbers in the info of the env, one of {known}, got {name!r}, which no step "
            "up to the end of the first episode gave; an env may give NaN where an episode has no such number"
        )

    def _warn_once(self, name: str, lacks: NDArray[np.bool_]) -> None:
        if name not in self._warned and lacks.any():
            self._warned.add(name)
            text = "the last step of an episode gave no info[%r]: the means of %s leave out such episodes"
            logger.warning(text, name, name)
