"""The loggers to which the videos and figures of evaluations go.

Shapes: V videos, T frames, C channels, H height, W width.
"""

from __future__ import annotations

import io
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.loggers import Logger, MLFlowLogger, WandbLogger
from numpy.typing import NDArray

from lightning_ding.utils.ranks import rank_and_world_size
from lightning_ding.worker.arguments import attribute_or_self
from lightning_ding.worker.log import WorkerLog

logger = logging.getLogger(__name__)

TAKERS = "a SummaryWriter, or a TensorBoardLogger, WandbLogger, MLFlowLogger or CSVLogger"
SERVICES = (WandbLogger, MLFlowLogger)
"""Loggers whose methods for videos and figures are not those of a ``SummaryWriter``."""
FOLDER = "media"
"""Folder of videos and figures in the folder of a logger, or among the artifacts of MLflow."""


class LoggerMedia:
    """Writes videos and figures to several of Lightning's loggers, with the methods of a ``SummaryWriter``.

    TensorBoard and W&B show them with the metrics. MLflow gets them as artifacts, and a logger with a folder, such as
    ``CSVLogger``, as files, both in ``media/``. Other loggers get none. If a logger raises ``OSError``, for example
    because the disk is full, the error is logged.

    Args:
        loggers: The loggers, such as those of a Trainer.
    """

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self.loggers = loggers

    @property
    def takers(self) -> list[Logger]:
        """The loggers that take videos and figures."""
        return [one for one in self.loggers if isinstance(one, SERVICES) or _has_writer(one) or one.log_dir is not None]

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write numbers to all loggers at an env step."""
        for one in self.loggers:
            one.log_metrics(dict(metrics), step=step)

    def add_video(self, tag: str, video: NDArray[np.uint8], step: int, fps: float) -> None:
        """Write videos, shape (V, T, C, H, W), side by side as one animation.

        Raises:
            ImportError: If the extra ``video`` is not installed.
        """
        from lightning_ding.worker.evaluator.video import gif, write_video

        content = gif(np.concatenate(list(video), axis=-1), fps)

        def write(one: Logger) -> None:
            if isinstance(one, WandbLogger):
                one.log_video(tag, [io.BytesIO(content)], step=step, format=["gif"])
            elif _has_writer(one):
                write_video(attribute_or_self(one, "experiment"), tag, video, step, fps)
            else:
                _write_file(one, f"{_file_name(tag, step)}.gif", content)

        self._write(tag, step, write)

    def add_figure(self, tag: str, figure: Any, step: int, close: bool = True) -> None:
        """Write a figure of Matplotlib, and close it if ``close`` is true and pyplot has made it."""
        from lightning_ding.worker.evaluator.video import import_extra

        content = io.BytesIO()
        figure.savefig(content, format="png")

        def write(one: Logger) -> None:
            if isinstance(one, WandbLogger):
                one.log_image(tag, [import_extra("PIL.Image").open(content)], step=step)
            elif _has_writer(one):
                attribute_or_self(one, "experiment").add_figure(tag, figure, step, close=close)
            else:
                _write_file(one, f"{_file_name(tag, step)}.png", content.getvalue())

        self._write(tag, step, write)

    def _write(self, tag: str, step: int, write: Callable[[Logger], None]) -> None:
        for one in self.takers:
            try:
                write(one)
            except OSError as error:
                text = "%s could not write %s at env step %d: %s; the run continues without it"
                logger.error(text, type(one).__name__, tag, step, error)


def media_writer(given: Any) -> Any:
    """Return the object that takes videos and figures for a logger; None for loggers that take neither."""
    writer = LoggerMedia([given]) if isinstance(given, Logger) else given
    return None if isinstance(writer, LoggerMedia) and not writer.takers else writer


def check_takes_videos(given: Any) -> None:
    """Raise if a video could not be written to a logger or a ``SummaryWriter``.

    Raises:
        ValueError: If it takes no videos, and this is rank 0.
        ImportError: If the extra ``video`` is not installed.
    """
    from lightning_ding.worker.evaluator.video import import_extra

    import_extra("PIL.Image")
    if rank_and_world_size()[0] == 0 and not hasattr(media_writer(given), "add_video"):
        loggers = given.loggers if isinstance(given, LoggerMedia) else [given]
        got = ", ".join(type(one).__name__ for one in loggers)
        raise ValueError(f"a video needs {TAKERS} as logger or tb_logger, got {got}")


def write_figure(log: WorkerLog, folder: str, returns: Sequence[float], envstep: int, train_iter: int) -> None:
    """Write a figure of returns to a folder and to the loggers; if the file cannot be written, the error is logged."""
    from lightning_ding.worker.evaluator.video import returns_figure

    file = Path(folder) / f"{log.instance_name}_{train_iter}.png"
    figure = returns_figure(returns, f"{log.instance_name} at update {train_iter}, env step {envstep}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file)
    except OSError as error:
        logger.error("the figure %s could not be written: %s; the run continues without it", file, error)
    writer = media_writer(log.tb_logger)
    if hasattr(writer, "add_figure"):
        name, step = log.tag("returns", train_iter, envstep)
        writer.add_figure(name, figure, step, close=False)  # pyplot did not make it


def _has_writer(one: Logger) -> bool:
    """Return whether a logger has a ``SummaryWriter``, or is that of a ``fast_dev_run``, which ignores all calls."""
    return not isinstance(one, SERVICES) and hasattr(attribute_or_self(one, "experiment"), "add_video")


def _write_file(one: Logger, name: str, content: bytes) -> None:
    """Write a file to the artifacts of MLflow, or to the folder of a logger."""
    if isinstance(one, MLFlowLogger):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / name
            file.write_bytes(content)
            one.experiment.log_artifact(one.run_id, str(file), FOLDER)
        return
    file = Path(str(one.log_dir)) / FOLDER / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def _file_name(tag: str, step: int) -> str:
    return f"{tag.replace('/', '_')}_{step}"
