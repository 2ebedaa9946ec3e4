"""Write files on all ranks, and agree on whether it went well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.plugins.io import TorchCheckpointIO
from typing_extensions import override

from lightning_ding.checkpoints import save_object


class AnotherRankError(OSError):
    """A rank could not write its part; it says itself what was wrong."""


class _SyncedIO(TorchCheckpointIO):
    """Writes a checkpoint straight to the disk, and keeps an ``OSError`` for later.

    ``Trainer.save_checkpoint`` (Lightning 2.6) ends in a barrier that rank 0 never reaches if its writing raises, and
    then the others wait for ever; and Lightning's own writer makes two copies of the checkpoint in memory.
    """

    def __init__(self) -> None:
        self.error: OSError | None = None

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint, or note why it cannot be written."""
        try:
            save_object(checkpoint, Path(path))
        except OSError as error:
            self.error = error

    def check(self) -> None:
        """Raise what writing raised."""
        if self.error is not None:
            raise self.error


def on_every_rank(trainer: Trainer, step: Callable[[], object], only_zero: bool = False) -> None:
    """Do a step on this rank, and raise on every rank if it raised an ``OSError`` on one; every rank has to call it.

    Args:
        trainer: Of the ranks.
        step: What to do; nothing of it may wait for another rank.
        only_zero: Do it on rank 0 only.

    Raises:
        OSError: What the step raised here, or :class:`AnotherRankError`.
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
    """Write a Lightning checkpoint; every rank has to call it.

    Raises:
        OSError: On every rank, if it cannot be written.
    """
    strategy, writer = trainer.strategy, _SyncedIO()
    own, strategy.checkpoint_io = strategy.checkpoint_io, writer
    try:
        trainer.save_checkpoint(file, weights_only=False)
    finally:
        strategy.checkpoint_io = own
    on_every_rank(trainer, writer.check)
