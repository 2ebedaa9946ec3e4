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

FIRST = {"Returns/evaluation": "eval/return_mean", "Returns/training": "collect/return_mean"}
"""Tags of TensorBoard alone, and the metrics that they repeat. TensorBoard sorts capital letters before all others."""

_laid_out: WeakSet[TensorBoardLogger] = WeakSet()
"""Loggers with a layout; a second one would have no effect."""


class TensorBoardReturns(Callback):
    """Give TensorBoard the returns first in its tabs Scalars and Custom Scalars, and the returns of runs in HParams.

    After each evaluation, the tags ``Returns/evaluation`` and ``Returns/training`` repeat ``eval/return_mean`` and
    ``collect/return_mean``, which TensorBoard sorts after ``buffer/...``. The metric of the tab HParams is
    ``hp_metric``: the mean return of the last evaluation.

    The events are written by :class:`~lightning_ding.callbacks.event_file.EventFile`, which a full disk does not stop.
    """

    @override
    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Make the loggers write without a thread, on rank zero."""
        from lightning_ding.callbacks.event_file import write_without_thread  # TensorBoard takes long to import

        for one in _loggers(trainer):
            write_without_thread(one.experiment)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the layout, on rank zero."""
        for one in _loggers(trainer):
            if one not in _laid_out:
                _laid_out.add(one)
                one.experiment.add_custom_scalars(LAYOUT)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the mean returns, on rank zero."""
        if trainer.state.fn != "fit":
            return
        tags = {**FIRST, "hp_metric": "eval/return_mean"}
        means = {tag: float(trainer.callback_metrics.get(name, math.nan)) for tag, name in tags.items()}
        known = {tag: mean for tag, mean in means.items() if math.isfinite(mean)}  # an aborted evaluation has no mean
        for one in _loggers(trainer):
            one.log_metrics(known, step=pl_module.progress.position)


def _loggers(trainer: Trainer) -> list[TensorBoardLogger]:
    """Return the loggers of TensorBoard, on rank zero."""
    return [one for one in trainer.loggers if isinstance(one, TensorBoardLogger)] if trainer.is_global_zero else []
