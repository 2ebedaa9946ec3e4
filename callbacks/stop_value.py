"""Stop when the policy is good enough."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from lightning_ding.callbacks.stopping import stop_run


class StopAtReturn(Callback):
    """Stops the run when an evaluation's mean return reaches a value, after at least one update.

    Args:
        stop_value: The return that is good enough.

    Raises:
        ValueError: When a run starts whose Trainer does not validate, so that it would never stop.
    """

    def __init__(self, stop_value: float) -> None:
        self.stop_value = stop_value

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse a Trainer that does not validate."""
        if not trainer.enable_validation:
            raise ValueError(f"stop_value={self.stop_value} needs evaluations, but this Trainer's validation is off")

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Stop when the mean return is there."""
        mean = trainer.callback_metrics.get("eval/return_mean")
        if mean is not None and pl_module.progress.train_iter > 0 and float(mean) >= self.stop_value:
            stop_run(trainer, f"the mean return {float(mean):.1f} reached stop_value={self.stop_value}")
