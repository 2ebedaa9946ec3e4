"""The interface between the datamodule of a run and its callbacks and policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from gymnasium import spaces
from lightning.pytorch import Callback, Trainer


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

    def pop_successes(self) -> tuple[float, int]:
        """Return the sum of ``info["is_success"]`` of episodes on this rank since the last call, and their number."""
        return 0.0, 0

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
