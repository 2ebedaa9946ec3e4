"""Logs of workers that are used without a Trainer; in a Trainer, callbacks write the metrics."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from lightning_ding.worker.arguments import attribute_or_self

DEFAULT_EXPERIMENT = "default_experiment"


class WorkerLog:
    """Writes to a logger that the caller made and will close, and to Python's logging; it creates no files.

    Args:
        tb_logger: A TensorBoard ``SummaryWriter``, a Lightning logger, or None. A ``SummaryWriter`` gets
            ``{instance_name}_iter/<name>`` with the number of updates as step, and ``{instance_name}_step/<name>`` with
            env steps. A Lightning logger gets ``{instance_name}/<name>`` by env steps.
        exp_name: Name of the experiment. Records go to the Python logger ``lightning_ding.{exp_name}.{instance_name}``
            at level INFO.
        instance_name: Name that distinguishes several workers of a kind.
        every_rank: Write on every rank, not only on rank zero.
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
    def has_reader(self) -> bool:
        """Whether this rank logs."""
        if self.tb_logger is None and not self._text.isEnabledFor(logging.INFO):
            return False
        return self.every_rank or not (dist.is_available() and dist.is_initialized() and dist.get_rank() > 0)

    @property
    def writer(self) -> Any:
        """The ``SummaryWriter`` itself, which a Lightning logger calls its ``experiment``."""
        return attribute_or_self(self.tb_logger, "experiment")

    def tag(self, name: str, train_iter: int, env_step: int) -> tuple[str, int]:
        """Return the tag and the step under which a figure or a video is written."""
        if hasattr(self.tb_logger, "log_metrics"):
            return f"{self.instance_name}/{name}", env_step
        return f"{self.instance_name}_iter/{name}", train_iter

    def write(self, values: Mapping[str, float], train_iter: int, env_step: int) -> None:
        """Write numbers if this rank logs."""
        if not self.has_reader:
            return
        line = ", ".join(f"{name} {value:.6g}" for name, value in values.items())
        self._text.info("train_iter %d, env_step %d: %s", train_iter, env_step, line)
        if hasattr(self.tb_logger, "log_metrics"):
            named = {f"{self.instance_name}/{name}": value for name, value in values.items()}
            self.tb_logger.log_metrics(named, step=env_step)
        elif self.tb_logger is not None:
            for name, value in values.items():
                self.tb_logger.add_scalar(f"{self.instance_name}_iter/{name}", value, train_iter)
                self.tb_logger.add_scalar(f"{self.instance_name}_step/{name}", value, env_step)

    def write_histograms(self, values: Mapping[str, Tensor], train_iter: int, env_step: int) -> None:
        """Write distributions, shapes (values,), to TensorBoard, if that is the logger."""
        if not self.has_reader or not hasattr(self.writer, "add_histogram"):
            return
        for name, value in values.items():
            self.writer.add_histogram(f"{self.instance_name}_iter/{name}", value, train_iter)
            self.writer.add_histogram(f"{self.instance_name}_step/{name}", value, env_step)
