"""Shared parts of the checkpoint callbacks: the folder of a run's checkpoints, its claim, and errors of writing."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import IO, Any
from weakref import proxy

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import MLFlowLogger
from lightning.pytorch.utilities import rank_zero_warn

from lightning_ding.callbacks.earlier_runs import runs_folder
from lightning_ding.checkpoints import RUN_FILE
from lightning_ding.checkpoints.files import UnwritableFolderError, check_writable
from lightning_ding.checkpoints.lightning_file import AnotherRankError, on_every_rank

logger = logging.getLogger(__name__)

CLAIM_FILE = ".claim"


class FolderClaim:
    """A lock that keeps other new runs out of a folder, in this process and in others.

    Two runs that start at the same moment both find a folder without checkpoints; only one of them gets the claim. The
    kernel releases it at the end of the process, however that ends, so a killed run leaves no claim.

    Args:
        folder: The claimed folder.
        file: The locked file in it.
    """

    def __init__(self, folder: Path, file: IO[str]) -> None:
        self.folder = folder
        self._file = file

    @classmethod
    def take(cls, folder: Path) -> FolderClaim | None:
        """Claim an existing folder, or return None if another run has claimed it.

        Raises:
            OSError: If no file can be made in the folder.
        """
        path = folder / CLAIM_FILE
        while True:
            file = path.open("a")
            if not lock_file(file):
                file.close()
                return None
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return cls(folder, file)
            file.close()  # the run that held the lock removed this file before it released the lock

    def release(self) -> None:
        """Let other runs claim the folder. Calling it again changes nothing."""
        if self._file.closed:
            return
        with suppress(OSError):  # Windows removes no open file; a folder may have become read-only
            (self.folder / CLAIM_FILE).unlink()
        self._file.close()


def lock_file(file: IO[Any]) -> bool:
    """Return whether a file is locked by this call, and not by another run.

    It stays locked until this process and those that inherit the open file have closed it.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        logger.warning("%s cannot be locked (%s): do not start two runs in its folder at once", file.name, error)
    return True


class SharedFolder:
    """Mixin of the checkpoint callbacks, which write to the folder that :func:`checkpoint_folder` returns.

    A folder that cannot be written ends the run at its start. If a checkpoint cannot be written later, an error is
    logged and the run continues. A run whose newest checkpoint could not be written ends with an ``OSError``, so that
    it does not seem to have succeeded.
    """

    dirpath: Any
    """Folder that the user chose; None for a subfolder of the logger's folder."""
    filename: str
    """Name of the checkpoint, without ``.ckpt``."""
    kind: str
    """Kind of checkpoint, such as ``"best"``, for messages."""
    claim: FolderClaim | None = None
    """Claim to the folder until it has a checkpoint; on rank zero, of one of the callbacks that share the folder."""
    _folder: Path | None = None
    _error: OSError | None = None
    """The error of the newest attempt to write a checkpoint, if it failed."""

    @property
    def written(self) -> str:
        """Path of the newest checkpoint that this callback wrote; empty if there is none."""
        raise NotImplementedError

    @property
    def folder(self) -> Path | None:
        """Folder of the checkpoints in this fit; None before its first round."""
        return self._folder

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Reset at the start of a fit."""
        if stage == "fit":
            self._folder = self._error = None

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Find the folder and claim it, once the state of a checkpoint is restored.

        Raises:
            OSError: If the folder cannot be written.
        """
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._folder = checkpoint_folder(trainer, self)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Raise if the newest checkpoint could not be written.

        Raises:
            OSError: If the newest attempt to write it failed.
        """
        if self._error is not None:
            earlier = "there is no earlier one"
            if self.written:
                exists = Path(self.written).is_file()
                earlier = f"the last complete one {'is' if exists else 'was deleted:'} {self.written}"
            raise OSError(
                f"the {self.kind} checkpoint of this run could not be written ({self._error}); {earlier}"
            ) from self._error

    def teardown(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Release the folder if this run wrote no checkpoint."""
        self._release()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Release the folder if this run wrote no checkpoint."""
        self._release()

    def _release(self) -> None:
        if self.claim is not None:
            self.claim.release()
            self.claim = None

    def _attempt(self, trainer: Trainer, env_step: int, write: Callable[[Path], None]) -> None:
        """Write a checkpoint to the folder and announce it to the loggers; if that fails, log the error."""
        self._folder = self._folder or checkpoint_folder(trainer, self)
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
        for callback in _sharing(trainer):
            if callback.folder == self._folder:
                callback._release()  # the checkpoint marks the folder from now on
        if trainer.is_global_zero:
            for one in trainer.loggers:  # those with ``log_model`` upload it
                if not (self._resumes_only(trainer) and isinstance(one, MLFlowLogger)):
                    one.after_save_checkpoint(proxy(self))

    def _resumes_only(self, trainer: Trainer) -> bool:
        """Return whether another callback saves the policy to use, and this one the run.

        An ``MLFlowLogger`` with ``log_model=True`` uploads only the checkpoint of the callback that was announced last.
        """
        return self.kind == "last" and len(trainer.checkpoint_callbacks) > 1


def checkpoint_folder(trainer: Trainer, callback: SharedFolder) -> Path:
    """Return the folder of this run's checkpoints, which can be written. All ranks must call it.

    It is ``dirpath``, or else the folder to which Lightning's ``ModelCheckpoint`` would write. If that folder contains
    checkpoints of another run, or another run has begun in it, it is the first unused one of its subfolders ``v1``,
    ``v2`` and so on, which is claimed atomically. A run that was resumed from a checkpoint in one of these folders
    continues in it, and so does a later fit with the same callbacks.

    Args:
        trainer: The Trainer, during a fit.
        callback: The callback that writes; on rank zero, it gets the claim.

    Returns:
        The folder, the same on every rank.

    Raises:
        OSError: On all ranks, if the folder cannot be written.
    """
    base = Path(callback.dirpath) if callback.dirpath is not None else _default_folder(trainer)
    found = base

    def find() -> None:
        nonlocal found
        try:
            found = _folder_of_run(trainer, base, callback)
            check_writable(found)
        except OSError as error:
            raise UnwritableFolderError(
                f"the checkpoints of this run cannot be written to {found}: {error}; choose another folder with "
                "dirpath of the callback, save_dir of the logger or default_root_dir of the Trainer"
            ) from error

    on_every_rank(trainer, find, only_zero=True)
    folder = trainer.strategy.broadcast(found)
    if folder.resolve() != base.resolve():
        state = (
            "contains checkpoints of another run" if _is_used(base, _sharing(trainer)) else "is in use by another run"
        )
        rank_zero_warn(f"{base} {state}; those of this run go to {folder}")
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
    return Path(logger.save_dir or trainer.default_root_dir) / runs_folder(logger)


def run_folder(trainer: Trainer) -> Path:
    """Return the folder of a run, in which its folder of checkpoints is by default."""
    return _default_folder(trainer).parent


def _default_folder(trainer: Trainer) -> Path:
    """Return ``save_dir/name/version/checkpoints`` of the first logger, as Lightning's ``ModelCheckpoint`` does."""
    root = run_root(trainer, None)
    if not trainer.loggers:
        return root
    version = trainer.loggers[0].version
    return root / (version if isinstance(version, str) else f"version_{version}") / "checkpoints"


def _sharing(trainer: Trainer) -> list[SharedFolder]:
    return [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, SharedFolder)]


def _folder_of_run(trainer: Trainer, base: Path, callback: SharedFolder) -> Path:
    """Return ``base`` or its subfolder that this run wrote to or was resumed from, else claim the first unused one."""
    sharing = _sharing(trainer)
    home = base.resolve()  # a path may be relative for one of the callbacks only
    for one in sharing:
        if one.folder is not None and (one.folder.resolve() == home or _is_version(one.folder.resolve(), home)):
            return one.folder  # another callback has found it in this fit
    for file in (trainer.ckpt_path, *(one.written for one in sharing)):
        for parent in Path(file).resolve().parents if file else ():
            if parent == home:
                return base
            if _is_version(parent, home):
                return base / parent.name
    folders = chain([base], (base / f"v{number}" for number in count(1)))
    callback.claim = next(claim for folder in folders if (claim := _claim(folder, sharing)) is not None)
    return callback.claim.folder


def _is_version(folder: Path, base: Path) -> bool:
    return folder.parent == base and re.fullmatch(r"v\d+", folder.name) is not None


def _claim(folder: Path, sharing: Sequence[SharedFolder]) -> FolderClaim | None:
    """Make and claim a folder for the checkpoints of these callbacks, or return None if another run uses it."""
    if _is_used(folder, sharing):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    claim = FolderClaim.take(folder)
    if claim is not None and _is_used(folder, sharing):  # another run has written a checkpoint and released its claim
        claim.release()
        return None
    return claim


def _is_used(folder: Path, sharing: Sequence[SharedFolder]) -> bool:
    """Return whether a folder contains a checkpoint that one of these callbacks would replace."""
    names = [one.filename for one in sharing]
    return any((folder / f"{name}.ckpt").exists() or any(folder.glob(f"{name}-*/{RUN_FILE}")) for name in names)
