"""Let Lightning's own monitors log over env steps, as everything else of a run does.

In Lightning 2.6 ``LearningRateMonitor``, ``DeviceStatsMonitor`` and ``ThroughputMonitor`` give loggers the number of
batches, without a way to say otherwise. So their hooks get a Trainer whose loggers take the env step instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import DeviceStatsMonitor, LearningRateMonitor, ThroughputMonitor

MONITORS = (DeviceStatsMonitor, LearningRateMonitor, ThroughputMonitor)
BATCHES = [f"on_{stage}_batch_{when}" for stage in ("train", "validation", "test") for when in ("start", "end")]
HOOKS = ("on_train_epoch_start", *BATCHES)


def log_over_env_steps(trainer: Trainer) -> None:
    """Change the monitors among the callbacks of a Trainer; doing it again changes nothing."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        for hook in HOOKS if isinstance(callback, MONITORS) else ():
            if hook not in vars(callback):
                setattr(callback, hook, _with_env_steps(getattr(callback, hook)))


def _with_env_steps(hook: Callable[..., Any]) -> Callable[..., Any]:
    def call(trainer: Trainer, pl_module: Any, *args: Any, **kwargs: Any) -> Any:
        return hook(_TrainerView(trainer, pl_module.progress), pl_module, *args, **kwargs)

    return call


class _View:
    """Gives what something else has, and changes nothing of it."""

    def __init__(self, of: Any, progress: Any) -> None:
        self._of, self._progress = of, progress

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


class _TrainerView(_View):
    @property
    def loggers(self) -> list[_LoggerView]:
        return [_LoggerView(logger, self._progress) for logger in self._of.loggers]

    @property
    def _logger_connector(self) -> _LoggerView:
        return _LoggerView(self._of._logger_connector, self._progress)


class _LoggerView(_View):
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self._of.log_metrics(metrics, step=self._progress.env_step)
