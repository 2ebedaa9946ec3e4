"""Counts of episodes: quotas, returns and faults, and the names of the numbers in the infos of the envs.

The numbers themselves are added up in ``worker/infos.py``.

Shapes: N envs, E episodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from lightning_ding.config import require

logger = logging.getLogger(__name__)

MAX_FAULTS = 100  # consecutive faults of one env; an env that never recovers would otherwise block the run
LOGGED_FAULTS = 10
"""Faults of a worker that are logged one by one; later ones each time that their number is a multiple of 100."""
SUCCESS_RATE = "success_rate"
"""Name of the metric of ``info["is_success"]``, which is logged for each env that gives it."""
Statistic = Literal["last", "mean", "sum", "max"]
STATISTICS: tuple[str, ...] = get_args(Statistic)
InfoKeys = Mapping[str, Statistic] | Sequence[str] | str
"""Names of numbers in the info of an env, or a mapping from names to statistics over the steps of an episode."""

SUCCESS = "is_success"
TAKEN = ("return_mean", "return_std", "return_min", "return_max", "length_mean", SUCCESS_RATE, "eps", "dropped_episode")
"""Names of other metrics of collecting and evaluating."""
SAVED = {
    "envstep": "_envstep",
    "sample": "sample",
    "episode": "_episode",
    "dropped_episode": "dropped_episode",
    "next_episode_id": "_next_episode_id",
    "returns": "_returns",
    "lengths": "_lengths",
    "dropped_ids": "_dropped_ids",
    "infos": "_infos",
}
"""Attributes of the statistics, and their names in checkpoints."""


def share_out(n_episode: int, num_envs: int, turn: int = 0) -> NDArray[np.int64]:
    """Return the quota of each env: E // N episodes, and one more for the E % N envs whose turn it is.

    If ``turn`` grows by E after every call, the total quotas of any two envs never differ by more than one.

    Args:
        n_episode: Number of episodes E, >= 1.
        num_envs: Number of envs N, >= 1.
        turn: Index of the first env that gets one more episode; counted modulo N.

    Returns:
        Shape (N,).

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> share_out(n_episode=5, num_envs=3, turn=2)
        array([2, 1, 2])
    """
    require(n_episode >= 1, "n_episode", ">= 1", n_episode)
    require(num_envs >= 1, "num_envs", ">= 1", num_envs)
    place_in_turn = (np.arange(num_envs) - turn) % num_envs
    return n_episode // num_envs + (place_in_turn < n_episode % num_envs).astype(np.int64)


class EpisodeStatistics:
    """Counters of a collector, on its own rank, and the returns and lengths of the episodes that ended.

    Example:
        >>> statistics = EpisodeStatistics()
        >>> statistics.new_episode_ids(2).tolist()
        [0, 1]
        >>> statistics.add_episodes([1.0, 3.0], [4, 6])
        >>> statistics.episode, statistics.pop_episodes(), statistics.pop_episodes()
        (2, ([1.0, 3.0], [4, 6]), ([], []))
    """

    keeps_records = False
    """Whether ``records`` is filled."""
    info_keys: Mapping[str, Statistic] = MappingProxyType({})
    """Numbers in the info that :meth:`pop_infos` returns, with their statistics; a change counts from the next
    ``reset_env``. Collectors of several players return none."""

    def __init__(self) -> None:
        self.clear_counters()

    def clear_counters(self) -> None:
        """Set all counters to zero and remove the episodes."""
        self.envstep = 0
        """Environment steps; a resumed run sets them."""
        self.sample = 0
        """Transitions that were returned."""
        self.episode = 0
        """Episodes that ended without a fault."""
        self.dropped_episode = 0
        """Number of episodes that were dropped after an env fault. They are not counted as episodes."""
        self.next_episode_id = 0
        """Identifier of the next episode that begins."""
        self.returns: list[float] = []
        """Returns of the episodes since the last :meth:`pop_episodes`; of several players those of the first one."""
        self.lengths: list[int] = []
        """Env steps of these episodes."""
        self.dropped_ids: list[int] = []
        """Identifiers of the dropped episodes since the last :meth:`pop_dropped_episodes`."""
        self.infos: dict[str, tuple[float, int]] = {}
        """Sum of each number of the infos, and number of episodes that had it, since the last :meth:`pop_infos`."""
        self.records: list[tuple[float, ...]] = []
        """Records of the episodes since the last :meth:`pop_records`; empty unless ``keeps_records`` is set."""

    def new_episode_ids(self, amount: int) -> NDArray[np.int64]:
        """Return identifiers for a number of episodes that begin."""
        self.next_episode_id += amount
        return np.arange(self.next_episode_id - amount, self.next_episode_id)

    def skip_episode_ids(self, first: int) -> None:
        """Give episodes that begin from now on ids >= ``first``, so that they differ from those in a buffer."""
        self.next_episode_id = max(first, self.next_episode_id)

    def add_episodes(
        self,
        returns: Sequence[float],
        lengths: Sequence[int],
        is_recorded: bool = True,
        infos: Mapping[str, NDArray[np.float64]] | None = None,
    ) -> None:
        """Count episodes that ended without a fault.

        Args:
            returns: Return of each episode.
            lengths: Env steps of each episode.
            is_recorded: Whether :meth:`pop_episodes`, :meth:`pop_infos` and :meth:`pop_records` report them.
            infos: Numbers of each episode by name, NaN where there is none; None for no names.
        """
        self.episode += len(returns)
        if is_recorded:
            self.returns += returns
            self.lengths += lengths
            for name, values in (infos or {}).items():
                known, (total, count) = values[~np.isnan(values)], self.infos.get(name, (0.0, 0))
                self.infos[name] = total + float(known.sum()), count + len(known)
            if self.keeps_records:
                columns = [values.tolist() for values in (infos or {}).values()]
                self.records += zip([self.envstep] * len(returns), returns, lengths, *columns, strict=True)

    def pop_episodes(self) -> tuple[list[float], list[int]]:
        """Return the returns, of several players the first one's, and lengths of the episodes since the last call."""
        episodes, self.returns, self.lengths = (self.returns, self.lengths), [], []
        return episodes

    def pop_infos(self) -> dict[str, tuple[float, int]]:
        """Return the sum of each number of the infos, and the number of episodes that had it, since the last call."""
        found, self.infos = self.infos, {}  # of a resumed run, maybe with names that it had before
        return {name: found.get(name, (0.0, 0)) for name in (SUCCESS_RATE, *self.info_keys)}

    def keep_records(self) -> None:
        """Keep a record of each episode that ends from now on, for :meth:`pop_records`."""
        self.keeps_records = True

    def pop_records(self) -> list[tuple[float, ...]]:
        """Return ``envstep`` at its end, return, length and numbers of the infos of each episode since the last call.

        The numbers are in the order of :meth:`pop_infos`.
        """
        found, self.records = self.records, []
        return found

    def pop_dropped_episodes(self) -> list[int]:
        """Return the ``episode_id`` of the episodes that were dropped after an env fault since the last call."""
        dropped, self.dropped_ids = self.dropped_ids, []
        return dropped

    def counters(self) -> dict[str, Any]:
        """Return all counters and episodes."""
        return {saved: getattr(self, name) for name, saved in SAVED.items()}

    def load_counters(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`counters` returned."""
        for name, saved in SAVED.items():
            setattr(self, name, state.get(saved, {}) if name == "infos" else state[saved])  # older ones lack them


class FaultCounter:
    """Counts the faults of each env since its last success, and decides when they end the run.

    Args:
        num_envs: Number of envs N.
        env_fault: ``raise`` to end the run at the first fault, ``drop`` to continue without the episode.
        success: Name of the event that resets the count of an env, for the message, such as "good step".
    """

    def __init__(self, num_envs: int, env_fault: str, success: str) -> None:
        self.count = np.zeros(num_envs, dtype=np.int64)
        """Faults of each env since its last success, shape (N,)."""
        self._env_fault = env_fault
        self._success = success
        self._handled = 0  # dropped episodes

    def handle(self, abnormal: NDArray[np.bool_], fault_of: Callable[[int], str | None]) -> None:
        """Raise if the config does not allow faults, or an env reported too many; call it after counting.

        Args:
            abnormal: Whether each env reported a fault in this step, shape (N,); at least one did.
            fault_of: Function that returns the description of an env's fault.

        Raises:
            RuntimeError: Naming the env and its fault.
        """
        first = int(abnormal.argmax())
        if self._env_fault == "raise":
            raise RuntimeError(
                f"env {first} reported a fault: {fault_of(first)}; "
                'with env_fault="drop" the collector drops the episode and continues'
            )
        worst = int((self.count * abnormal).argmax())
        if self.count[worst] > MAX_FAULTS:
            raise RuntimeError(
                f"env {worst} reported {self.count[worst]} faults without a {self._success} between, the last one: "
                f"{fault_of(worst)}"
            )
        for env_id in np.flatnonzero(abnormal).tolist():
            self._handled += 1
            if self._handled <= LOGGED_FAULTS or self._handled % 100 == 0:
                what = "env %d reported a fault, so its episode is dropped (%d so far): %s"
                logger.warning(what, env_id, self._handled, fault_of(env_id))


def mean_infos(infos: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    """Return the mean of each number of the infos over the episodes that have it; NaN if none has.

    An env without ``info["is_success"]`` has no ``success_rate``.

    Example:
        >>> mean_infos({"success_rate": np.array([np.nan]), "laps": np.array([2.0, np.nan, 3.0])})
        {'laps': 2.5}
    """
    means: dict[str, float] = {}
    for name, values in infos.items():
        known = values[~np.isnan(values)]
        if len(known) or name != SUCCESS_RATE:
            means[name] = float(known.mean()) if len(known) else float("nan")
    return means


def summary(returns: Sequence[float] | NDArray[np.float64], name: str = "return") -> dict[str, float]:
    """Return mean, standard deviation, minimum and maximum of returns as ``{name}_mean`` and so on.

    Example:
        >>> summary([1.0, 3.0])
        {'return_mean': 2.0, 'return_std': 1.0, 'return_min': 1.0, 'return_max': 3.0}
    """
    return {
        f"{name}_mean": float(np.mean(returns)),
        f"{name}_std": float(np.std(returns)),
        f"{name}_min": float(np.min(returns)),
        f"{name}_max": float(np.max(returns)),
    }


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


@dataclass
class InfoCheck:
    """The numbers of the infos that envs have given, and the missing ones. The workers of a run on a rank share one."""

    seen: set[str] = field(default_factory=set)
    """Names that a step has given a number for, which may be NaN."""
    warned: set[str] = field(default_factory=set)
    """Names for which a warning was logged."""
    episodes: int = 0
    """Episodes that ended while a number was missing."""
