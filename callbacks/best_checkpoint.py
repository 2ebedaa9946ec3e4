"""Save the best policy of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from typing_extensions import override

from lightning_ding.callbacks.checkpoint_io import (
    SavingFailure,
    SharedFolder,
    checkpoint_folder,
    notify_loggers,
    save_checkpoint,
)


class BestCheckpoint(SharedFolder, Checkpoint):
    """Write a checkpoint whenever an evaluation has the best score so far; it holds the weights that were evaluated.

    The best score is part of every checkpoint, so a resumed run does not overwrite a better policy. If the file cannot
    be written, an error is logged, the previous file is kept, and the next evaluation that beats the previous score is
    written. A run whose best policy could not be written ends with an ``OSError``.

    Args:
        dirpath: Folder; None means ``checkpoints`` in the logger's folder. If the folder holds another run's
            checkpoints, a subfolder is used; see :func:`~lightning_ding.callbacks.checkpoint_io.checkpoint_folder`.
        filename: File name without ``.ckpt``.
        monitor: Metric to maximise.
    """

    mode: ClassVar = "max"
    """Read by loggers that upload checkpoints, like ``save_top_k``."""
    save_top_k: ClassVar = 1

    def __init__(
        self, dirpath: str | Path | None = None, filename: str = "best", monitor: str = "eval/return_mean"
    ) -> None:
        self.dirpath = dirpath
        self.filename = filename
        self.monitor = monitor
        self.best_model_score = -math.inf
        self.best_model_path = ""
        self._folder: Path | None = None
        self._failure = SavingFailure("best")

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Reset at the start of a fit."""
        if stage == "fit":
            self._folder = None
            self._failure.clear()

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
            self._save(trainer, pl_module, score)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Raise if the best policy could not be written.

        Raises:
            OSError: If the newest attempt to write it failed.
        """
        self._failure.check(previous=self.best_model_path)

    def _save(self, trainer: Trainer, pl_module: Any, score: float) -> None:
        """Write the checkpoint, which holds its own score; if that fails, log the error."""
        self._folder = self._folder or checkpoint_folder(trainer, self.dirpath)
        file, previous = self._folder / f"{self.filename}.ckpt", (self.best_model_score, self.best_model_path)
        self.best_model_score, self.best_model_path = score, str(file)
        try:
            save_checkpoint(trainer, file)
        except OSError as error:
            self.best_model_score, self.best_model_path = previous
            self._failure.record(trainer, file, pl_module.progress.env_step, error)
        else:
            self._failure.clear()
            notify_loggers(trainer, self)

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
