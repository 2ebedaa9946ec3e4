"""The interface between the datamodule of a run and its callbacks and policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from gymnasium import spaces
from lightning.pytorch import Callback, Trainer

from lightning_ding.config import require

RETURN = "eval/return_mean"
Direction = Literal["max", "min"]
MonitorLike = str | Mapping[str, Direction]
"""A metric to maximise, or a mapping of one metric to ``"max"`` or ``"min"``."""


@dataclass(frozen=True)
class Monitor:
    """The metric by which a run chooses its best policy.

    Example:
        >>> Monitor.of({"eval/length_mean": "min"}).is_better(9.0, than=10.0)
        True
    """

    metric: str = RETURN
    """Name of a metric in ``trainer.callback_metrics``."""
    mode: Direction = "max"
    """Whether the largest or the smallest value is the best."""

    @classmethod
    def of(cls, given: MonitorLike) -> Monitor:
        """Return the monitor that an option describes.

        Raises:
            ValueError: If it is neither a metric nor a mapping of one metric to a direction.
        """
        entries: dict[str, Any] = {given: "max"} if isinstance(given, str) else dict(given)
        allowed = "the name of a metric, such as eval/success_rate, or a mapping of one to max or min"
        require(len(entries) == 1, "monitor", allowed, given)
        ((metric, mode),) = entries.items()
        is_name = bool(metric) and metric[0] not in "{["  # a mapping that could not be read
        require(is_name and mode in ("max", "min"), "monitor", allowed, given)
        return cls(metric, mode)

    @property
    def worst(self) -> float:
        """The value that every other one is better than."""
        return -math.inf if self.mode == "max" else math.inf

    @property
    def name(self) -> str:
        """Name for a reader: ``return`` for the mean return of evaluations."""
        return "return" if self.metric == RETURN else self.metric

    def is_better(self, value: float, than: float) -> bool:
        """Return whether a value is better than another one; NaN never is."""
        return value > than if self.mode == "max" else value < than

    def reaches(self, value: float, goal: float) -> bool:
        """Return whether a value is at least as good as a goal.

        Metrics are of single precision, in which 9 of 10 is less than 0.9, so the goal is rounded to it too.
        """
        rounded = float(np.float32(goal))
        return value >= rounded if self.mode == "max" else value <= rounded

    def value(self, trainer: Trainer) -> float | None:
        """Return the newest value after an evaluation; None for a metric of collecting before an episode has ended.

        Raises:
            KeyError: If the metric is not logged.
        """
        metrics = trainer.callback_metrics
        if self.metric in metrics:
            return float(metrics[self.metric])
        if self.metric.startswith("collect/") and "collect/return_mean" not in metrics:
            return None
        raise KeyError(f"monitor must be a logged metric, one of {sorted(metrics)}, got {self.metric!r}")


class EnvAccess(Sequence[Any]):
    """Access to the training or evaluation envs of a run; this base class is that of a run without such envs.

    As a sequence, it has the env objects of this process: those of ``mode="sync"``, and none with other modes.

    Args:
        reason: Reason why there are no envs, for the errors of all methods.
    """

    def __init__(self, reason: str = "the datamodule of this run collects no data") -> None:
        self._reason = reason

    def __len__(self) -> int:
        return 0

    def __getitem__(self, place: Any) -> Any:
        return ()[place]

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the result of a method of each env, once; a new env process does not get the call again."""
        raise self._refusal()

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each env."""
        raise self._refusal()

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env, from a list or tuple with a value for each env, or one value for all."""
        raise self._refusal()

    def configure(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Call a method of each env that sets something; the last call of each method is repeated in new envs."""
        raise self._refusal()

    def set_reset_options(self, options: Mapping[str, Any] | None) -> None:
        """Pass ``options`` to all following resets of each env; None passes none."""
        raise self._refusal()

    def _refusal(self) -> RuntimeError:
        return RuntimeError(f"there are no such envs: {self._reason}")


class RunData:
    """The part of a datamodule's interface that callbacks and policies use.

    These defaults fit a datamodule that neither collects nor evaluates. Other datamodules derive from this class and
    override them. Use :func:`run_data` to get the datamodule of a Trainer.
    """

    max_env_step: int | None = None
    """Env steps of the whole run, over all ranks; None for no limit."""
    monitor: Monitor = Monitor()
    """The metric by which the best policy is chosen."""
    info_keys: Mapping[str, Any] = MappingProxyType({})
    """Numbers in the info of the env that are logged, with their statistics."""
    eval_every: int | None = None
    """Env steps, or updates without envs, between two evaluations; None if rounds are counted."""
    checkpoint_every: int | None = None
    """Env steps, or updates without envs, between two checkpoints; None for one after each evaluation."""
    has_rank_state: ClassVar[bool] = False
    """Whether each rank has a separate state to save, such as a replay buffer."""
    rank_folder: str | None = None
    """Name of the folder with the state of the ranks, which ``RunCheckpoint`` sets while it writes a checkpoint."""

    def default_callbacks(self, trainer: Trainer) -> list[Callback]:
        """Return the callbacks that a run needs and ``trainer`` does not have yet."""
        return []

    def pop_episodes(self) -> tuple[list[float], list[int]]:
        """Return the returns and lengths of the episodes that ended on this rank since the last call."""
        return [], []

    def pop_episode_sums(self) -> tuple[float, float, int]:
        """Return the sum of returns, the sum of lengths and the number of the episodes since the last call.

        They are of this rank. It is called before :meth:`pop_infos`, on all ranks.
        """
        returns, lengths = self.pop_episodes()
        return float(sum(returns)), float(sum(lengths)), len(returns)

    def pop_infos(self) -> dict[str, tuple[float, int]]:
        """Return the sum of each number of the infos, and the number of episodes that had it, since the last call.

        They are of the episodes of this rank, by name: ``success_rate`` and those of :attr:`info_keys`, on every rank.
        """
        return {}

    def keep_records(self) -> None:
        """Keep a record of each episode that ends from now on, for :meth:`pop_records`.

        Raises:
            ValueError: If nothing is collected.
        """
        raise ValueError("EpisodeRecord needs a datamodule that collects episodes: leave it out")

    def pop_records(self) -> list[tuple[float, ...]]:
        """Return the episodes of this rank since the last call.

        Returns:
            For each the env step of the run at its end, its return, its length, and the numbers of :meth:`pop_infos`,
            NaN where there is none.
        """
        return []

    def pop_metrics(self) -> dict[str, float]:
        """Return the metrics of the collection and of the buffer since the last call, by full name."""
        return {}

    def training_envs(self) -> EnvAccess:
        """Return the access to the envs that are collected in, see :class:`~lightning_ding.envs.EnvHandle`."""
        return EnvAccess()

    def evaluation_envs(self) -> EnvAccess:
        """Return the access to the envs of evaluations, see :class:`~lightning_ding.envs.EnvHandle`."""
        return EnvAccess("the datamodule of this run does not evaluate")

    def env_settings(self) -> str:
        """Return what was set in training and evaluation envs, for collectors in other processes; "" for nothing."""
        return ""

    def steps_made(self) -> int:
        """Return the env steps made on this rank so far, in training and in evaluations.

        May be called from any thread.
        """
        return 0

    def env_in_progress(self) -> str | None:
        """Return which env is in which step or reset now, or None if no env is or it is unknown.

        May be called from any thread.
        """
        return None

    def request_cancel(self, is_requested: bool) -> None:
        """Request that an evaluation or a wait for data ends early, or withdraw that request.

        May be called from any thread.
        """

    def note_written(self, folder: Path) -> None:
        """Look at the folder of a checkpoint, all files of which have been written."""

    def save_rank_state(self, folder: Path, with_buffer: bool = True) -> None:
        """Write the state of this rank, if :attr:`has_rank_state`.

        Args:
            folder: Folder of this rank.
            with_buffer: Whether to write the replay buffer.

        Raises:
            OSError: If the state cannot be written.
        """


@runtime_checkable
class HasSpaces(Protocol):
    """A datamodule with the spaces of one env, from which a policy makes its network."""

    single_observation_space: spaces.Space[Any]
    single_action_space: spaces.Space[Any]


def run_data(trainer: Trainer) -> RunData:
    """Return the datamodule of a Trainer if it is a :class:`RunData`, otherwise a plain :class:`RunData`."""
    datamodule = trainer.datamodule  # type: ignore[attr-defined]
    return datamodule if isinstance(datamodule, RunData) else RunData()


def return_text(value: float) -> str:
    """Return a mean return with one decimal, or with three if it is between -10 and 10.

    A return of 1 is the best of many games and grid worlds, so there 0.96 and 1.0 must differ.

    Examples:
        >>> return_text(487.25), return_text(-1234.5), return_text(0.955)
        ('487.2', '-1234.5', '0.955')
    """
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"
