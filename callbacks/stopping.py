"""Ending a run."""

from __future__ import annotations

import logging
from typing import Any

from lightning.pytorch import Callback, Trainer
from typing_extensions import override

from lightning_ding.config import require

logger = logging.getLogger(__name__)


def stop_run(trainer: Trainer, reason: str) -> None:
    """Tell the Trainer to stop after this round."""
    if not trainer.should_stop and trainer.is_global_zero:
        logger.info("the run ends: %s", reason)
    trainer.should_stop = True


def lift_default_epochs(trainer: Trainer) -> None:
    """Let a run that has a budget of its own go on beyond the 1000 epochs that Lightning sets where none are given.

    It has to be called before Lightning sets them, and says so.
    """
    if trainer.max_epochs is None:
        trainer.fit_loop.max_epochs = -1


class StopAt(Callback):
    """Stops the run at the end of the round in which a counter of ``Progress`` reaches a number.

    Args:
        counter: Name of the counter.
        limit: >= 1.
    """

    def __init__(self, counter: str, limit: int) -> None:
        require(limit >= 1, f"max_{counter}", ">= 1", limit)
        self.counter = counter
        self.limit = limit

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Stop a run that goes on behind its end."""
        self._check(trainer, pl_module)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Stop when the counter is there."""
        self._check(trainer, pl_module)

    def _check(self, trainer: Trainer, pl_module: Any) -> None:
        if getattr(pl_module.progress, self.counter) >= self.limit:
            stop_run(trainer, f"max_{self.counter}={self.limit} is reached")
