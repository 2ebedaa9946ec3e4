"""When an evaluation is filmed and drawn, and where films and figures go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from lightning_ding.worker.evaluator.extra import import_extra
from lightning_ding.worker.evaluator.figure import returns_figure
from lightning_ding.worker.evaluator.sharding import rank_and_world_size
from lightning_ding.worker.evaluator.video import check_can_render, write_video
from lightning_ding.worker.log import WorkerLog
from lightning_ding.worker_config import EvaluatorConfig


class Pictures:
    """Films and figures of evaluations; rank zero writes them.

    Args:
        config: Whose ``render`` and ``figure_path`` say when and where.
        log: Where films and, beside the files, figures go.

    Raises:
        ImportError: If there is a ``figure_path`` and the extra ``video`` is not installed.
    """

    def __init__(self, config: EvaluatorConfig, log: WorkerLog) -> None:
        if config.figure_path is not None:
            import_extra("matplotlib.figure")  # now, rather than behind the first evaluation
        self.config = config
        self.log = log
        self.last_film: int | None = None
        """What ``render.mode`` counts, as it was at the last film."""

    def is_film_due(self, envstep: int, train_iter: int) -> bool:
        """Return whether ``render_freq`` has passed since the last film, or there was none; asking changes nothing."""
        render = self.config.render
        now = self._now(envstep, train_iter)
        return render.render_freq > 0 and (self.last_film is None or now - self.last_film >= render.render_freq)

    def check(self, env: VectorEnv) -> None:
        """Raise before an evaluation whose film could not be made or written.

        Raises:
            ValueError: If the envs give no frames, or the logger takes no films.
            ImportError: If the extra ``video`` is not installed.
        """
        check_can_render(env)
        import_extra("PIL.Image")
        if rank_and_world_size()[0] == 0 and not hasattr(self._writer(), "add_video"):
            given = type(self.log.tb_logger).__name__
            raise ValueError(f"a film needs a SummaryWriter or Lightning's TensorBoardLogger as tb_logger, got {given}")

    def write_film(self, video: NDArray[np.uint8] | None, env: VectorEnv, envstep: int, train_iter: int) -> None:
        """Write films, shape (V, T, C, H, W), if there are any on this rank, and note that it happened on any."""
        self.last_film = self._now(envstep, train_iter)
        if video is None:
            return
        name, step = self._place("film", envstep, train_iter)
        fps = float((env.metadata or {}).get("render_fps", 30))
        write_video(self._writer(), name, video, step, fps)

    def write_figure(self, returns: Sequence[float], envstep: int, train_iter: int) -> None:
        """Write a figure of the returns into ``figure_path`` and to the logger, if there is a path."""
        if self.config.figure_path is None or rank_and_world_size()[0] > 0:
            return
        folder = Path(self.config.figure_path)
        folder.mkdir(parents=True, exist_ok=True)
        figure = returns_figure(returns, f"{self.log.instance_name} at update {train_iter}, env step {envstep}")
        figure.savefig(folder / f"{self.log.instance_name}_{train_iter}.png")
        writer = self._writer()
        if hasattr(writer, "add_figure"):
            name, step = self._place("returns", envstep, train_iter)
            writer.add_figure(name, figure, step, close=False)  # pyplot does not know it

    def _now(self, envstep: int, train_iter: int) -> int:
        return train_iter if self.config.render.mode == "train_iter" else envstep

    def _writer(self) -> Any:
        """Return the ``SummaryWriter``, which a Lightning logger calls its ``experiment``."""
        return getattr(self.log.tb_logger, "experiment", self.log.tb_logger)

    def _place(self, what: str, envstep: int, train_iter: int) -> tuple[str, int]:
        """Return a tag and a step, as the log chooses them for numbers."""
        if hasattr(self.log.tb_logger, "log_metrics"):
            return f"{self.log.instance_name}/{what}", envstep
        return f"{self.log.instance_name}_iter/{what}", train_iter
