"""The number of torch threads of a run on a CPU."""

from __future__ import annotations

import os
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.accelerators.cpu import CPUAccelerator
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

LARGE = 1_000_000
"""Number of trainable parameters from which a network is large. ``python -m benchmarks.threads`` measures it."""
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that set the number of threads."""


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
        if stage != "fit" or not isinstance(trainer.accelerator, CPUAccelerator) or is_chosen():
            return
        size = 0
        for parameter in pl_module.parameters():
            size += parameter.numel() if parameter.requires_grad else 0
        if size >= self.large or torch.get_num_threads() == 1:
            return
        self._before = torch.get_num_threads()
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


def is_chosen() -> bool:
    """Return whether somebody chose the number of torch threads of this process.

    Torch's default is the number of cores that the process may use, with or without hyper-threads. A call of
    ``torch.set_num_threads`` with one of these numbers cannot be told from the default.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    defaults = {cores, max(1, cores // 2), os.cpu_count(), max(1, (os.cpu_count() or 1) // 2)}
    return not os.environ.keys().isdisjoint(VARIABLES) or torch.get_num_threads() not in defaults
