"""When the videos and figures of evaluations are due, and the loggers to which they go.

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
from gymnasium.vector import VectorEnv
from lightning.pytorch.loggers import Logger, MLFlowLogger, WandbLogger
from numpy.typing import NDArray

from lightning_ding.utils.ranks import rank_and_world_size
from lightning_ding.worker.arguments import attribute_or_self
from lightning_ding.worker.evaluator.config import EvaluatorConfig
from lightning_ding.worker.log import WorkerLog

logger = logging.getLogger(__name__)

TAKERS = "a SummaryWriter, or a TensorBoardLogger, WandbLogger, MLFlowLogger or CSVLogger"
SERVICES = (WandbLogger, MLFlowLogger)
"""Loggers whose methods for videos and figures are not those of a ``SummaryWriter``."""
FOLDER = "media"
"""Folder of videos and figures in the folder of a logger, or among the artifacts of MLflow."""


class Rendering:
    """Videos and figures of evaluations, which rank zero writes.

    Args:
        config: Config with ``render``, the times of videos, and ``figure_path``, the folder of figures.
        log: Log to which videos and figures go; figures also go to files.

    Raises:
        ImportError: If there is a ``figure_path`` and the extra ``video`` is not installed.
    """

    def __init__(self, config: EvaluatorConfig, log: WorkerLog) -> None:
        if config.figure_path is not None:
            from lightning_ding.worker.evaluator.video import import_extra

            import_extra("matplotlib.figure")  # now, rather than after the first evaluation
        self.config = config
        self.log = log
        self.last_video: int | None = None
        """Value of the counter of ``render.mode`` when the last video was made."""

    def is_video_due(self, env_step: int, train_iter: int) -> bool:
        """Return whether ``render_freq`` has passed since the last video, or there was none."""
        render = self.config.render
        now = self._now(env_step, train_iter)
        return self.last_video is None or now - self.last_video >= render.render_freq

    def check(self, env: VectorEnv) -> None:
        """Raise before an evaluation whose video could not be made or written.

        Raises:
            ValueError: If the envs give no frames, or no logger takes videos.
            ImportError: If the extra ``video`` is not installed.
        """
        from lightning_ding.worker.evaluator.video import check_can_render, import_extra

        check_can_render(env)
        import_extra("PIL.Image")
        if rank_and_world_size()[0] == 0 and not hasattr(self._writer(), "add_video"):
            given = self.log.tb_logger
            loggers = given.loggers if isinstance(given, LoggerMedia) else [given]
            got = ", ".join(type(one).__name__ for one in loggers)
            raise ValueError(f"a video needs {TAKERS} as logger or tb_logger, got {got}")

    def write_video(self, video: NDArray[np.uint8] | None, env: VectorEnv, env_step: int, train_iter: int) -> None:
        """Write videos, shape (V, T, C, H, W), if this rank has any, and store the time on all ranks."""
        from lightning_ding.worker.evaluator.video import write_video

        self.last_video = self._now(env_step, train_iter)
        if video is None:
            return
        name, step = self.log.tag("video", train_iter, env_step)
        fps = float((env.metadata or {}).get("render_fps", 30))
        write_video(self._writer(), name, video, step, fps)

    def write_figure(self, returns: Sequence[float], env_step: int, train_iter: int) -> None:
        """Write a figure of the returns into ``figure_path`` and to the loggers, if there is a path.

        If the file cannot be written, the error is logged.
        """
        from lightning_ding.worker.evaluator.video import returns_figure

        if self.config.figure_path is None or rank_and_world_size()[0] > 0:
            return
        file = Path(self.config.figure_path) / f"{self.log.instance_name}_{train_iter}.png"
        figure = returns_figure(returns, f"{self.log.instance_name} at update {train_iter}, env step {env_step}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(file)
        except OSError as error:
            logger.error("the figure %s could not be written: %s; the run continues without it", file, error)
        writer = self._writer()
        if hasattr(writer, "add_figure"):
            name, step = self.log.tag("returns", train_iter, env_step)
            writer.add_figure(name, figure, step, close=False)  # pyplot did not make it

    def _now(self, env_step: int, train_iter: int) -> int:
        return train_iter if self.config.render.mode == "train_iter" else env_step

    def _writer(self) -> Any:
        """Return the object that takes videos and figures; None for loggers that take neither."""
        given = self.log.tb_logger
        writer = LoggerMedia([given]) if isinstance(given, Logger) else given
        return None if isinstance(writer, LoggerMedia) and not writer.takers else writer


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
