"""Stop after a number of updates."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from lightning_ding.callbacks.stopping import lift_default_epochs, stop_run
from lightning_ding.config import require


class StopAtTrainIter(Callback):
    """Stops the run at the end of the round in which the updates reach a number.

    Args:
        max_train_iter: >= 1.
    """

    def __init__(self, max_train_iter: int) -> None:
        require(max_train_iter >= 1, "max_train_iter", ">= 1", max_train_iter)
        self.max_train_iter = max_train_iter

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        lift_default_epochs(trainer)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self._check(trainer, pl_module)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._check(trainer, pl_module)

    def _check(self, trainer: Trainer, pl_module: Any) -> None:
        if pl_module.progress.train_iter >= self.max_train_iter:
            stop_run(trainer, f"max_train_iter={self.max_train_iter} is reached")
