"""Let ``ckpt_path="last"`` work in a Trainer whose callbacks nobody chose."""

from __future__ import annotations

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint

from lightning_ding.callbacks.best_checkpoint import BestCheckpoint
from lightning_ding.callbacks.run_checkpoint import RunCheckpoint


def bring_checkpoints(trainer: Trainer) -> None:
    """Replace the checkpoint callback that Lightning made with all its defaults by ours.

    Callbacks that a run brings along come when Lightning has already asked those that are there for the last
    checkpoint: its own has none, and the run would start from scratch with no more than a warning. A datamodule is told
    its Trainer before that (Lightning 2.6), which is the moment to call this.
    """
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    present = [callback for callback in callbacks if isinstance(callback, Checkpoint)]
    if len(present) == 1 and type(present[0]) is ModelCheckpoint and vars(present[0]) == vars(ModelCheckpoint()):
        callbacks.remove(present[0])
        callbacks.extend([BestCheckpoint(), RunCheckpoint()])
