"""Middleware that end a task, and that write what it found: checkpoints, curves and the result."""

from __future__ import annotations

import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lightning_ding.di_engine.framework.task import VoidMiddleware, task
from lightning_ding.worker.learner.engine import LearnerEngine

logger = logging.getLogger(__name__)
Middleware = Callable[[Any], Any]
RESULT = "result.json"
_folder: list[str] = []
"""The folder that ``ding_init`` named."""


def ding_init(cfg: Any) -> None:
    """Name the folder of the curves that the loggers write: ``cfg.exp_name``."""
    _folder[:] = [str(cfg.exp_name)]


def termination_checker(max_env_step: float | None = None, max_train_iter: float | None = None) -> Middleware:
    """Return a middleware that ends the task after more than a number of env steps or updates; None for no limit."""
    limits = {"env_step": max_env_step, "train_iter": max_train_iter}

    def check(ctx: Any) -> None:
        for name, limit in limits.items():
            if limit is not None and ctx.has_attr(name) and getattr(ctx, name) > limit:
                logger.info(f"the task ends: {name} {getattr(ctx, name)} is above {limit}")
                task.finish = True

    return check


class CkptSaver:
    """Writes the learning state of a policy to ``{save_dir}/ckpt``.

    The files are ``iteration_{updates}.pth.tar``, ``eval.pth.tar`` after the best evaluation so far, and
    ``final.pth.tar`` at the end of the task.

    Args:
        policy: The policy.
        save_dir: The folder, or its folder ``ckpt``.
        train_freq: Updates between two checkpoints, >= 1; None for none.
        save_finish: Write one at the end.
    """

    def __init__(self, policy: Any, save_dir: str, train_freq: int | None = None, save_finish: bool = True) -> None:
        folder = Path(save_dir)
        self._engine = LearnerEngine(
            policy.learn_mode, folder=folder.parent if folder.name == "ckpt" else folder, log_policy=False
        )
        self.train_freq, self.save_finish = train_freq, save_finish
        self.last_save_iter: int | None = None
        self.max_eval_value = -math.inf

    def __call__(self, ctx: Any) -> None:
        """Write what is due."""
        last, due = self.last_save_iter, self.train_freq
        if due and (last is None or ctx.train_iter - last >= due):
            self._engine.save_checkpoint(f"iteration_{ctx.train_iter}.pth.tar")
            self.last_save_iter = ctx.train_iter
        if ctx.eval_value > self.max_eval_value:
            self._engine.save_checkpoint("eval.pth.tar")
            self.max_eval_value = ctx.eval_value
        if task.finish and self.save_finish:
            self._engine.save_checkpoint("final.pth.tar")


def online_logger(record_train_iter: bool = False, train_show_freq: int = 100) -> Middleware:
    """Return a middleware that writes curves of evaluations and updates to TensorBoard.

    Args:
        record_train_iter: Write them against updates too, and not against env steps alone.
        train_show_freq: Updates between two reports, >= 1.

    Raises:
        RuntimeError: If ``ding_init`` was not called.
    """
    steps = ("env_step", "train_iter") if record_train_iter else ("env_step",)
    return _logger(steps, train_show_freq, named=record_train_iter)


def offline_logger(train_show_freq: int = 100) -> Middleware:
    """Return a middleware that writes curves against updates; see :func:`online_logger`."""
    return _logger(("train_iter",), train_show_freq, named=True)


def _logger(steps: tuple[str, ...], freq: int, named: bool) -> Middleware:
    if not _folder:
        raise RuntimeError("the loggers need a folder: call ding_init(cfg) at the start")
    from torch.utils.tensorboard import SummaryWriter  # slow to import

    writer, shown = SummaryWriter(str(Path(_folder[0]).resolve() / "log")), -freq
    task.at_end(writer.close)

    def write(name: str, value: Any, ctx: Any) -> None:
        add = writer.add_scalar if np.size(value) == 1 else writer.add_histogram
        for step in steps:
            add(f"basic/{name}-{step}" if named else f"basic/{name}", value, getattr(ctx, step))

    def log(ctx: Any) -> None:
        nonlocal shown
        if not math.isinf(ctx.eval_value):
            write("eval_episode_return_mean", ctx.eval_value, ctx)
        if ctx.train_output and ctx.train_iter - shown >= freq:
            shown = ctx.train_iter
            output = ctx.train_output[-1] if isinstance(ctx.train_output, list) else ctx.train_output
            for name, value in output.items():
                if "priority" not in name and not isinstance(value, Mapping):
                    write(f"train_{name}", value, ctx)

    return log


def final_ctx_saver(name: str) -> Middleware:
    """Return a middleware that writes the counters and the last evaluation to ``{name}/result.json`` at the end."""

    def save(ctx: Any) -> None:
        if not task.finish:
            return
        counters = ("total_step", "train_iter", "last_eval_iter", "env_step", "env_episode", "trained_env_step")
        found = {key: getattr(ctx, key) for key in counters if ctx.has_attr(key)}
        Path(name).mkdir(parents=True, exist_ok=True)
        (Path(name) / RESULT).write_text(json.dumps({**found, "eval_value": ctx.last_eval_value}, indent=1))

    return save


def epoch_timer(print_per: int = 1, smooth_window: int = 10) -> Middleware:
    """Return a middleware that logs the seconds of a step from here to its end.

    Args:
        print_per: Steps between two lines, >= 1.
        smooth_window: Lines whose mean is logged too, >= 1.
    """
    records: deque[float] = deque(maxlen=print_per * smooth_window)

    def measure(ctx: Any) -> Generator[None]:
        start = time.perf_counter()
        yield
        records.append(time.perf_counter() - start)
        if ctx.total_step % print_per == 0:
            mean = sum(records) / len(records)
            logger.info(f"step {ctx.total_step}: {records[-1] * 1000:.2f} ms, mean {mean * 1000:.2f} ms")

    return measure


class ContextExchanger(VoidMiddleware):
    """Exchanges contexts between processes in DI-engine; in one process it does nothing.

    Args:
        skip_n_iter: Without effect.
        storage_loader: Without effect.
    """

    def __init__(self, skip_n_iter: int = 1, storage_loader: Any = None) -> None:
        super().__init__()


class ModelExchanger(VoidMiddleware):
    """Exchanges weights between processes in DI-engine; in one process it does nothing.

    Args:
        model: The network.
        model_loader: Without effect.
    """

    def __init__(self, model: Any, model_loader: Any = None) -> None:
        super().__init__()


class PeriodicalModelExchanger(VoidMiddleware):
    """Exchanges weights at times in DI-engine; in one process it does nothing.

    Args:
        model: The network.
        kwargs: Without effect.
    """

    def __init__(self, model: Any, **kwargs: Any) -> None:
        super().__init__()
