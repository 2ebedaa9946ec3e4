"""Write metrics to the logger, with env steps as x axis."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor
from typing_extensions import override

from lightning_ding.callbacks.logging_metrics import write_metrics
from lightning_ding.config import require


class MetricsLogger(Callback):
    """Every so many rounds, and before an evaluation, writes what was summed up since: learning, collecting, speed.

    ``self.log`` costs about half a millisecond a call; this costs one transfer to the host for each time it writes.
    What it writes also stands in ``trainer.callback_metrics``. Under DDP the learning metrics are means over ranks and
    the episodes are those of all ranks; ``buffer/...`` is what the buffer of rank zero says of itself.

    Args:
        log_every_n_rounds: >= 1; None takes the Trainer's ``log_every_n_steps``.
    """

    def __init__(self, log_every_n_rounds: int | None = None) -> None:
        allowed = log_every_n_rounds is None or log_every_n_rounds >= 1
        require(allowed, "log_every_n_rounds", ">= 1 or None", log_every_n_rounds)
        self.log_every_n_rounds = log_every_n_rounds
        self._rounds = 0
        self._goes_on: dict[str, Any] | None = None

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Begin the first interval, or go on with that of a checkpoint."""
        self._interval = self.log_every_n_rounds or trainer.log_every_n_steps or math.inf  # type: ignore[attr-defined]
        self._mark(pl_module)
        if self._goes_on is not None:
            self._rounds, self._env_step = self._goes_on["rounds"], self._goes_on["env_step"]
            self._train_iter = self._goes_on["train_iter"]
            self._time -= self._goes_on["seconds"]
            self._goes_on = None

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Write what there is, so that it can be monitored."""
        if trainer.state.fn == "fit" and self._rounds:  # so that the metrics are there for whoever monitors them
            self._write(trainer, pl_module)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Begin the next interval behind the evaluation."""
        self._mark(pl_module)  # the time of the evaluation is no training time

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Write when the interval is over."""
        self._rounds += 1
        if self._rounds >= self._interval:
            self._write(trainer, pl_module)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Let ``{step}`` in the names of checkpoints be env steps, whether there was an evaluation before or not."""
        trainer.callback_metrics["step"] = torch.tensor(float(pl_module.progress.env_step))

    @override
    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write what is left."""
        if self._rounds:
            self._write(trainer, pl_module)

    def _write(self, trainer: Trainer, pl_module: Any) -> None:
        metrics = self._over_ranks(trainer, pl_module.metrics.flush(), *_pop_episodes(trainer))
        means = {name.removeprefix("learn/"): value for name, value in metrics.items() if name.startswith("learn/")}
        pl_module.check_means(means)
        progress, seconds = pl_module.progress, time.perf_counter() - self._time
        metrics["learn/cur_lr"] = pl_module.cur_lr()
        metrics |= {f"learn/{name}": value for name, value in pl_module.scheduled_values().items()}
        metrics["progress/train_iter"] = progress.train_iter
        metrics["progress/episode"] = progress.episode
        metrics["time/env_steps_per_second"] = (progress.env_step - self._env_step) / seconds
        metrics["time/updates_per_second"] = (progress.train_iter - self._train_iter) / seconds
        for name, value in getattr(getattr(trainer, "datamodule", None), "collect_kwargs", {}).items():
            metrics[f"collect/{name}"] = float(value)
        collector: Any = getattr(getattr(trainer, "datamodule", None), "collector", None)
        if getattr(collector, "dropped_episode", 0):
            metrics["collect/dropped_episode"] = collector.dropped_episode
        pop_buffer_metrics = getattr(getattr(getattr(trainer, "datamodule", None), "buffer", None), "pop_metrics", dict)
        metrics |= {f"buffer/{name}": value for name, value in pop_buffer_metrics().items()}
        metrics |= getattr(getattr(trainer, "datamodule", None), "pop_metrics", dict)()
        self._mark(pl_module)
        trainer.callback_metrics.update({name: torch.tensor(float(value)) for name, value in metrics.items()})
        write_metrics(trainer, metrics, progress.env_step)

    def _over_ranks(
        self, trainer: Trainer, learn: dict[str, float], returns: list[float], lengths: list[int]
    ) -> dict[str, float]:
        """Return means over ranks of what was learned, and means over all ranks' episodes."""
        values = [*learn.values(), sum(returns), float(sum(lengths)), float(len(returns))]
        if trainer.world_size > 1:
            total = trainer.strategy.reduce(
                torch.tensor(values, dtype=torch.float64, device=trainer.strategy.root_device), reduce_op="sum"
            )
            assert isinstance(total, Tensor)
            values = total.tolist()
        *sums, return_sum, length_sum, episodes = values
        metrics = {f"learn/{name}": value / trainer.world_size for name, value in zip(learn, sums, strict=True)}
        if episodes:
            metrics["collect/return_mean"] = return_sum / episodes
            metrics["collect/length_mean"] = length_sum / episodes
        return metrics

    def _mark(self, pl_module: Any) -> None:
        """Remember when and where the interval that is summed up began."""
        self._rounds = 0
        self._time = time.perf_counter()
        self._env_step = pl_module.progress.env_step
        self._train_iter = pl_module.progress.train_iter

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return where in its interval the run is."""
        if not hasattr(self, "_time"):
            return self._goes_on or {}
        now = {"rounds": self._rounds, "env_step": self._env_step, "train_iter": self._train_iter}
        return {**now, "seconds": time.perf_counter() - self._time}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what ``state_dict`` returned."""
        self._goes_on = state_dict or None


def _pop_episodes(trainer: Trainer) -> tuple[list[float], list[int]]:
    datamodule: Any = getattr(trainer, "datamodule", None)
    episodes: tuple[list[float], list[int]] = (
        datamodule.pop_episodes() if hasattr(datamodule, "pop_episodes") else ([], [])
    )
    return episodes
