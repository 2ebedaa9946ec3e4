"""Let the loggers of a resumed run continue the run of the checkpoint: the same folder or id, and each row once."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from lightning_ding.callbacks.csv_rows import CsvRows
from lightning_ding.callbacks.earlier_runs import RunName, continue_run, is_open, is_same_place, run_name, version_of
from lightning_ding.callbacks.tensorboard_returns import continue_events, purge_events
from lightning_ding.callbacks.written_rows import rows_written_by
from lightning_ding.checkpoints.folder import is_newest
from lightning_ding.utils.private_api import observe_checkpoint

logger = logging.getLogger(__name__)


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
