"""Keep a run alive when its loggers cannot write: log the error, and try again with the next metrics."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from lightning_ding.checkpoints.files import UnwritableFolderError, check_writable

logger = logging.getLogger(__name__)

METHODS = ("log_metrics", "log_hyperparams", "log_graph", "save", "finalize", "after_save_checkpoint")
"""Methods of a logger that Lightning and this project call, and that write."""

_failed: WeakSet[Logger] = WeakSet()
"""Loggers whose error has already been logged."""


def prepare_loggers(trainer: Trainer) -> None:
    """Check that the loggers of a Trainer can write, and keep their later errors from ending the run.

    If a logger raises ``OSError`` during the run, for example because the disk is full, the error is logged once and
    the logger is called again the next time. Calling this function again changes nothing.

    Raises:
        UnwritableFolderError: If the folder of a logger of TensorBoard or CSV files cannot be written.
    """
    for one in trainer.loggers:
        if trainer.is_global_zero and isinstance(one, (TensorBoardLogger, CSVLogger)):
            _check_folder(one.log_dir)
        for name in METHODS:
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
    """Call a method of a logger; if that raises ``OSError``, log the error unless it was logged before."""
    try:
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
