"""A progress bar that counts env steps, or the updates of a run on a data set."""

from __future__ import annotations

import sys
import time
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ProgressBar
from tqdm.auto import tqdm
from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.utils.protocols import run_data

SHOWN = {
    "collect/return_mean": "return",
    "eval/return_mean": "eval",
    "time/env_steps_per_second": "env steps/s",
    "time/updates_per_second": "updates/s",
}

WITH_TOTAL = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {unit} [{elapsed}<{remaining}{postfix}]"
WITHOUT_TOTAL = "{desc}: {n_fmt} {unit} [{elapsed}{postfix}]"


class EnvStepProgressBar(ProgressBar):
    """Show the env steps made, the mean return of the newest episodes and of the last evaluation, and the speed.

    The rate of success, and ``info_keys`` and ``monitor`` of the datamodule are shown too, if they are logged.

    Args:
        refresh_seconds: Shortest time between two redraws in seconds, >= 0.
    """

    def __init__(self, refresh_seconds: float = 0.25) -> None:
        require(refresh_seconds >= 0, "refresh_seconds", ">= 0", refresh_seconds)
        super().__init__()
        self.refresh_seconds = refresh_seconds
        self._bar: Any = None
        self._drawn = 0.0
        self._enabled = True

    @property
    def is_enabled(self) -> bool:
        """Whether the bar is shown; Lightning disables it on all ranks but the first."""
        return self._enabled

    @override
    def disable(self) -> None:
        """Hide the bar."""
        self._enabled = False

    @override
    def enable(self) -> None:
        """Show the bar."""
        self._enabled = True

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Open the bar."""
        progress = pl_module.progress
        has_envs = progress.axis == "env_step"
        total, unit = (run_data(trainer).max_env_step, "env steps") if has_envs else (progress.budget, "updates")
        self._bar = tqdm(
            total=total,
            initial=progress.position,
            unit=f" {unit}",
            desc="train",
            disable=not self._enabled,
            dynamic_ncols=True,
            file=sys.stdout,
            bar_format=(WITH_TOTAL if total else WITHOUT_TOTAL).replace("{unit}", unit),
        )

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Redraw the bar if ``refresh_seconds`` have passed."""
        now = time.monotonic()
        if now - self._drawn >= self.refresh_seconds:
            self._drawn = now
            self._draw(trainer, pl_module)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Show the result of the evaluation."""
        if self._bar is not None:
            self._draw(trainer, pl_module)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Draw the final state and close the bar."""
        self._draw(trainer, pl_module)
        self._close()

    @override
    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Close the bar."""
        self._close()

    @override
    def print(self, *args: Any, sep: str = " ", **kwargs: Any) -> None:
        """Print without breaking the bar."""
        tqdm.write(sep.join(map(str, args)), **kwargs)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _draw(self, trainer: Trainer, pl_module: Any) -> None:
        metrics = trainer.callback_metrics
        data = run_data(trainer)
        shown = [f"{label} {float(metrics[name]):,.0f}" for name, label in SHOWN.items() if name in metrics]
        further = [f"{stage}/{key}" for key in ("success_rate", *data.info_keys) for stage in ("collect", "eval")]
        names = [name for name in dict.fromkeys([*further, data.monitor.metric]) if name not in SHOWN]
        shown += [f"{name} {float(metrics[name]):.3g}" for name in names if name in metrics]
        self._bar.set_postfix_str(", ".join(shown), refresh=False)
        self._bar.n = pl_module.progress.position
        if self._bar.total is not None:
            self._bar.total = max(self._bar.total, self._bar.n)  # the last round may exceed the limit
        self._bar.refresh()
