"""The folder of a run's checkpoints, and functions with which all ranks write one checkpoint together.

A checkpoint is first written under a temporary name and then renamed, so that its final name always refers to a
complete one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import proxy

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from lightning_ding.checkpoints import RUN_FILE, save_object
from lightning_ding.checkpoints.files import sync

logger = logging.getLogger(__name__)


class SharedFolder:
    """Mixin of the checkpoint callbacks that write to the folder which :func:`checkpoint_folder` returns."""

    filename: str
    """Name of the checkpoint, without ``.ckpt``."""

    @property
    def written(self) -> str:
        """Path of the newest checkpoint that this callback wrote; empty if there is none."""
        raise NotImplementedError


def checkpoint_folder(trainer: Trainer, dirpath: str | Path | None) -> Path:
    """Return the folder of this run's checkpoints. All ranks must call it, before they write the first checkpoint.

    It is ``dirpath``, or else the folder to which Lightning's ``ModelCheckpoint`` would write. If that holds the
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
        rank_zero_warn(f"{base} holds checkpoints of another run; those of this run go to {folder}")
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
    """Return the folder from which this run comes if it is ``base`` or a subfolder of it, else the first unused one."""
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


def notify_loggers(trainer: Trainer, callback: Checkpoint) -> None:
    """Announce a new checkpoint to the loggers, so that those with ``log_model`` upload it."""
    if trainer.is_global_zero:
        for logger in trainer.loggers:
            logger.after_save_checkpoint(proxy(callback))


def save_checkpoint(trainer: Trainer, file: Path) -> None:
    """Write a Lightning checkpoint under a temporary name and rename it. All ranks must call it.

    Raises:
        OSError: On all ranks, if it cannot be written; ``file`` is then unchanged.
    """
    temporary = file.with_name(f".{file.name}.tmp")

    def rename() -> None:
        os.replace(temporary, file)
        sync(file.parent)

    try:
        on_every_rank(trainer, lambda: file.parent.mkdir(parents=True, exist_ok=True), only_zero=True)
        write_lightning_file(trainer, temporary)
        on_every_rank(trainer, rename, only_zero=True)
    except OSError:
        if trainer.is_global_zero:
            temporary.unlink(missing_ok=True)
        raise


class AnotherRankError(OSError):
    """Another rank could not write its part; the error of that rank gives the reason."""


class _SyncedIO(TorchCheckpointIO):
    """Writes a checkpoint straight to the disk, and stores an ``OSError`` instead of raising it.

    ``Trainer.save_checkpoint`` (Lightning 2.6) ends with a barrier. If writing raised, rank 0 would never reach that
    barrier and the other ranks would wait forever. Lightning's own writer also makes two copies of the checkpoint in
    memory.
    """

    def __init__(self) -> None:
        self.error: OSError | None = None

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint, or store the error."""
        try:
            save_object(checkpoint, Path(path))
        except OSError as error:
            self.error = error

    def check(self) -> None:
        """Raise the error of the last write, if there was one."""
        if self.error is not None:
            raise self.error


def on_every_rank(trainer: Trainer, step: Callable[[], object], only_zero: bool = False) -> None:
    """Run a function on every rank; if it raises ``OSError`` on one of them, raise on all. All ranks must call it.

    Args:
        trainer: The Trainer whose ranks take part.
        step: Function to run; it must not wait for another rank.
        only_zero: Whether to run it on rank 0 only.

    Raises:
        OSError: The error of this rank, or :class:`AnotherRankError`.
    """
    failure: OSError | None = None
    if trainer.is_global_zero or not only_zero:
        try:
            step()
        except OSError as error:
            failure = error
    if not trainer.strategy.reduce_boolean_decision(failure is None, all=True):
        raise failure or AnotherRankError("another rank could not write its part")


def write_lightning_file(trainer: Trainer, file: Path) -> None:
    """Write a Lightning checkpoint. All ranks must call it.

    Raises:
        OSError: On all ranks, if it cannot be written.
    """
    strategy, writer = trainer.strategy, _SyncedIO()
    own, strategy.checkpoint_io = strategy.checkpoint_io, writer
    try:
        trainer.save_checkpoint(file, weights_only=False)
    finally:
        strategy.checkpoint_io = own
    on_every_rank(trainer, writer.check)


class SavingFailure:
    """The error of the newest attempt to write a checkpoint, if that attempt failed.

    Args:
        what: Kind of checkpoint, such as ``"best"``, for messages.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._error: OSError | None = None

    def clear(self) -> None:
        """Record that the newest attempt succeeded."""
        self._error = None

    def record(self, trainer: Trainer, path: object, env_step: int, error: OSError) -> None:
        """Record a failure, and log it on rank zero and on the rank where it happened."""
        self._error = error
        if trainer.is_global_zero or not isinstance(error, AnotherRankError):
            logger.error(
                "THE %s CHECKPOINT OF ENV STEP %d WAS NOT WRITTEN to %s: %s. The previous one is kept; training "
                "continues and tries again at the next one",
                self._what.upper(),
                env_step,
                path,
                error,
            )

    def check(self, previous: str) -> None:
        """Raise if the newest attempt failed, so that no run seems to have succeeded without its checkpoint.

        Args:
            previous: Path of the checkpoint that was written before; empty if there is none.

        Raises:
            OSError: If the newest attempt failed.
        """
        if self._error is not None:
            raise OSError(
                f"the {self._what} checkpoint of this run could not be written ({self._error}); "
                f"the previous one is {previous or 'missing too'}"
            ) from self._error
