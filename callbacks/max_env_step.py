"""Stop after a number of env steps."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from lightning_ding.callbacks.stopping import lift_default_epochs, stop_run
from lightning_ding.config import require


class StopAtEnvStep(Callback):
    """Stops the run at the end of the round in which the env steps of all ranks reach a number.

    Args:
        max_env_step: >= 1.
    """

    def __init__(self, max_env_step: int) -> None:
        require(max_env_step >= 1, "max_env_step", ">= 1", max_env_step)
        self.max_env_step = max_env_step

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
        if pl_module.progress.env_step >= self.max_env_step:
            stop_run(trainer, f"max_env_step={self.max_env_step} is reached")
