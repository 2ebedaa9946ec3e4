"""Show the returns of a run first in TensorBoard, which sorts names alphabetically."""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakSet

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from typing_extensions import override

LAYOUT = {
    "returns": {
        "evaluations": ["Multiline", ["(.*-)?eval/return_mean$"]],
        "training episodes": ["Multiline", ["(.*-)?collect/return_mean$"]],
        "worst and best episode of an evaluation": ["Multiline", ["(.*-)?eval/return_(min|max)$"]],
    },
    "lengths of episodes": {
        "evaluations": ["Multiline", ["(.*-)?eval/length_mean$"]],
        "training episodes": ["Multiline", ["(.*-)?collect/length_mean$"]],
    },
    "learning": {"loss": ["Multiline", ["(.*-)?learn/.*loss$"]]},
    "speed": {"per second": ["Multiline", ["(.*-)?time/.*_per_second$"]]},
}
"""Charts of the tab Custom Scalars by category; names are regular expressions, since loggers can have a prefix."""

_laid_out: WeakSet[TensorBoardLogger] = WeakSet()
"""Loggers with a layout; a second one would have no effect."""


class TensorBoardReturns(Callback):
    """Give TensorBoard's tab Custom Scalars a layout with the returns first, and its tab HParams the returns of runs.

    The metric of the tab HParams is ``hp_metric``: the mean return of the last evaluation.
    """

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the layout, on rank zero."""
        for one in _loggers(trainer):
            if one not in _laid_out:
                _laid_out.add(one)
                one.experiment.add_custom_scalars(LAYOUT)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the mean return, on rank zero."""
        mean = float(trainer.callback_metrics.get("eval/return_mean", math.nan))
        if trainer.state.fn == "fit" and math.isfinite(mean):  # an evaluation that was aborted has no mean
            for one in _loggers(trainer):
                one.log_metrics({"hp_metric": mean}, step=pl_module.progress.position)


def _loggers(trainer: Trainer) -> list[TensorBoardLogger]:
    """Return the loggers of TensorBoard, on rank zero."""
    return [one for one in trainer.loggers if isinstance(one, TensorBoardLogger)] if trainer.is_global_zero else []
