"""Where a worker that is used by hand says what it measured; within a Trainer, callbacks do that."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

DEFAULT_EXPERIMENT = "default_experiment"


class WorkerLog:
    """Writes to a logger that somebody else made and will close, and to Python's logging; nothing is made here.

    Args:
        tb_logger: A TensorBoard ``SummaryWriter``, which gets ``{instance_name}_iter/<name>`` by updates and
            ``{instance_name}_step/<name>`` by env steps; or a Lightning logger, which gets ``{instance_name}/<name>``
            by env steps; or None.
        exp_name: The logger of Python's logging is ``lightning_ding.{exp_name}.{instance_name}``; a line is an INFO.
        instance_name: Tells several workers of a kind apart.
        every_rank: Write on every rank, not on rank zero alone.
    """

    def __init__(
        self,
        tb_logger: Any = None,
        exp_name: str = DEFAULT_EXPERIMENT,
        instance_name: str = "worker",
        every_rank: bool = False,
    ) -> None:
        self.tb_logger = tb_logger
        self.exp_name = exp_name
        self.instance_name = instance_name
        self.every_rank = every_rank
        self._text = logging.getLogger(f"lightning_ding.{exp_name}.{instance_name}")

    @property
    def is_listened_to(self) -> bool:
        """Whether anybody reads what would be written."""
        if self.tb_logger is None and not self._text.isEnabledFor(logging.INFO):
            return False
        return self.every_rank or not (dist.is_available() and dist.is_initialized() and dist.get_rank() > 0)

    def write(self, values: Mapping[str, float], train_iter: int, envstep: int) -> None:
        """Write numbers, if anybody reads them."""
        if not self.is_listened_to:
            return
        line = ", ".join(f"{name} {value:.6g}" for name, value in values.items())
        self._text.info("train_iter %d, envstep %d: %s", train_iter, envstep, line)
        if hasattr(self.tb_logger, "log_metrics"):
            named = {f"{self.instance_name}/{name}": value for name, value in values.items()}
            self.tb_logger.log_metrics(named, step=envstep)
        elif self.tb_logger is not None:
            for name, value in values.items():
                self.tb_logger.add_scalar(f"{self.instance_name}_iter/{name}", value, train_iter)
                self.tb_logger.add_scalar(f"{self.instance_name}_step/{name}", value, envstep)

    def write_histograms(self, values: Mapping[str, Tensor], train_iter: int, envstep: int) -> None:
        """Write distributions, shapes (values,), to TensorBoard, if that is the logger."""
        writer = getattr(self.tb_logger, "experiment", self.tb_logger)
        if not self.is_listened_to or not hasattr(writer, "add_histogram"):
            return
        for name, value in values.items():
            writer.add_histogram(f"{self.instance_name}_iter/{name}", value, train_iter)
            writer.add_histogram(f"{self.instance_name}_step/{name}", value, envstep)
