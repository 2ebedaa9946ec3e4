"""Ending a run."""

from __future__ import annotations

import logging

from lightning.pytorch import Trainer

logger = logging.getLogger(__name__)

LIGHTNING_DEFAULT_EPOCHS = 1000


def stop_run(trainer: Trainer, reason: str) -> None:
    """Tell the Trainer to stop after this round, and to evaluate once more however rarely it evaluates."""
    if not trainer.should_stop and trainer.is_global_zero:
        logger.info("the run ends: %s", reason)
    trainer.should_stop = True
    trainer.check_val_every_n_epoch = 1


def lift_default_epochs(trainer: Trainer) -> None:
    """Let a run that has a budget of its own go on behind the 1000 epochs that Lightning sets when it is told nothing.

    A user's own ``max_epochs=1000`` cannot be told from it and is lifted as well.
    """
    if trainer.max_epochs == LIGHTNING_DEFAULT_EPOCHS:
        trainer.fit_loop.max_epochs = -1
