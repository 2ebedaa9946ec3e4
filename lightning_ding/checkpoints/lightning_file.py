"""Write Lightning's part of a checkpoint on all ranks together.

If one rank cannot write, every rank raises, so that no rank waits for another one forever.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.plugins.io import TorchCheckpointIO
from typing_extensions import override

from lightning_ding.checkpoints.files import save_object, sync


class AnotherRankError(OSError):
    """Another rank could not write its part; the error of that rank gives the reason."""


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
        raise failure or AnotherRankError("another rank could not write its part; its log gives the reason")


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
