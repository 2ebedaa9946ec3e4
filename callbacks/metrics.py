"""Write the metrics of a run to its loggers, with env steps as x axis, and keep the run alive when they cannot write.

Lightning 2.6 offers no public way to change the x axis of ``LearningRateMonitor``, ``DeviceStatsMonitor`` and
``ThroughputMonitor``, which is the number of batches. Their hooks therefore get a Trainer whose loggers take the env
step instead.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import DeviceStatsMonitor, LearningRateMonitor, ThroughputMonitor
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from typing_extensions import override

from lightning_ding.callbacks.diagnosis import Diagnosis
from lightning_ding.config import require
from lightning_ding.utils.private_api import LOGGER_CONNECTOR
from lightning_ding.utils.protocols import run_data
from lightning_ding.utils.ranks import sum_over_ranks
from lightning_ding.utils.run_facts import Facts, facts_of

logger = logging.getLogger(__name__)

MONITORS = (DeviceStatsMonitor, LearningRateMonitor, ThroughputMonitor)
BATCHES = [f"on_{stage}_batch_{when}" for stage in ("train", "validation", "test") for when in ("start", "end")]
HOOKS = ("on_train_epoch_start", *BATCHES)
"""Hooks in which these monitors log."""
LOGGING = ("log_metrics", "log_hyperparams", "log_graph", "save", "finalize", "after_save_checkpoint")
"""Methods of a logger that write and that Lightning or this project calls."""

_failed: WeakSet[Logger] = WeakSet()
"""Loggers whose error has already been logged."""


class MetricsLogger(Callback):
    """Write metrics of learning, collecting and speed at regular intervals of rounds, and before each evaluation.

    One call of ``self.log`` takes about half a millisecond; this callback makes one transfer to the host per write. The
    metrics are also in ``trainer.callback_metrics``. Under DDP, learning metrics are means over the ranks, episodes are
    those of all ranks, and ``buffer/...`` describes the buffer of rank zero.

    The last round of an interval is measured, and so are the first round of a run and the last one of an epoch; see
    :func:`~lightning_ding.policy.base.vitals.vitals`. A symptom of a run that does not learn is logged in one line,
    once in a run; see :mod:`lightning_ding.callbacks.diagnosis`.

    Args:
        log_every_n_rounds: Number of rounds in an interval, >= 1; None means the Trainer's ``log_every_n_steps``.
        symptoms: Log symptoms.
    """

    def __init__(self, log_every_n_rounds: int | None = None, symptoms: bool = True) -> None:
        allowed = log_every_n_rounds is None or log_every_n_rounds >= 1
        require(allowed, "log_every_n_rounds", ">= 1 or None", log_every_n_rounds)
        self.log_every_n_rounds = log_every_n_rounds
        self._rounds = 0
        self._began: float | None = None
        self._resumed: dict[str, Any] | None = None
        self.symptoms = symptoms
        self._diagnosis = Diagnosis(Facts())
        self._observes = True
        self._before_last = 0  # index of the round before the last one of an epoch

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Start the first interval, or continue the interval of a checkpoint."""
        self._interval = self.log_every_n_rounds or trainer.log_every_n_steps or math.inf  # type: ignore[attr-defined]
        self._start_interval(pl_module)
        facts = facts_of(pl_module.cfg, getattr(trainer.datamodule, "hparams", {}))  # type: ignore[attr-defined]
        progress = pl_module.progress
        self._diagnosis = Diagnosis(dataclasses.replace(facts, budget=progress.budget, axis=progress.axis))
        self._observes = True
        if self._resumed is not None:
            self._rounds, self._env_step = self._resumed["rounds"], self._resumed["env_step"]
            self._train_iter = self._resumed["train_iter"]
            self._began = time.perf_counter() - self._resumed["seconds"]
            self._observes = self._resumed.get("observes", True)
            if "diagnosis" in self._resumed:
                self._diagnosis.load_state_dict(self._resumed["diagnosis"])
            self._resumed = None
        if self._observes:
            pl_module.learner.observe_next_round()

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Note which round is the last one of the epoch."""
        self._before_last = trainer.num_training_batches - 2  # type: ignore[assignment]

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the metrics so far, so that callbacks can monitor them after the evaluation."""
        if trainer.state.fn == "fit" and self._rounds:
            self._write(trainer, pl_module)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Start the next interval; the time of the evaluation does not count as training time."""
        self._start_interval(pl_module)
        if trainer.state.fn == "fit":
            found = {name: float(value) for name, value in trainer.callback_metrics.items() if name[:5] == "eval/"}
            self._diagnose(trainer, found, pl_module.progress.position)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Write the metrics at the end of an interval."""
        self._rounds += 1
        if self._rounds >= self._interval:
            self._write(trainer, pl_module)
        self._observes = self._rounds + 1 >= self._interval or batch_idx == self._before_last or self._before_last < 0
        if self._observes:
            pl_module.learner.observe_next_round()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Set ``{step}`` in checkpoint names to the env step, also after an epoch without an evaluation."""
        trainer.callback_metrics["step"] = torch.tensor(float(pl_module.progress.position))

    @override
    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the metrics of the last, shorter interval."""
        if self._rounds:
            self._write(trainer, pl_module)

    def _write(self, trainer: Trainer, pl_module: Any) -> None:
        data = run_data(trainer)
        metrics = _over_ranks(pl_module.metrics, data.pop_episode_sums(), data.pop_infos())
        means = {name.removeprefix("learn/"): value for name, value in metrics.items() if name.startswith("learn/")}
        pl_module.check_means(means)
        progress, seconds = pl_module.progress, self._seconds()
        metrics["learn/cur_lr"] = pl_module.cur_lr()
        metrics |= {f"learn/{name}": value for name, value in pl_module.scheduled_values().items()}
        metrics["progress/train_iter"] = progress.train_iter
        metrics["progress/episode"] = progress.episode
        if progress.axis == "env_step":
            metrics["time/env_steps_per_second"] = (progress.env_step - self._env_step) / seconds
        metrics["time/updates_per_second"] = (progress.train_iter - self._train_iter) / seconds
        metrics |= data.pop_metrics()
        self._start_interval(pl_module)
        trainer.callback_metrics.update({name: torch.tensor(float(value)) for name, value in metrics.items()})
        write_metrics(trainer, metrics, progress.position)
        self._diagnose(trainer, metrics, progress.position)

    def _diagnose(self, trainer: Trainer, metrics: Mapping[str, float], step: int) -> None:
        for symptom in self._diagnosis.see({**metrics, "step": float(step)}):
            if self.symptoms and trainer.is_global_zero:
                logger.warning("%s", symptom)

    def _start_interval(self, pl_module: Any) -> None:
        self._rounds = 0
        self._began = time.perf_counter()
        self._env_step = pl_module.progress.env_step
        self._train_iter = pl_module.progress.train_iter

    def _seconds(self) -> float:
        """Return the duration of the interval so far in seconds."""
        return time.perf_counter() - (self._began or 0.0)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return where in its interval the run is."""
        if self._began is None:
            return self._resumed or {}
        now = {"rounds": self._rounds, "env_step": self._env_step, "train_iter": self._train_iter}
        own = {"seconds": self._seconds(), "observes": self._observes, "diagnosis": self._diagnosis.state_dict()}
        return {**now, **own}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the interval that ``state_dict`` returned."""
        self._resumed = state_dict or None


def _over_ranks(
    learn: Any, episodes: tuple[float, float, int], infos: dict[str, tuple[float, int]]
) -> dict[str, float]:
    """Return the learning metrics' means over the ranks that have them, and the means over the episodes of all ranks.

    A rank may lack a metric, such as the share of the entropy if none of its observations leaves a choice.
    """
    returns, lengths, count = episodes
    of_episodes = [(returns, count), (lengths, count), *infos.values()]
    values = [number for pair in of_episodes for number in pair]
    pairs = sum_over_ranks(torch.tensor(values, dtype=torch.float64)).tolist()
    metrics = {f"learn/{name}": value for name, value in learn.flush_over_ranks().items()}
    for name, total, count in zip(("return_mean", "length_mean", *infos), pairs[::2], pairs[1::2], strict=True):
        if count:
            metrics[f"collect/{name}"] = total / count
    return metrics


def write_metrics(trainer: Trainer, metrics: Mapping[str, float], step: int) -> None:
    """Write metrics to all loggers of a Trainer, at an env step.

    After :func:`prepare_loggers` an ``OSError`` of a logger is logged and does not end the run.
    """
    for one in trainer.loggers:
        one.log_metrics(dict(metrics), step=step)


def prepare_loggers(trainer: Trainer) -> None:
    """Check that the loggers of a Trainer can write, and keep their later errors from ending the run.

    If a logger raises ``OSError`` during the run, for example because the disk is full, the error is logged once and
    the logger is called again the next time. Calling this function again changes nothing.

    Raises:
        UnwritableFolderError: If the folder of a logger of TensorBoard or CSV files cannot be written.
    """
    if trainer.node_rank == 0:  # on each rank of this machine, which would otherwise wait for rank zero forever
        for one in trainer.loggers:
            if isinstance(one, (TensorBoardLogger, CSVLogger)):
                from lightning_ding.callbacks.earlier_runs import is_open

                _check_folder(one.root_dir if is_open(one) or not trainer.is_global_zero else one.log_dir)
    for one in trainer.loggers:
        for name in LOGGING:
            if name not in vars(one) and hasattr(type(one), name):
                setattr(one, name, partial(_call, one, name))


def _check_folder(folder: str) -> None:
    from lightning_ding.checkpoints.files import UnwritableFolderError, check_writable

    if "://" in folder:  # not on a disk of this machine
        return
    try:
        check_writable(Path(folder))
    except OSError as error:
        raise UnwritableFolderError(
            f"the metrics of this run cannot be written to {folder}: {error}; choose another folder with save_dir of "
            "the logger or default_root_dir of the Trainer"
        ) from error


def _call(one: Logger, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of a logger; if that raises ``OSError``, log the error unless it was logged before.

    Leaves out what a resumed run has written already.
    """
    from lightning_ding.callbacks.written_rows import rows_written_by

    try:
        if name in ("log_metrics", "log_hyperparams"):
            return getattr(rows_written_by(one), name)(*args, **kwargs)
        return getattr(type(one), name)(one, *args, **kwargs)
    except (OSError, ValueError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__  # TensorBoardLogger turns it into a ValueError
        if not isinstance(cause, OSError):
            raise
        if one not in _failed:
            _failed.add(one)
            text = "%s could not write metrics: %s; the run continues without them, and the next ones are tried again"
            logger.error(text, type(one).__name__, cause)
    return None


def log_over_env_steps(trainer: Trainer) -> None:
    """Make Lightning's monitors among a Trainer's callbacks log over env steps. Calling it again changes nothing."""
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
    """Pass every attribute through to another object, which is not changed."""

    def __init__(self, viewed: Any, progress: Any) -> None:
        self._viewed, self._progress = viewed, progress

    def __getattr__(self, name: str) -> Any:
        return getattr(self._viewed, name)


class _TrainerView(_View):
    @property
    def loggers(self) -> list[_LoggerView]:
        return [_LoggerView(logger, self._progress) for logger in self._viewed.loggers]

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        return _LoggerView(value, self._progress) if name == LOGGER_CONNECTOR else value


class _LoggerView(_View):
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self._viewed.log_metrics(metrics, step=self._progress.position)
