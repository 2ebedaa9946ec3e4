"""The loggers of a run: they write over env steps, their errors do not end it, and a resumed run continues them.

Lightning 2.6 offers no public way to change the x axis of ``LearningRateMonitor``, ``DeviceStatsMonitor`` and
``ThroughputMonitor``, which is the number of batches. Their hooks therefore get a Trainer whose loggers take the env
step instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import DeviceStatsMonitor, LearningRateMonitor, ThroughputMonitor
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from lightning_ding.callbacks.csv_rows import CsvRows
from lightning_ding.callbacks.earlier_runs import RunName, continue_run, is_open, is_same_place, run_name, version_of
from lightning_ding.callbacks.tensorboard_returns import continue_events, purge_events
from lightning_ding.callbacks.written_rows import rows_written_by
from lightning_ding.checkpoints.files import UnwritableFolderError, check_writable
from lightning_ding.checkpoints.folder import is_newest
from lightning_ding.utils.private_api import LOGGER_CONNECTOR, observe_checkpoint

logger = logging.getLogger(__name__)

MONITORS = (DeviceStatsMonitor, LearningRateMonitor, ThroughputMonitor)
BATCHES = [f"on_{stage}_batch_{when}" for stage in ("train", "validation", "test") for when in ("start", "end")]
HOOKS = ("on_train_epoch_start", *BATCHES)
"""Hooks in which these monitors log."""
LOGGING = ("log_metrics", "log_hyperparams", "log_graph", "save", "finalize", "after_save_checkpoint")
"""Methods of a logger that write and that Lightning or this project calls."""

_failed: WeakSet[Logger] = WeakSet()
"""Loggers whose error has already been logged."""


class ContinuedLoggers(Callback):
    """Continue the folder, the run and the id of each logger in a resumed fit, and write each row once.

    Every checkpoint contains where its run logs. A logger whose run the user has not chosen continues there if the
    checkpoint is the newest of its run; from an older checkpoint it begins a new run, so that the rows of the old one
    stay. If the user has chosen the run (a ``version``, ``id`` or ``run_id``), it is continued from any checkpoint.

    Rows after the checkpoint are removed from CSV files, and TensorBoard gets a purge step. W&B and MLflow
    cannot remove it, so the resumed run leaves out the numbers that they have.

    This callback must be made before the loggers write, and there must be a new one for each fit.

    Args:
        trainer: The Trainer, in the hook ``configure_callbacks`` of its module.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._loggers: list[Logger] = list(trainer.loggers)
        self._continued: list[Logger] = []
        checkpoint = _checkpoints.get(trainer)
        if trainer.state.fn == "fit" and checkpoint is not None:
            self._continue(trainer, Path(checkpoint))
        if trainer.is_global_zero:
            for one in self._loggers:
                if isinstance(one, CSVLogger):
                    _write_at_once(one, keeps=one in self._continued or trainer.state.fn != "fit")

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Remove what was logged after the checkpoint, on rank zero, once the run is restored."""
        if not trainer.is_global_zero:
            return
        position = pl_module.progress.position
        for one in self._continued:
            rows = rows_written_by(one)
            if isinstance(one, CSVLogger) and isinstance(one.experiment, CsvRows):
                one.experiment.purge({rows.stored_name(name): step for name, step in rows.steps.items()}, position)
            elif isinstance(one, TensorBoardLogger):
                purge_events(one, position)
            rows.begin()

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the run of each logger, and what it has written."""
        runs = [(run_name(one) or {}) | rows_written_by(one).state() for one in self._loggers]
        return {"loggers": runs} if runs else {}

    def _continue(self, trainer: Trainer, checkpoint: Path) -> None:
        runs = _runs_of(checkpoint)
        for one in self._loggers:
            run = _earlier_run(one, runs, checkpoint)
            if run is None:
                continue
            if is_open(one):
                if not is_newest(checkpoint):
                    text = "%s begins a new run, because %s is not the newest checkpoint of %s"
                    rank_zero_warn(text % (type(one).__name__, checkpoint, run["version"]))
                    continue
                continue_run(one, run)
            if runs is not None:
                runs.remove(run)
            self._continued.append(one)
            rows_written_by(one).continue_from(run)
            if trainer.is_global_zero and isinstance(one, TensorBoardLogger):
                continue_events(one)


_checkpoints: WeakKeyDictionary[Trainer, str | None] = WeakKeyDictionary()
"""The checkpoint from which each Trainer resumes in its present call; None for none."""


def note_checkpoint(trainer: Trainer) -> None:
    """Note from which checkpoint a Trainer resumes as soon as it has chosen it. Calling it again changes nothing."""
    observe_checkpoint(trainer, partial(_checkpoints.__setitem__, trainer))


def _runs_of(checkpoint: Path) -> list[RunName] | None:
    """Return the runs of a checkpoint's loggers; None if it does not say them, or cannot be read.

    Lightning raises later for a checkpoint that cannot be read.
    """
    try:
        content = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
        runs: list[RunName] = content["callbacks"][ContinuedLoggers.__qualname__]["loggers"]
    except Exception as error:  # a damaged file may make torch raise anything
        logger.debug("%s does not say where its run logs: %s", checkpoint, error)
        return None
    return [run for run in runs if "kind" in run]


def _earlier_run(one: Logger, runs: list[RunName] | None, checkpoint: Path) -> RunName | None:
    """Return the run that a logger continues; None if it writes elsewhere.

    A run that the user has chosen is that of a checkpoint that does not say its run, such as one of an older version.
    """
    if runs is None:
        return None if is_open(one) else run_name(one)
    found = [run for run in runs if is_same_place(one, run, checkpoint)]
    return next((run for run in found if is_open(one) or run["version"] == version_of(one)), None)


def _write_at_once(one: CSVLogger, keeps: bool) -> None:
    """Make a logger that has not begun write its rows at once, to a file of this machine."""
    if one._experiment is None and type(one).experiment is CSVLogger.experiment and "://" not in one.root_dir:
        one._experiment = CsvRows(one.log_dir, keeps)


def prepare_loggers(trainer: Trainer) -> None:
    """Check that the loggers of a Trainer can write, and keep their later errors from ending the run.

    If a logger raises ``OSError`` during the run, for example because the disk is full, the error is logged once and
    the logger is called again the next time. Calling this function again changes nothing.

    Raises:
        UnwritableFolderError: If the folder of a logger of TensorBoard or CSV files cannot be written.
    """
    if trainer.node_rank == 0:  # on each rank of this machine, which would otherwise wait for rank zero forever
        for one in trainer.loggers:
            if isinstance(one, (TensorBoardLogger, CSVLogger)):
                _check_folder(one.root_dir if is_open(one) or not trainer.is_global_zero else one.log_dir)
    for one in trainer.loggers:
        for name in LOGGING:
            if name not in vars(one) and hasattr(type(one), name):
                setattr(one, name, partial(_call, one, name))


def _check_folder(folder: str) -> None:
    if "://" in folder:  # not on a disk of this machine
        return
    try:
        check_writable(Path(folder))
    except OSError as error:
        raise UnwritableFolderError(
            f"the metrics of this run cannot be written to {folder}: {error}; choose another folder with save_dir of "
            "the logger or default_root_dir of the Trainer"
        ) from error


def _call(one: Logger, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of a logger; if that raises ``OSError``, log the error unless it was logged before.

    Leaves out what a resumed run has written already.
    """
    try:
        if name in ("log_metrics", "log_hyperparams"):
            return getattr(rows_written_by(one), name)(*args, **kwargs)
        return getattr(type(one), name)(one, *args, **kwargs)
    except (OSError, ValueError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__  # TensorBoardLogger turns it into a ValueError
        if not isinstance(cause, OSError):
            raise
        if one not in _failed:
            _failed.add(one)
            text = "%s could not write metrics: %s; the run continues without them, and the next ones are tried again"
            logger.error(text, type(one).__name__, cause)
    return None


def log_over_env_steps(trainer: Trainer) -> None:
    """Make Lightning's monitors among a Trainer's callbacks log over env steps. Calling it again changes nothing."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        for hook in HOOKS if isinstance(callback, MONITORS) else ():
            if hook not in vars(callback):
                setattr(callback, hook, _with_env_steps(getattr(callback, hook)))


def _with_env_steps(hook: Callable[..., Any]) -> Callable[..., Any]:
    def call(trainer: Trainer, pl_module: Any, *args: Any, **kwargs: Any) -> Any:
        return hook(_TrainerView(trainer, pl_module.progress), pl_module, *args, **kwargs)

    return call


class _View:
    """Pass every attribute through to another object, which is not changed."""

    def __init__(self, viewed: Any, progress: Any) -> None:
        self._viewed, self._progress = viewed, progress

    def __getattr__(self, name: str) -> Any:
        return getattr(self._viewed, name)


class _TrainerView(_View):
    @property
    def loggers(self) -> list[_LoggerView]:
        return [_LoggerView(logger, self._progress) for logger in self._viewed.loggers]

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        return _LoggerView(value, self._progress) if name == LOGGER_CONNECTOR else value


class _LoggerView(_View):
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self._viewed.log_metrics(metrics, step=self._progress.position)
