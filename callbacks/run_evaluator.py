"""Run a further evaluator during Lightning's validation."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from typing_extensions import override

from lightning_ding.callbacks.metrics import write_metrics
from lightning_ding.callbacks.stop import stop_run
from lightning_ding.worker import ISerialEvaluator


class RunEvaluator(Callback):
    """Run an evaluator whenever the Trainer validates, log its results, and stop the run at its ``stop_value``.

    For evaluators in addition to the datamodule's own, for example one that plays games between several players, or one
    that computes a metric over a data set. The evaluator shares its work between the ranks, so every rank needs one.
    The evaluator's state is part of every checkpoint.

    Args:
        evaluator: An evaluator with its env and policy. The caller closes it.
        name: Prefix of the metrics' names. The metrics are logged over env steps and are also in
            ``trainer.callback_metrics``.
    """

    def __init__(self, evaluator: ISerialEvaluator, name: str = "evaluator") -> None:
        self.evaluator = evaluator
        self.name = name

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Evaluate, log the results, and stop the run if ``stop_value`` is reached."""
        if trainer.sanity_checking:
            return
        progress = pl_module.progress
        stop, info = self.evaluator.eval(train_iter=progress.train_iter, envstep=progress.env_step)
        numbers = {name: float(value) for name, value in info.items() if isinstance(value, Real)}
        metrics = {f"{self.name}/{name}": numbers[name] for name in numbers if name not in ("train_iter", "envstep")}
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})
        write_metrics(trainer, metrics, progress.position)
        if stop and trainer.state.fn == "fit":
            stop_run(trainer, f"{self.name} reached its stop_value")

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the evaluator's state."""
        return self.evaluator.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the evaluator's state."""
        self.evaluator.load_state_dict(state_dict)
