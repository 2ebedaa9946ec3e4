"""Where a run's files lie, and how they get there whole."""

from __future__ import annotations

import os
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lightning_ding.callbacks.on_every_rank import on_every_rank, write_lightning_file
from lightning_ding.checkpoints import find_rank_folder
from lightning_ding.checkpoints.files import sync

__all__ = ["checkpoint_folder", "find_rank_folder", "run_root", "save_checkpoint"]


def checkpoint_folder(trainer: Trainer, dirpath: str | Path | None) -> Path:
    """Return where checkpoints go: ``dirpath``, else ``checkpoints`` in the logger's folder or the default root.

    It is the same on every rank; every rank has to call it.
    """
    if dirpath is not None:
        return Path(dirpath)
    return Path(trainer.log_dir or trainer.default_root_dir) / "checkpoints"


def run_root(trainer: Trainer, dirpath: str | Path | None) -> Path:
    """Return the folder under which checkpoints of earlier runs lie: all versions of a logger, or the default root."""
    if dirpath is not None:
        return Path(dirpath)
    if isinstance(trainer.logger, TensorBoardLogger | CSVLogger):
        return Path(trainer.logger.root_dir)
    return Path((trainer.logger.save_dir if trainer.logger else None) or trainer.default_root_dir)


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
