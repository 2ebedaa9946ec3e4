"""Let a Trainer have the checkpoint callbacks that a run needs, in time for ``ckpt_path="last"``."""

from __future__ import annotations

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint

from lightning_ding.callbacks.best_checkpoint import BestCheckpoint
from lightning_ding.callbacks.run_checkpoint import RunCheckpoint


def bring_checkpoints(trainer: Trainer) -> None:
    """Replace the checkpoint callback that Lightning made with all its defaults by ours.

    One that the user configured stays, and keeps what is best its own way. What a run needs to go on it does not save,
    so a ``RunCheckpoint`` comes beside it. With ``enable_checkpointing=False`` there is none.

    Callbacks that a run brings along come when Lightning has already asked those that are there for the last
    checkpoint: without ours the run would start from scratch with no more than a warning. A datamodule is told its
    Trainer before that (Lightning 2.6), which is the moment to call this; calling it again changes nothing.
    """
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    present = [callback for callback in callbacks if isinstance(callback, Checkpoint)]
    if not present:
        return
    if len(present) == 1 and type(present[0]) is ModelCheckpoint and vars(present[0]) == vars(ModelCheckpoint()):
        callbacks.remove(present.pop())
    others = [callback for callback in present if not isinstance(callback, (BestCheckpoint, RunCheckpoint))]
    if not others and not any(isinstance(callback, BestCheckpoint) for callback in present):
        callbacks.append(BestCheckpoint())
    if not any(isinstance(callback, RunCheckpoint) for callback in present):
        has_last = any(getattr(callback, "save_last", False) for callback in others)  # a file of our name
        callbacks.append(RunCheckpoint(filename="run" if has_last else "last"))
