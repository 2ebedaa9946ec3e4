"""Write the metrics of a run to its loggers, with env steps as x axis."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from typing_extensions import override

from lightning_ding.callbacks.diagnosis import Diagnosis
from lightning_ding.config import require
from lightning_ding.utils.protocols import run_data
from lightning_ding.utils.ranks import sum_over_ranks
from lightning_ding.utils.run_facts import Facts, facts_of

logger = logging.getLogger(__name__)


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
            found = {}
            for name, value in trainer.callback_metrics.items():
                if name.startswith("eval/"):
                    found[name] = float(value)
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
        data, progress, seconds = run_data(trainer), pl_module.progress, time.perf_counter() - (self._began or 0.0)
        means = pl_module.metrics.flush_over_ranks()  # a rank may lack a metric
        pl_module.check_means(means)
        metrics: dict[str, float] = {}
        for name, value in {**means, "cur_lr": pl_module.cur_lr(), **pl_module.scheduled_values()}.items():
            metrics[f"learn/{name}"] = value
        metrics |= _of_episodes(*data.pop_episode_sums(), data.pop_infos())
        metrics["progress/train_iter"] = progress.train_iter
        metrics["progress/episode"] = progress.episode
        if progress.axis == "env_step":
            metrics["time/env_steps_per_second"] = (progress.env_step - self._env_step) / seconds
        metrics["time/updates_per_second"] = (progress.train_iter - self._train_iter) / seconds
        metrics |= data.pop_metrics()
        self._start_interval(pl_module)
        for name, value in metrics.items():
            trainer.callback_metrics[name] = torch.tensor(float(value))
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

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return where in its interval the run is."""
        if self._began is None:
            return self._resumed or {}
        now = {"rounds": self._rounds, "env_step": self._env_step, "train_iter": self._train_iter}
        seconds = time.perf_counter() - self._began
        own = {"seconds": seconds, "observes": self._observes, "diagnosis": self._diagnosis.state_dict()}
        return {**now, **own}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the interval that ``state_dict`` returned."""
        self._resumed = state_dict or None


def _of_episodes(
    returns: float, lengths: float, episodes: int, infos: dict[str, tuple[float, int]]
) -> dict[str, float]:
    """Return means over the episodes of all ranks, from sums over those of this rank and their number."""
    sums = {"return_mean": (returns, episodes), "length_mean": (lengths, episodes), **infos}
    totals = sum_over_ranks(torch.tensor(list(sums.values()), dtype=torch.float64)).tolist()
    metrics: dict[str, float] = {}
    for name, (total, count) in zip(sums, totals, strict=True):
        if count:
            metrics[f"collect/{name}"] = total / count
    return metrics


def write_metrics(trainer: Trainer, metrics: Mapping[str, float], step: int) -> None:
    """Write metrics to all loggers of a Trainer, at an env step.

    In a run, an ``OSError`` of a logger is logged and does not end the run.
    """
    for one in trainer.loggers:
        one.log_metrics(dict(metrics), step=step)
