"""Save the best policy of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from lightning_ding.callbacks.shared_folder import SharedFolder
from lightning_ding.checkpoints.lightning_file import save_checkpoint
from lightning_ding.config import require
from lightning_ding.utils.protocols import Direction, Monitor, run_data


class BestCheckpoint(SharedFolder, Checkpoint):
    """Write a checkpoint whenever an evaluation has the best score so far; it holds the weights that were evaluated.

    The best score is part of every checkpoint, so a resumed run does not overwrite a better policy. If the file cannot
    be written, an error is logged, the previous file is kept, and the next evaluation that beats the previous score is
    written. A run whose best policy could not be written ends with an ``OSError``.

    Args:
        dirpath: Folder; None means ``checkpoints`` in the logger's folder. If the folder holds another run's
            checkpoints, a subfolder is used; see :func:`~lightning_ding.callbacks.shared_folder.checkpoint_folder`.
        filename: File name without ``.ckpt``.
        monitor: Metric that decides; None means ``monitor`` of the datamodule, by default the mean return.
        mode: Whether the largest (``"max"``) or the smallest (``"min"``) value is the best; only with ``monitor``.
    """

    save_top_k: ClassVar = 1
    """Read, like ``mode``, by loggers that upload checkpoints."""
    kind = "best"

    def __init__(
        self,
        dirpath: str | Path | None = None,
        filename: str = "best",
        monitor: str | None = None,
        mode: Direction | None = None,
    ) -> None:
        require(mode is None or monitor is not None, "mode", "None without monitor", mode)
        self.dirpath = dirpath
        self.filename = filename
        self._is_chosen = monitor is not None
        self._is_fit = True
        self._follow(Monitor() if monitor is None else Monitor.of({monitor: mode or "max"}))

    def _follow(self, monitor: Monitor) -> None:
        """Choose by another metric from now on."""
        self._monitor = monitor
        self.monitor, self.mode = monitor.metric, monitor.mode
        self.best_model_score = monitor.worst
        self.best_model_path = ""

    @override
    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Choose by the metric of the datamodule, unless this callback has one."""
        super().setup(trainer, pl_module, stage)
        of_run = run_data(trainer).monitor
        self._is_fit = stage == "fit"
        if self._is_fit and not self._is_chosen and of_run != self._monitor:
            self._follow(of_run)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the checkpoint if the score is the best so far."""
        if trainer.state.fn != "fit" or trainer.sanity_checking or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        score = self._monitor.value(trainer)
        if score is not None and self._monitor.is_better(score, self.best_model_score):
            self._attempt(trainer, pl_module.progress.position, lambda folder: self._save(trainer, folder, score))

    def _save(self, trainer: Trainer, folder: Path, score: float) -> None:
        """Write the checkpoint, which contains its own score."""
        file, previous = folder / f"{self.filename}.ckpt", (self.best_model_score, self.best_model_path)
        self.best_model_score, self.best_model_path = score, str(file)
        try:
            save_checkpoint(trainer, file)
        except OSError:
            self.best_model_score, self.best_model_path = previous
            raise

    @property
    @override
    def written(self) -> str:
        """Path of the best checkpoint; empty if there is none."""
        return self.best_model_path

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the best score and its file."""
        chosen = {"monitor": self.monitor, "mode": self.mode}
        return {"best_model_score": self.best_model_score, "best_model_path": self.best_model_path, **chosen}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best score and its file, unless this run has a better one or chooses by another metric."""
        older = self._monitor if self._is_chosen else Monitor()  # older ones do not name their metric
        before = (state_dict.get("monitor", older.metric), state_dict.get("mode", older.mode))
        if before != (self.monitor, self.mode):
            if not self._is_fit:  # an evaluation follows no metric
                return
            text = "the best checkpoint so far was chosen by %s (%s); this run chooses by %s (%s) and has none yet"
            rank_zero_warn(text % (*before, self.monitor, self.mode))
            return
        score = state_dict["best_model_score"]
        if self._monitor.is_better(score, self.best_model_score):  # evaluating an older checkpoint must not lower it
            self.best_model_score = state_dict["best_model_score"]
            self.best_model_path = state_dict["best_model_path"]
