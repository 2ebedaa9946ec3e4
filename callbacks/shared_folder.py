"""Shared parts of the checkpoint callbacks: the folder of a run's checkpoints, and errors of writing them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import proxy

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import MLFlowLogger
from lightning.pytorch.utilities import rank_zero_warn

from lightning_ding.checkpoints import RUN_FILE
from lightning_ding.checkpoints.lightning_file import AnotherRankError

logger = logging.getLogger(__name__)


class SharedFolder:
    """Mixin of the checkpoint callbacks, which write to the folder that :func:`checkpoint_folder` returns.

    If a checkpoint cannot be written, an error is logged and the run continues. A run whose newest checkpoint could not
    be written ends with an ``OSError``, so that it does not seem to have succeeded.
    """

    dirpath: Any
    """Folder that the user chose; None for a subfolder of the logger's folder."""
    filename: str
    """Name of the checkpoint, without ``.ckpt``."""
    kind: str
    """Kind of checkpoint, such as ``"best"``, for messages."""
    _folder: Path | None = None
    _error: OSError | None = None
    """The error of the newest attempt to write a checkpoint, if it failed."""

    @property
    def written(self) -> str:
        """Path of the newest checkpoint that this callback wrote; empty if there is none."""
        raise NotImplementedError

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Reset at the start of a fit."""
        if stage == "fit":
            self._folder = self._error = None

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Raise if the newest checkpoint could not be written.

        Raises:
            OSError: If the newest attempt to write it failed.
        """
        if self._error is not None:
            earlier = f"the last complete one is {self.written}" if self.written else "there is no earlier one"
            raise OSError(
                f"the {self.kind} checkpoint of this run could not be written ({self._error}); {earlier}"
            ) from self._error

    def _attempt(self, trainer: Trainer, env_step: int, write: Callable[[Path], None]) -> None:
        """Write a checkpoint to the folder and announce it to the loggers; if that fails, log the error."""
        self._folder = self._folder or checkpoint_folder(trainer, self.dirpath)
        try:
            write(self._folder)
        except OSError as error:
            self._error = error
            if trainer.is_global_zero or not isinstance(error, AnotherRankError):
                logger.error(
                    "the %s checkpoint of env step %d could not be written to %s: %s. Training continues; the previous "
                    "checkpoint is kept, and the next one is written as usual",
                    self.kind,
                    env_step,
                    self._folder,
                    error,
                )
            return
        self._error = None
        if trainer.is_global_zero:
            for one in trainer.loggers:  # those with ``log_model`` upload it
                if not (self._resumes_only(trainer) and isinstance(one, MLFlowLogger)):
                    one.after_save_checkpoint(proxy(self))

    def _resumes_only(self, trainer: Trainer) -> bool:
        """Return whether another callback saves the policy to use, and this one the run.

        An ``MLFlowLogger`` with ``log_model=True`` uploads only the checkpoint of the callback that was announced last.
        """
        return self.kind == "last" and len(trainer.checkpoint_callbacks) > 1


def checkpoint_folder(trainer: Trainer, dirpath: str | Path | None) -> Path:
    """Return the folder of this run's checkpoints. All ranks must call it, before they write the first checkpoint.

    It is ``dirpath``, or else the folder to which Lightning's ``ModelCheckpoint`` would write. If that folder contains
    checkpoints of another run, it is the first unused one of its subfolders ``v1``, ``v2`` and so on. A run that was
    resumed from a checkpoint in one of these folders continues in it, and so does a later fit with the same callbacks.

    Args:
        trainer: The Trainer, during a fit.
        dirpath: Folder that the user chose; None for a subfolder of the logger's folder.

    Returns:
        The folder, the same on every rank.
    """
    base = Path(dirpath) if dirpath is not None else _default_folder(trainer)
    found = _folder_of_run(trainer, base) if trainer.is_global_zero else base
    folder = trainer.strategy.broadcast(found)
    if folder != base:
        rank_zero_warn(f"{base} contains checkpoints of another run; those of this run go to {folder}")
    return folder


def run_root(trainer: Trainer, dirpath: str | Path | None) -> Path:
    """Return the folder to search for checkpoints of earlier runs.

    It is ``dirpath``, or else the folder with all versions of the first logger, or ``checkpoints`` in the Trainer's
    ``default_root_dir`` if there is no logger.
    """
    if dirpath is not None:
        return Path(dirpath)
    if not trainer.loggers:
        return Path(trainer.default_root_dir) / "checkpoints"  # the root itself may hold other runs
    logger = trainer.loggers[0]
    return Path(logger.save_dir or trainer.default_root_dir) / str(logger.name)


def _default_folder(trainer: Trainer) -> Path:
    """Return ``save_dir/name/version/checkpoints`` of the first logger, as Lightning's ``ModelCheckpoint`` does."""
    root = run_root(trainer, None)
    if not trainer.loggers:
        return root
    version = trainer.loggers[0].version
    return root / (version if isinstance(version, str) else f"version_{version}") / "checkpoints"


def _folder_of_run(trainer: Trainer, base: Path) -> Path:
    """Return ``base`` or its subfolder that this run wrote to or was resumed from, else the first unused one."""
    sharing = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, SharedFolder)]
    folders = [base]
    while any(_has_checkpoint(folders[-1], callback.filename) for callback in sharing):
        folders.append(base / f"v{len(folders)}")
    for file in (trainer.ckpt_path, *(callback.written for callback in sharing)):
        parents = Path(file).resolve().parents if file else ()
        for folder in reversed(folders):  # ``base`` is a parent of the others, so it comes last
            if folder.resolve() in parents:
                return folder
    return folders[-1]


def _has_checkpoint(folder: Path, name: str) -> bool:
    return (folder / f"{name}.ckpt").exists() or any(folder.glob(f"{name}-*/{RUN_FILE}"))
