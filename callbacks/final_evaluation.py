"""Evaluate at the end of every run."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, Trainer
from typing_extensions import override


class FinalEvaluation(Callback):
    """Lets Lightning evaluate after the last round, however rarely the Trainer does it otherwise.

    That is with ``check_val_every_n_epoch``, and with a ``val_check_interval`` that is a time or counts over epochs.

    It has to stand behind the callbacks that end the run.
    """

    def __init__(self) -> None:
        self._every_n_epochs: int | None = None

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Let the evaluation run if this round was the last."""
        is_last = trainer.is_last_batch and trainer.current_epoch + 1 == trainer.max_epochs
        counts_on = trainer.check_val_every_n_epoch is None or not hasattr(trainer, "val_check_interval")
        if is_last and counts_on:
            trainer.should_stop = True  # Lightning evaluates a run that is stopped
        if (trainer.should_stop or is_last) and (trainer.check_val_every_n_epoch or 1) > 1:
            self._every_n_epochs, trainer.check_val_every_n_epoch = trainer.check_val_every_n_epoch, 1

    @override
    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Give the Trainer its own interval back."""
        self._restore(trainer)

    @override
    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Give the Trainer its own interval back."""
        self._restore(trainer)

    def _restore(self, trainer: Trainer) -> None:
        if self._every_n_epochs is not None:
            trainer.check_val_every_n_epoch, self._every_n_epochs = self._every_n_epochs, None
