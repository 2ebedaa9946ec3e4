"""Evaluate at intervals of updates where the number of updates of a round is not known beforehand."""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch import Callback, Trainer
from typing_extensions import override

from lightning_ding.config import require


class EvaluationInterval(Callback):
    """Evaluate after the first round that ends at least ``train_iter`` updates after the last evaluation.

    A rollout of whole episodes gives an unknown number of updates, so no number of rounds equals the updates of
    ``eval.evaluator.eval_freq``. Use this callback with ``rounds_per_epoch=1`` of the datamodule. The end of a run is
    evaluated in any case.

    Args:
        train_iter: Updates between two evaluations, >= 1.
    """

    def __init__(self, train_iter: int) -> None:
        require(train_iter >= 1, "train_iter", ">= 1", train_iter)
        self.train_iter = train_iter
        self._evaluated = 0  # updates before the last evaluation

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Let the Trainer evaluate after this round if an evaluation is due."""
        is_due = pl_module.progress.train_iter - self._evaluated >= self.train_iter
        trainer.check_val_every_n_epoch = 1 if is_due else sys.maxsize

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Start the next interval."""
        if trainer.state.fn == "fit":
            self._evaluated = pl_module.progress.train_iter

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Restore the Trainer's interval, after ``FinalEvaluation`` has restored the one of the last round."""
        trainer.check_val_every_n_epoch = 1

    @override
    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Restore the Trainer's interval."""
        trainer.check_val_every_n_epoch = 1

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the updates before the last evaluation."""
        return {"evaluated": self._evaluated}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the interval that ``state_dict`` returned."""
        self._evaluated = state_dict["evaluated"]
