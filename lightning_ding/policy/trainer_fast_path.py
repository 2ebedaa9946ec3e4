"""Leaving out of an update what Lightning does for nobody.

Inside a fit, ``manual_backward`` and a wrapped optimizer's ``step`` call six hooks of every callback and of the module.
That took 0.15 ms of an update of 1.2 ms (Lightning 2.6.6, CPU, three callbacks), in most runs without one of them being
there. When nobody could notice, the backward and the step are done directly and only ``global_step`` is counted, which
no public method of Lightning does.
"""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.optim import Optimizer

HOOKS = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")


def nobody_listens(trainer: Trainer, module: LightningModule) -> bool:
    """Return whether backward and step can go past Lightning without anybody noticing.

    That is: no callback and not the module has one of the hooks, no profiler times them, and the precision plugin does
    nothing to a loss.
    """
    precision = trainer.precision_plugin
    plain = type(precision) is Precision or (type(precision) is MixedPrecision and precision.scaler is None)
    hooked = any(is_overridden(hook, module, parent=LightningModule) for hook in HOOKS) or any(
        is_overridden(hook, callback, parent=Callback)
        for hook in HOOKS
        for callback in trainer.callbacks  # type: ignore[attr-defined]
    )
    return plain and not hooked and isinstance(trainer.profiler, PassThroughProfiler)  # type: ignore[attr-defined]


def announce_zero_grad(trainer: Trainer, module: LightningModule, optimizer: Optimizer) -> None:
    """Call ``on_before_zero_grad`` of callbacks and module, which Lightning leaves out in manual optimization."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        callback.on_before_zero_grad(trainer, module, optimizer)
    module.on_before_zero_grad(optimizer)


def count_optimizer_step(trainer: Trainer) -> None:
    """Add one to ``trainer.global_step``."""
    progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
    progress.increment_ready()
    progress.increment_completed()
