"""Where a run's checkpoints lie, and how they get there whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from weakref import proxy

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities import rank_zero_warn

from lightning_ding.callbacks.on_every_rank import on_every_rank, write_lightning_file
from lightning_ding.checkpoints import RUN_FILE, find_rank_folder
from lightning_ding.checkpoints.files import sync

__all__ = ["checkpoint_folder", "find_rank_folder", "run_root", "save_checkpoint", "tell_loggers"]


def checkpoint_folder(trainer: Trainer, dirpath: str | Path | None) -> Path:
    """Return the folder of this run's checkpoints; every rank has to call it, when it writes the first of them.

    It is ``dirpath``, or else where Lightning's ``ModelCheckpoint`` would write. If the checkpoints of another run lie
    there, it is the first free one of its subfolders ``v1``, ``v2`` and so on. A run that was resumed from one of these
    folders continues in it, and so does a later fit of the same callbacks.

    Args:
        trainer: Of a fit.
        dirpath: Folder that the user chose; None for the logger's.

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
    """Return the folder under which checkpoints of earlier runs lie: all versions of a logger, or those without one."""
    if dirpath is not None:
        return Path(dirpath)
    if not trainer.loggers:
        return Path(trainer.default_root_dir) / "checkpoints"  # the root may hold other runs
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
    """Return the folder that this run comes from if it is ``base`` or a subfolder of it, else the first free one."""
    ours: list[Any] = [one for one in trainer.checkpoint_callbacks if getattr(one, "shares_folder", False)]
    folders = [base]
    while any(_holds(folders[-1], one.filename) for one in ours):
        folders.append(base / f"v{len(folders)}")
    written = [getattr(one, name, None) for one in ours for name in ("best_model_path", "last_model_path")]
    for file in (trainer.ckpt_path, *written):
        parents = Path(file).resolve().parents if file else ()
        for folder in reversed(folders):  # ``base`` is also a parent of the others
            if folder.resolve() in parents:
                return folder
    return folders[-1]


def _holds(folder: Path, name: str) -> bool:
    return (folder / f"{name}.ckpt").exists() or any(folder.glob(f"{name}-*/{RUN_FILE}"))


def tell_loggers(trainer: Trainer, callback: Checkpoint) -> None:
    """Tell the loggers of a checkpoint, so that those with ``log_model`` upload it."""
    if trainer.is_global_zero:
        for logger in trainer.loggers:
            logger.after_save_checkpoint(proxy(callback))


def save_checkpoint(trainer: Trainer, file: Path) -> None:
    """Write a Lightning checkpoint under a temporary name and rename it; every rank has to call it.

    Raises:
        OSError: On every rank, if it cannot be written; then the file is what it was.
    """
    temporary = file.with_name(f".{file.name}.tmp")

    def put_in_place() -> None:
        os.replace(temporary, file)
        sync(file.parent)

    try:
        on_every_rank(trainer, lambda: file.parent.mkdir(parents=True, exist_ok=True), only_zero=True)
        write_lightning_file(trainer, temporary)
        on_every_rank(trainer, put_in_place, only_zero=True)
    except OSError:
        if trainer.is_global_zero:
            temporary.unlink(missing_ok=True)
        raise
