"""Numbers in the infos of the envs, one for each episode, and the check that the envs give them.

Shapes: N envs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_ding.envs import Timestep
from lightning_ding.worker.episodes import SUCCESS, SUCCESS_RATE, InfoCheck, Statistic

logger = logging.getLogger(__name__)

PATIENCE = 10
"""Episodes after which a number that none of them gave is taken for a mistake."""
INTERNAL = {"final_obs", "final_info", "abnormal", "fault"}
"""Entries of a vector env's info that are no values of an env."""


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
            self._report_lacking(timestep, int(whole.sum()), lacking)
        return found

    def _report_lacking(self, timestep: Timestep, episodes: int, lacking: set[str]) -> None:
        """Warn of numbers that an episode has not; raise if no step of the first ``PATIENCE`` episodes gave one.

        Args:
            timestep: The step in which episodes ended.
            episodes: Number of the episodes that ended without a fault.
            lacking: Names for which one of them has no number.
        """
        check, both = self._check, (timestep.info.get("final_info"), timestep.info)
        infos = [info for info in both if isinstance(info, dict)]
        names = sorted({name for info in infos for name in info if not name.startswith("_")} - INTERNAL)
        check.episodes += episodes
        for name in sorted(lacking - check.warned):
            check.warned.add(name)
            logger.warning(
                "an episode ended without info[%r], one of info_keys: means leave such episodes out; the info of its "
                "last step has %s", name, names,
            )  # fmt: skip
        never = sorted(lacking - check.seen)
        if not never or check.episodes < PATIENCE:
            return
        given = next((info[never[0]] for info in infos if never[0] in info), None)
        if given is not None:
            raise ValueError(f"info_keys must be names of numbers, but info[{never[0]!r}] of the env is {given[0]!r}")
        raise ValueError(
            f"info_keys must be names of numbers in the info of the env, one of {names}, got {never[0]!r}, which "
            f"none of the first {PATIENCE} episodes gave; an env may give NaN where an episode has no such number"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what was added up in the unfinished episodes."""
        return {"statistics": self.statistics, "totals": self._totals, "counts": self._counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned, for the names that have the same statistic."""
        for name in self._totals:
            if state["statistics"].get(name) == self.statistics[name]:
                self._totals[name], self._counts[name] = state["totals"][name], state["counts"][name]
