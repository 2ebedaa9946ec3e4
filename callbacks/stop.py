"""Stop a run: at a number of env steps or updates, or at a mean return; and evaluate once more at its end."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Timer
from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.utils.protocols import RETURN, Monitor, MonitorLike, return_text

logger = logging.getLogger(__name__)


def stop_run(trainer: Trainer, reason: str) -> None:
    """Make the Trainer stop after the current round, and log the reason once."""
    if not trainer.should_stop and trainer.is_global_zero:
        logger.info("the run ends: %s", reason)
    trainer.should_stop = True


class StopAt(Callback):
    """Stop the run at the end of the round in which a counter of ``Progress`` reaches a limit.

    Args:
        counter: Name of the counter, such as ``"env_step"``.
        limit: Value of the counter at which the run stops, >= 1.
    """

    def __init__(self, counter: str, limit: int) -> None:
        require(limit >= 1, f"max_{counter}", ">= 1", limit)
        self.counter = counter
        self.limit = limit

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Stop a resumed run whose limit was reached before it was saved."""
        self.on_train_batch_end(trainer, pl_module, None, None, 0)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Stop once the limit is reached."""
        if getattr(pl_module.progress, self.counter) >= self.limit:
            stop_run(trainer, f"max_{self.counter}={self.limit} is reached")


class StopAtEnvStep(StopAt):
    """Stop the run at the end of the round in which the env steps of all ranks reach ``max_env_step`` >= 1."""

    def __init__(self, max_env_step: int) -> None:
        super().__init__("env_step", max_env_step)


class StopAtTrainIter(StopAt):
    """Stop the run at the end of the round in which the updates reach ``max_train_iter`` >= 1."""

    def __init__(self, max_train_iter: int) -> None:
        super().__init__("train_iter", max_train_iter)


class StopAtReturn(Callback):
    """Stop the run when the mean return of an evaluation, or another metric, reaches a value after an update.

    Args:
        stop_value: Value at which the run stops.
        monitor: Metric that has to reach it, after an evaluation: its name, or a mapping to ``"max"`` or ``"min"``.

    Raises:
        ValueError: When a run starts whose Trainer does not validate, so that it would never stop.
    """

    def __init__(self, stop_value: float, monitor: MonitorLike = RETURN) -> None:
        self.stop_value = stop_value
        self.monitor = Monitor.of(monitor)

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse a Trainer that does not validate."""
        if not trainer.enable_validation:
            raise ValueError(f"stop_value={self.stop_value} needs evaluations, but this Trainer's validation is off")

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Stop if the value is good enough."""
        value = self.monitor.value(trainer)
        if value is not None and pl_module.progress.train_iter > 0 and self.monitor.reaches(value, self.stop_value):
            what = "the mean return" if self.monitor.metric == RETURN else self.monitor.metric
            stop_run(trainer, f"{what} {return_text(value)} reached stop_value={self.stop_value}")


STOPS = (StopAt, StopAtReturn)
"""The callbacks that stop a run at a limit."""


@dataclass(frozen=True)
class Limits:
    """The limits of a run, which are options of the datamodules; None for no limit. The first one ends the run."""

    max_env_step: int | None = None
    """Env steps over all ranks, >= 1."""
    max_train_iter: int | None = None
    """Updates, >= 1."""
    stop_value: float | None = None
    """Value of ``stop_monitor`` after an evaluation."""
    stop_monitor: MonitorLike = RETURN
    """Metric that ``stop_value`` is for."""
    eval_every: int | None = None
    """Env steps between two evaluations, or updates on a data set, >= 1; no limit of a run, but applied with them."""

    def callbacks(self) -> list[Callback]:
        """Return a callback for each limit."""
        stops: list[Callback] = []
        if self.max_env_step is not None:
            stops.append(StopAtEnvStep(self.max_env_step))
        if self.max_train_iter is not None:
            stops.append(StopAtTrainIter(self.max_train_iter))
        if self.stop_value is not None:
            stops.append(StopAtReturn(self.stop_value, self.stop_monitor))
        return stops

    def lift_default_epochs(self, trainer: Trainer) -> None:
        """Remove the limit of 1000 epochs that Lightning sets by default, if the run has a limit here or a callback.

        With ``eval_every`` it is removed in any case, because epochs are then parts of an interval; if there is no
        other limit, that is logged. Call it before Lightning sets its limit and logs it.
        """
        if trainer.max_epochs is not None:
            return
        present: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        has_limit = bool(self.callbacks()) or any(isinstance(one, (*STOPS, Timer)) for one in present)
        if has_limit or self.eval_every is not None:
            trainer.fit_loop.max_epochs = -1
        is_endless = self.eval_every is not None and not has_limit and trainer.max_steps == -1
        if is_endless and trainer.state.fn in ("fit", None) and trainer.is_global_zero:
            logger.warning(
                "no limit is set, so the run with eval_every=%d continues until it is stopped: set max_env_step, "
                "max_train_iter or stop_value of the datamodule, or max_time of the Trainer",
                self.eval_every,
            )


class FinalEvaluation(Callback):
    """Make Lightning evaluate after the last round, even where the Trainer would not.

    It would not with ``check_val_every_n_epoch`` > 1, or with a ``val_check_interval`` that is a time or counts batches
    across epochs. This callback must come after all callbacks that stop the run.
    """

    _every_n_epochs: int | None = None

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Schedule the evaluation if this round was the last."""
        is_last = trainer.is_last_batch and trainer.current_epoch + 1 == trainer.max_epochs
        # Lightning does not set val_check_interval if it is a time
        is_off_epoch = trainer.check_val_every_n_epoch is None or not hasattr(trainer, "val_check_interval")
        if is_last and is_off_epoch:
            trainer.should_stop = True  # Lightning evaluates a run that is stopped
        if (trainer.should_stop or is_last) and (trainer.check_val_every_n_epoch or 1) > 1:
            self._every_n_epochs, trainer.check_val_every_n_epoch = trainer.check_val_every_n_epoch, 1

    @override
    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Restore the Trainer's own interval."""
        if self._every_n_epochs is not None:
            trainer.check_val_every_n_epoch, self._every_n_epochs = self._every_n_epochs, None

    @override
    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Restore the Trainer's own interval."""
        self.on_train_end(trainer, pl_module)
