"""The callbacks that every run gets, and those of them that are small."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from typing import Any
from weakref import WeakSet

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.accelerators.cpu import CPUAccelerator
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, RichProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

from lightning_ding.callbacks.metrics import MetricsLogger
from lightning_ding.callbacks.stop import FinalEvaluation, Limits
from lightning_ding.callbacks.stop_on_signal import StopOnSignal
from lightning_ding.callbacks.watchdog import Watchdog
from lightning_ding.utils.protocols import RETURN, Monitor, return_text, run_data
from lightning_ding.worker import with_priority

LAST = 1_000_000
"""Priority of the callbacks that come after all others."""

_of_one_fit: WeakSet[Callback] = WeakSet()
"""Callbacks that the next fit of a Trainer replaces, because their limits may have changed."""
LARGE = 10_000_000
"""Number of trainable parameters from which a network is large. ``python -m benchmarks.threads`` measures it."""
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that set the number of threads."""
UNITS = {"env_step": "env steps", "train_iter": "updates"}
"""Unit of each counter that ``Progress.axis`` can name."""


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


class TorchThreads(Callback):
    """Fit small networks with one torch thread on a CPU, unless the number of threads was chosen.

    The threads of an operation wait for each other. On an idle machine several threads are faster, but where another
    program uses a core, two are 2 to 3 times slower than one (docs/guides/speed.md). The number counts as chosen if
    ``OMP_NUM_THREADS`` or ``MKL_NUM_THREADS`` is set, or if ``torch.set_num_threads`` was called with another number
    than torch's default.
    After the fit, torch has its previous number of threads.

    Args:
        large: Number of trainable parameters from which a network is large, so that torch's default is kept, >= 1.

    Raises:
        ValueError: If ``large`` is below 1.
    """

    def __init__(self, large: int = LARGE) -> None:
        if large < 1:
            raise ValueError(f"large must be >= 1, got {large}")
        self.large = large
        self._before: int | None = None

    @override
    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Set the number of threads before envs are stepped and updates are compiled."""
        # Torch's default is the number of cores that the process may use, with or without hyper-threads
        cores, threads = os.cpu_count() or 1, torch.get_num_threads()
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
        is_default = threads in {usable, max(1, usable // 2), cores, max(1, cores // 2)}
        is_chosen = not os.environ.keys().isdisjoint(VARIABLES) or not is_default
        if stage != "fit" or not isinstance(trainer.accelerator, CPUAccelerator) or is_chosen or threads == 1:
            return
        size = 0
        for parameter in pl_module.parameters():
            size += parameter.numel() if parameter.requires_grad else 0
        if size >= self.large:
            return
        self._before = threads
        torch.set_num_threads(1)
        rank_zero_info(
            f"one torch thread instead of {self._before}, since the network has only {size:,} parameters; set "
            "OMP_NUM_THREADS to choose another number"
        )

    @override
    def teardown(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Restore the previous number of threads."""
        if self._before is not None:
            torch.set_num_threads(self._before)
            self._before = None

    @override
    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Restore the previous number of threads; after an error Lightning does not call ``teardown``."""
        self.teardown(trainer, pl_module, "fit")


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
