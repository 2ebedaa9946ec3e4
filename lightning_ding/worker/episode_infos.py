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
STATISTICS: tuple[str, ...] = get_args(Statistic)
InfoKeys = Mapping[str, Statistic] | Sequence[str] | str
"""Names of numbers in the info of an env, or a mapping from names to statistics over the steps of an episode."""

SUCCESS = "is_success"
TAKEN = ("return_mean", "return_std", "return_min", "return_max", "length_mean", SUCCESS_RATE, "eps", "dropped_episode")
"""Names of other metrics of collecting and evaluating."""
PATIENCE = 10
"""Episodes after which a number that none of them gave is taken for a mistake."""
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
        is_text = isinstance(name, str) and bool(name) and name[0] not in "{["  # a mapping that could not be read
        allowed = (
            f"names in the info of the env, other than {', '.join(TAKEN)}, or a mapping from names to {STATISTICS}"
        )
        require(is_text and name not in TAKEN, "info_keys", allowed, name)
        require(statistic in STATISTICS, f"info_keys[{name!r}]", f"one of {STATISTICS}", statistic)
    return found


class InfoCheck:
    """Find out whether an env gives the numbers that are asked for. The workers of a run on a rank share one."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        """Names that a step has given a number for, which may be NaN."""
        self._warned: set[str] = set()
        self._episodes = 0

    def end(self, timestep: Timestep, episodes: int, lacking: set[str]) -> None:
        """Count episodes that ended in a step without a fault.

        Args:
            timestep: The step.
            episodes: Number of these episodes.
            lacking: Names for which one of them has no number.

        Raises:
            ValueError: If no step of the first ``PATIENCE`` episodes gave one of these numbers.
        """
        self._episodes += episodes
        for name in sorted(lacking - self._warned):
            self._warned.add(name)
            logger.warning(
                "an episode ended without info[%r], one of info_keys: means leave such episodes out; the info of its "
                "last step has %s", name, _names(timestep),
            )  # fmt: skip
        never = sorted(lacking - self.seen)
        if never and self._episodes >= PATIENCE:
            _refuse(never[0], timestep)


class EpisodeInfos:
    """Add up numbers in the info of N envs, and return one for each name when an episode ends.

    ``last`` is the number that the last step of an episode gives; ``mean``, ``sum`` and ``max`` are over those of its
    steps that give one. An episode without such a number has NaN. The info of a reset does not count.

    Args:
        statistics: Statistic of each name.
        num_envs: Number of envs N.
        check: The check that the env gives these numbers.
    """

    def __init__(self, statistics: Mapping[str, Statistic], num_envs: int, check: InfoCheck) -> None:
        self.statistics = dict(statistics)
        over_steps = [name for name, statistic in self.statistics.items() if statistic != "last"]
        self._totals = {name: np.full(num_envs, np.nan) for name in over_steps}  # sums, or maxima
        self._counts = {name: np.zeros(num_envs, dtype=np.int64) for name in over_steps}
        self._check = check

    def add(self, timestep: Timestep) -> None:
        """Add the numbers of a step."""
        unseen = self.statistics.keys() - self._check.seen
        self._check.seen |= {name for name in unseen if timestep.gives(name).any()}
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
            ValueError: If none of the first ``PATIENCE`` episodes gave a number that is asked for.
        """
        whole, found = ended & ~timestep.abnormal, {SUCCESS_RATE: timestep.number(SUCCESS)}
        lacking = {name for name in self.statistics if name not in self._check.seen and whole.any()}
        for name, statistic in self.statistics.items():
            if statistic == "last":
                found[name] = timestep.number(name)
                lacking |= {name} if (whole & ~timestep.gives(name)).any() else set()
                continue
            total, count = self._totals[name], self._counts[name]
            found[name] = total / np.maximum(count, 1) if statistic == "mean" else total.copy()
            total[ended], count[ended] = np.nan, 0
        if lacking:
            self._check.end(timestep, int(whole.sum()), lacking)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return what was added up in the unfinished episodes."""
        return {"statistics": self.statistics, "totals": self._totals, "counts": self._counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned, for the names that have the same statistic."""
        for name in self._totals:
            if state["statistics"].get(name) == self.statistics[name]:
                self._totals[name], self._counts[name] = state["totals"][name], state["counts"][name]


def _infos(timestep: Timestep) -> list[dict[str, Any]]:
    return [info for info in (timestep.info.get("final_info"), timestep.info) if isinstance(info, dict)]


def _names(timestep: Timestep) -> list[str]:
    """Return the names in the infos of a step."""
    return sorted({name for info in _infos(timestep) for name in info if not name.startswith("_")} - INTERNAL)


def _refuse(name: str, timestep: Timestep) -> None:
    """Raise for a name that no step has given a number for."""
    given = next((info[name] for info in _infos(timestep) if name in info), None)
    if given is not None:
        raise ValueError(f"info_keys must be names of numbers, but info[{name!r}] of the env is {given[0]!r}")
    raise ValueError(
        f"info_keys must be names of numbers in the info of the env, one of {_names(timestep)}, got {name!r}, which "
        f"none of the first {PATIENCE} episodes gave; an env may give NaN where an episode has no such number"
    )
