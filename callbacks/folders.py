"""Where a run's files lie, and how they get there whole."""

from __future__ import annotations

import os
from pathlib import Path

from lightning.pytorch import Trainer

from lightning_ding.checkpoints import find_rank_folder

__all__ = ["checkpoint_folder", "find_rank_folder", "save_checkpoint"]


def checkpoint_folder(trainer: Trainer, dirpath: str | Path | None) -> Path:
    """Return where checkpoints go: ``dirpath``, else ``checkpoints`` in the logger's folder or the default root.

    It is the same on every rank; every rank has to call it.
    """
    if dirpath is not None:
        return Path(dirpath)
    return Path(trainer.log_dir or trainer.default_root_dir) / "checkpoints"


def save_checkpoint(trainer: Trainer, file: Path) -> None:
    """Write a Lightning checkpoint under a temporary name and rename it; every rank has to call it."""
    temporary = file.with_name(f".{file.name}.tmp")
    trainer.save_checkpoint(temporary, weights_only=False)
    if trainer.is_global_zero:
        os.replace(temporary, file)
    trainer.strategy.barrier("lightning_ding.save_checkpoint")
