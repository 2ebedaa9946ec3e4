"""Evaluate at intervals of env steps or updates, whatever the number of them in a round."""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch import Callback, Trainer
from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.utils.protocols import run_data

NEVER = sys.maxsize
"""Value of ``check_val_every_n_epoch`` while no evaluation is due."""


class EvaluationInterval(Callback):
    """Evaluate after the first epoch that ends at least ``train_iter`` updates after the last evaluation.

    A rollout of whole episodes gives an unknown number of updates, so no number of rounds equals the updates of
    ``eval.evaluator.eval_freq``. Use this callback with ``rounds_per_epoch=1`` of the datamodule. The end of a run is
    evaluated in any case.

    The option ``eval_every`` of the datamodules adds this callback with ``position``: an evaluation then takes place
    after the first epoch that passes a multiple of it, so that the evaluations of all runs are at the same env steps.

    Args:
        train_iter: Updates between two evaluations, >= 1.
        position: Env steps, or updates of a run on a data set, of whose multiples each is followed by an evaluation,
            >= 1; exactly one of the two arguments is given.
    """

    def __init__(self, train_iter: int | None = None, position: int | None = None) -> None:
        require((train_iter is None) != (position is None), "position", "None with train_iter, else given", position)
        require(train_iter is None or train_iter >= 1, "train_iter", ">= 1", train_iter)
        require(position is None or position >= 1, "position", ">= 1", position)
        self.train_iter = train_iter
        self.position = position
        self._evaluated = 0  # counter at the last evaluation

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Let the Trainer evaluate after this round if an evaluation is due."""
        trainer.check_val_every_n_epoch = 1 if self._is_due(pl_module.progress) else NEVER

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Start the next interval."""
        if trainer.state.fn == "fit":
            self._evaluated = self._counter(pl_module.progress)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Start the next interval of a run without evaluations, whose checkpoints are written at these intervals."""
        if trainer.check_val_every_n_epoch == 1 and not trainer.enable_validation and not trainer.should_stop:
            self._evaluated = self._counter(pl_module.progress)

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
        """Return the counter at the last evaluation."""
        return {"evaluated": self._evaluated}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the interval that ``state_dict`` returned."""
        self._evaluated = state_dict["evaluated"]

    def _counter(self, progress: Any) -> int:
        return int(progress.train_iter if self.position is None else progress.position)

    def _is_due(self, progress: Any) -> bool:
        if self.position is None:
            return bool(progress.train_iter - self._evaluated >= (self.train_iter or 1))
        return is_passed(self.position, self._evaluated, progress.position)


def is_passed(interval: int, before: int, now: int) -> bool:
    """Return whether a counter has passed a multiple of an interval.

    Example:
        >>> is_passed(10, 9, 10), is_passed(10, 10, 19), is_passed(10, 19, 31)
        (True, False, True)
    """
    return now // interval > before // interval


def prepare_intervals(trainer: Trainer) -> None:
    """Let the intervals of the datamodule, if it has them, decide when a Trainer evaluates in a fit.

    ``check_val_every_n_epoch`` is set at once, because callbacks of Lightning read it when they are set up:
    ``EarlyStopping`` then counts evaluations and not epochs.

    Raises:
        ValueError: If the Trainer or a callback counts epochs or rounds too.
    """
    every: Any = run_data(trainer).eval_every
    if every is None or trainer.state.fn != "fit":
        return
    instead = f"left out with eval_every={every}, which decides when a run evaluates"
    require(trainer.max_epochs in (None, -1), "max_epochs", f"{instead}; use max_env_step", trainer.max_epochs)
    interval = trainer.check_val_every_n_epoch
    require(interval in (1, NEVER), "check_val_every_n_epoch", instead, interval)
    batches = getattr(trainer, "val_check_interval", None)  # unset if it is a time
    require(batches == 1.0, "val_check_interval", instead, batches)
    own = [one for one in trainer.callbacks if isinstance(one, EvaluationInterval)]  # type: ignore[attr-defined]
    require(all(one.position == every for one in own), "callbacks", f"without EvaluationInterval: {instead}", own)
    trainer.check_val_every_n_epoch = NEVER
