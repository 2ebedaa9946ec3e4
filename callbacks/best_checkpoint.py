"""Keep the best policy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from typing_extensions import override

from lightning_ding.callbacks.folders import checkpoint_folder, save_checkpoint, tell_loggers
from lightning_ding.callbacks.saving_failure import SavingFailure


class BestCheckpoint(Checkpoint):
    """Writes a checkpoint when an evaluation is the best so far, of exactly the weights that were evaluated.

    The best score is part of every checkpoint, so a run that goes on does not overwrite a better policy. If the file
    cannot be written, an error is logged, the one before stays, and the next evaluation that is better than that one is
    written; a run whose best policy could not be written ends with an ``OSError``.

    Args:
        dirpath: Folder; None means ``checkpoints`` in the logger's folder. A new run in the folder of another one
            writes to a subfolder, see :func:`~lightning_ding.callbacks.folders.checkpoint_folder`.
        filename: Without ``.ckpt``.
        monitor: The metric, larger is better.
    """

    shares_folder: ClassVar = True
    """With the other checkpoint callbacks of a run, see ``checkpoint_folder``."""
    mode: ClassVar = "max"
    save_top_k: ClassVar = 1
    """These two are what loggers ask a checkpoint callback for."""

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
        """Begin a run."""
        if stage == "fit":
            self._folder = None
            self._failure.forget()

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
        """Let no run look fine whose best policy could not be written."""
        self._failure.check(left=self.best_model_path)

    def _save(self, trainer: Trainer, pl_module: Any, score: float) -> None:
        """Write the checkpoint, if the disk takes it; it holds its own score."""
        self._folder = self._folder or checkpoint_folder(trainer, self.dirpath)
        file, before = self._folder / f"{self.filename}.ckpt", (self.best_model_score, self.best_model_path)
        self.best_model_score, self.best_model_path = score, str(file)
        try:
            save_checkpoint(trainer, file)
        except OSError as error:
            self.best_model_score, self.best_model_path = before
            self._failure.note(trainer, file, pl_module.progress.env_step, error)
        else:
            self._failure.forget()
            tell_loggers(trainer, self)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return what survives a checkpoint."""
        return {"best_model_score": self.best_model_score, "best_model_path": self.best_model_path}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what survives a checkpoint."""
        if state_dict["best_model_score"] > self.best_model_score:  # evaluating an older checkpoint forgets nothing
            self.best_model_score = state_dict["best_model_score"]
            self.best_model_path = state_dict["best_model_path"]
