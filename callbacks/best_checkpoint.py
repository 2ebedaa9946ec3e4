"""Save the best policy of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Checkpoint
from typing_extensions import override

from lightning_ding.callbacks.shared_folder import SharedFolder
from lightning_ding.checkpoints.lightning_file import save_checkpoint


class BestCheckpoint(SharedFolder, Checkpoint):
    """Write a checkpoint whenever an evaluation has the best score so far; it holds the weights that were evaluated.

    The best score is part of every checkpoint, so a resumed run does not overwrite a better policy. If the file cannot
    be written, an error is logged, the previous file is kept, and the next evaluation that beats the previous score is
    written. A run whose best policy could not be written ends with an ``OSError``.

    Args:
        dirpath: Folder; None means ``checkpoints`` in the logger's folder. If the folder holds another run's
            checkpoints, a subfolder is used; see :func:`~lightning_ding.callbacks.shared_folder.checkpoint_folder`.
        filename: File name without ``.ckpt``.
        monitor: Metric to maximise.
    """

    mode: ClassVar = "max"
    """Read, like ``save_top_k``, by loggers that upload checkpoints."""
    save_top_k: ClassVar = 1
    kind = "best"

    def __init__(
        self, dirpath: str | Path | None = None, filename: str = "best", monitor: str = "eval/return_mean"
    ) -> None:
        self.dirpath = dirpath
        self.filename = filename
        self.monitor = monitor
        self.best_model_score = -math.inf
        self.best_model_path = ""

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the checkpoint if the score is the best so far."""
        if trainer.state.fn != "fit" or trainer.sanity_checking or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if self.monitor not in trainer.callback_metrics:
            raise KeyError(
                f"monitor must be a logged metric, one of {sorted(trainer.callback_metrics)}, got {self.monitor!r}"
            )
        score = float(trainer.callback_metrics[self.monitor])
        if score > self.best_model_score:
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
        return {"best_model_score": self.best_model_score, "best_model_path": self.best_model_path}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best score and its file, unless this run has a better one."""
        if state_dict["best_model_score"] > self.best_model_score:  # evaluating an older checkpoint must not lower it
            self.best_model_score = state_dict["best_model_score"]
            self.best_model_path = state_dict["best_model_path"]
