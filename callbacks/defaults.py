"""The callbacks that every run gets."""

from __future__ import annotations

from weakref import WeakSet

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, RichProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.callbacks.last_line import LastLine
from lightning_ding.callbacks.metrics import MetricsLogger
from lightning_ding.callbacks.stop import FinalEvaluation, Limits
from lightning_ding.callbacks.stop_on_signal import StopOnSignal
from lightning_ding.callbacks.torch_threads import TorchThreads
from lightning_ding.callbacks.watchdog import Watchdog
from lightning_ding.worker import with_priority

LAST = 1_000_000
"""Priority of the callbacks that come after all others."""

_of_one_fit: WeakSet[Callback] = WeakSet()
"""Callbacks that the next fit of a Trainer replaces, because their limits may have changed."""


def default_callbacks(trainer: Trainer, limits: Limits) -> list[Callback]:
    """Return the callbacks that a run needs and the Trainer does not have, and remove Lightning's own defaults.

    A progress bar that Lightning created with all its defaults is replaced by ``EnvStepProgressBar``. A progress bar
    that the user configured is kept, and ``EnvStepProgressBar`` is not added. With ``enable_progress_bar=False`` there
    is none. For checkpoints, see :func:`~lightning_ding.callbacks.defaults.add_checkpoint_callbacks`.

    Args:
        trainer: The Trainer; its ``callbacks`` are changed.
        limits: Limits of the run.
    """
    present: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    callbacks: list[Callback] = [TorchThreads(), MetricsLogger(), LastLine()]
    for one in list(present):
        if one in _of_one_fit:
            present.remove(one)
        elif type(one) in (RichProgressBar, TQDMProgressBar) and vars(one) == vars(type(one)()):
            from lightning_ding.callbacks.progress_bar import EnvStepProgressBar

            present.remove(one)
            callbacks.append(EnvStepProgressBar())
    of_one_fit: list[Callback] = []
    if trainer.loggers:
        from lightning_ding.callbacks.loggers import ContinuedLoggers, log_over_env_steps

        if any(isinstance(one, TensorBoardLogger) for one in trainer.loggers):
            from lightning_ding.callbacks.tensorboard_returns import TensorBoardReturns

            callbacks.insert(2, TensorBoardReturns())
        of_one_fit.append(with_priority(ContinuedLoggers(trainer), 0))
        log_over_env_steps(trainer)
    add_checkpoint_callbacks(trainer)
    of_one_fit += limits.callbacks()
    if limits.eval_every is not None:
        from lightning_ding.callbacks.evaluation_interval import EvaluationInterval

        of_one_fit.append(EvaluationInterval(position=limits.eval_every))
    of_one_fit += [Watchdog(), with_priority(FinalEvaluation(), LAST), with_priority(StopOnSignal(), LAST)]
    _of_one_fit.update(of_one_fit)
    made: list[Callback] = []
    for one in callbacks + of_one_fit:
        if not any(isinstance(other, type(one)) for other in present):
            made.append(_without_idle_hooks(one))
    return made


def _without_idle_hooks(callback: Callback) -> Callback:
    """Set the hooks to None that Lightning calls in each round and that do nothing: then it skips them."""
    for hook in ("on_train_batch_start", "on_train_batch_end"):
        if getattr(type(callback), hook) is getattr(Callback, hook):
            setattr(callback, hook, None)
    return callback


def add_checkpoint_callbacks(trainer: Trainer) -> None:
    """Replace the checkpoint callback that Lightning created with all its defaults by those of this project.

    A checkpoint callback that the user configured is kept. If none of them monitors a metric, a ``BestCheckpoint`` is
    added, because they do not know the best policy; otherwise they decide which one it is. Because they do not save
    what a resumed run needs, a ``RunCheckpoint`` is added. With ``enable_checkpointing=False`` nothing is added.

    Callbacks that monitor a metric come first, because Lightning takes ``ckpt_path="best"`` and
    ``trainer.checkpoint_callback`` from the first checkpoint callback.

    Lightning 2.6 resolves ``ckpt_path="last"`` with the checkpoint callbacks before it calls ``configure_callbacks``.
    Without a checkpoint callback it would start from scratch with only a warning. Call this function when the
    datamodule gets its Trainer, which is earlier. Calling it again changes nothing.
    """
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    if not trainer.checkpoint_callbacks:
        return
    present = [callback for callback in callbacks if isinstance(callback, Checkpoint)]
    from lightning_ding.callbacks.best_checkpoint import BestCheckpoint
    from lightning_ding.callbacks.run_checkpoint import RunCheckpoint

    if len(present) == 1 and type(present[0]) is ModelCheckpoint and vars(present[0]) == vars(ModelCheckpoint()):
        callbacks.remove(present.pop())
    others = [one for one in present if isinstance(one, ModelCheckpoint) and not isinstance(one, RunCheckpoint)]
    if not any(_monitors(callback) for callback in present):
        is_taken = any(one.filename == "best" for one in others)
        present.append(BestCheckpoint(filename="best_return" if is_taken else "best"))
    if not any(isinstance(callback, RunCheckpoint) for callback in present):
        has_last = any(one.save_last for one in others)  # it writes last.ckpt
        present.append(RunCheckpoint(filename="run" if has_last else "last"))
    rest = [callback for callback in callbacks if not isinstance(callback, Checkpoint)]
    callbacks[:] = rest + sorted(present, key=lambda callback: not _monitors(callback))


def _monitors(callback: Callback) -> bool:
    """Return whether a checkpoint callback keeps the best policy by a metric."""
    return getattr(callback, "monitor", None) is not None
