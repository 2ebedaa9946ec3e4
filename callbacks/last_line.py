"""The summary at the end of a fit: a line in the log, or a table on a terminal."""

from __future__ import annotations

import logging
import math
import sys
import time
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

from lightning_ding.utils.protocols import RETURN, Monitor, return_text, run_data

UNITS = {"env_step": "env steps", "train_iter": "updates"}
"""Unit of each counter that ``Progress.axis`` can name."""


class LastLine(Callback):
    """Log one line at the end of a fit: env steps, the best mean return of an evaluation, and the checkpoint to use.

    With another ``monitor`` of the datamodule, its best value replaces the mean return. The checkpoint is named without
    a number only if its policy has that value. A checkpoint that somebody has deleted is not named.

    On a terminal, a table with the duration and the speed is printed instead of the line. The seconds are those of this
    fit, with its evaluations and checkpoints.

    Args:
        table: Whether to print the table; None prints it if the standard output is a terminal and Lightning's log
            level shows the line.
    """

    def __init__(self, table: bool | None = None) -> None:
        self.table = table
        self._monitor = Monitor()
        self._best = self._monitor.worst
        self._began, self._start = 0.0, 0

    @override
    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Report the metric of the datamodule."""
        if stage == "fit" and run_data(trainer).monitor != self._monitor:
            self._monitor = run_data(trainer).monitor
            self._best = self._monitor.worst

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Start the clock."""
        self._began, self._start = time.monotonic(), pl_module.progress.position

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Update the best value."""
        value = trainer.callback_metrics.get(self._monitor.metric)
        if trainer.state.fn == "fit" and value is not None and self._monitor.is_better(float(value), self._best):
            self._best = float(value)

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Log the line or print the table, on rank zero."""
        progress, checkpoint = pl_module.progress, "none"
        if trainer.checkpoint_callbacks:
            from lightning_ding.callbacks.run_checkpoint import checkpoint_to_use

            checkpoint = checkpoint_to_use(trainer, self._monitor.metric, self._best)
        unit = UNITS[progress.axis]
        best = return_text(self._best) if math.isfinite(self._best) else None
        is_shown = sys.stdout.isatty() and logging.getLogger("lightning.pytorch").isEnabledFor(logging.INFO)
        if not (is_shown if self.table is None else self.table):
            best_text = "no evaluation" if best is None else f"best {self._monitor.name} {best}"
            rank_zero_info(f"fit ended: {progress.position} {unit}, {best_text}, checkpoint {checkpoint}")
        elif trainer.is_global_zero:
            seconds = time.monotonic() - self._began
            speed = (progress.position - self._start) / max(seconds, 1e-9)
            rows = {f"best {self._monitor.name}": best or "no evaluation", unit: f"{progress.position:,}"}
            rows |= {"seconds": f"{seconds:,.1f}", f"{unit} per second": f"{speed:,.0f}"}
            _print_table(rows, checkpoint)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the best value and its metric."""
        return {"best": self._best, "monitor": self._monitor.metric, "mode": self._monitor.mode}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best value, unless this run has a better one or reports another metric."""
        before = Monitor(state_dict.get("monitor", RETURN), state_dict.get("mode", "max"))  # older ones lack them
        if before == self._monitor and before.is_better(state_dict["best"], self._best):
            self._best = state_dict["best"]


def _print_table(rows: dict[str, str], checkpoint: str) -> None:
    """Print the rows as a table, and below it the path of the checkpoint in one line, so that it can be copied."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(title="fit ended", box=SIMPLE, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in rows.items():
        table.add_row(name, value)
    console = Console(file=sys.stdout, highlight=False)
    console.print(table)
    console.print(f" checkpoint: {checkpoint}", soft_wrap=True, markup=False)
