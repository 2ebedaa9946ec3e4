"""Run an evaluator of your own with Lightning's validation."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from typing_extensions import override

from lightning_ding.callbacks.logging_metrics import write_metrics
from lightning_ding.callbacks.stopping import stop_run
from lightning_ding.worker import ISerialEvaluator


class RunEvaluator(Callback):
    """Lets an evaluator measure whenever the Trainer validates, logs its numbers, and ends the run when it says so.

    For evaluators beside the datamodule's own, such as one of games between several players or of a metric over a data
    set. Ranks share the work as the evaluator does, so every rank has to have one. What it remembers is part of every
    checkpoint.

    Args:
        evaluator: With its env and policy; its owner closes it.
        name: Prefix of the metrics, which have env steps as x axis; they also stand in ``trainer.callback_metrics``.
    """

    def __init__(self, evaluator: ISerialEvaluator, name: str = "evaluator") -> None:
        self.evaluator = evaluator
        self.name = name

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Measure, log, and stop the run if it is good enough."""
        if trainer.sanity_checking:
            return
        progress = pl_module.progress
        stop, info = self.evaluator.eval(train_iter=progress.train_iter, envstep=progress.env_step)
        numbers = {name: float(value) for name, value in info.items() if isinstance(value, Real)}
        metrics = {f"{self.name}/{name}": numbers[name] for name in numbers if name not in ("train_iter", "envstep")}
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})
        write_metrics(trainer, metrics, progress.env_step)
        if stop and trainer.state.fn == "fit":
            stop_run(trainer, f"{self.name} reached its stop_value")

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return what the evaluator remembers."""
        return self.evaluator.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what the evaluator remembers."""
        self.evaluator.load_state_dict(state_dict)
