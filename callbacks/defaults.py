"""The callbacks that a run brings along."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar, TQDMProgressBar

from lightning_ding.callbacks.bring_checkpoints import bring_checkpoints
from lightning_ding.callbacks.env_step_axis import log_over_env_steps
from lightning_ding.callbacks.final_evaluation import FinalEvaluation
from lightning_ding.callbacks.interrupt import StopOnSignal
from lightning_ding.callbacks.last_line import LastLine
from lightning_ding.callbacks.max_env_step import StopAtEnvStep
from lightning_ding.callbacks.max_train_iter import StopAtTrainIter
from lightning_ding.callbacks.metrics import MetricsLogger
from lightning_ding.callbacks.progress_bar import EnvStepProgressBar
from lightning_ding.callbacks.stop_value import StopAtReturn
from lightning_ding.callbacks.watchdog import Watchdog
from lightning_ding.worker import with_priority

BEHIND_ALL = 1_000_000


def default_callbacks(
    trainer: Trainer, max_env_step: int | None, max_train_iter: int | None, stop_value: float | None
) -> list[Callback]:
    """Return what a run needs and the Trainer does not have, and take out of it what Lightning put there by itself.

    A progress bar that Lightning made with all its defaults gives way to ours; one that the user configured stays, and
    then ours is not added. With ``enable_progress_bar=False`` there is none. Of checkpoints see
    :func:`~lightning_ding.callbacks.bring_checkpoints.bring_checkpoints`.

    Args:
        trainer: Its ``callbacks`` are changed.
        max_env_step: See :class:`StopAtEnvStep`; None for none.
        max_train_iter: See :class:`StopAtTrainIter`; None for none.
        stop_value: See :class:`StopAtReturn`; None for none.
    """
    budget = [callback for callback in trainer.callbacks if getattr(callback, "comes_along", False)]  # type: ignore[attr-defined]
    for callback in budget:  # of an earlier fit of this Trainer
        trainer.callbacks.remove(callback)  # type: ignore[attr-defined]
    callbacks: list[Callback] = [MetricsLogger(), LastLine()]
    callbacks += _in_place_of(trainer, ProgressBar, (RichProgressBar, TQDMProgressBar), [EnvStepProgressBar()])
    bring_checkpoints(trainer)
    log_over_env_steps(trainer)
    stops: list[tuple[Any, Any]] = [(StopAtEnvStep, max_env_step), (StopAtTrainIter, max_train_iter)]
    for stop, limit in [*stops, (StopAtReturn, stop_value)]:
        if limit is not None:
            callbacks.append(_comes_along(stop(limit)))
    callbacks.append(_comes_along(Watchdog()))
    callbacks += [_comes_along(with_priority(last(), BEHIND_ALL)) for last in (FinalEvaluation, StopOnSignal)]
    there = trainer.callbacks  # type: ignore[attr-defined]
    return [callback for callback in callbacks if not any(isinstance(one, type(callback)) for one in there)]


def _comes_along(callback: Callback) -> Callback:
    """Mark a callback that a later fit replaces, because its limit may be another one then."""
    callback.comes_along = True  # type: ignore[attr-defined]
    return callback


def _in_place_of(
    trainer: Any, kind: type[Callback], stock: tuple[type[Callback], ...], ours: list[Callback]
) -> list[Callback]:
    """Return ``ours`` if the only callback of a kind is Lightning's own with all its defaults, which is taken out."""
    own = tuple(type(callback) for callback in ours)
    present = [callback for callback in trainer.callbacks if isinstance(callback, kind)]
    if any(isinstance(callback, own) for callback in present):
        return ours
    if len(present) == 1 and type(present[0]) in stock and vars(present[0]) == vars(type(present[0])()):
        trainer.callbacks.remove(present[0])
        return ours
    return []
