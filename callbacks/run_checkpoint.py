"""Save a run so that it can go on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from typing_extensions import override

from lightning_ding.callbacks.folders import checkpoint_folder, save_checkpoint
from lightning_ding.config import require


class RunCheckpoint(Checkpoint):
    """Writes ``last.ckpt`` and, beside it, a folder with each rank's buffer and random number generators.

    It is written at the end of an epoch, behind the evaluation, and at the end of the run. The folder is written first
    and the ``.ckpt`` that names it is renamed into place last, so there is a complete pair at every moment.

    Args:
        dirpath: Folder; None means ``checkpoints`` in the logger's folder.
        filename: Without ``.ckpt``.
        every_n_epochs: Epochs between two checkpoints, >= 1.
        save_buffer: Write the ranks' folder too; without it a resumed run starts with an empty buffer.
    """

    def __init__(
        self,
        dirpath: str | Path | None = None,
        filename: str = "last",
        every_n_epochs: int = 1,
        save_buffer: bool = True,
    ) -> None:
        require(every_n_epochs >= 1, "every_n_epochs", ">= 1", every_n_epochs)
        self.dirpath = dirpath
        self.filename = filename
        self.every_n_epochs = every_n_epochs
        self.save_buffer = save_buffer
        self.last_model_path = ""

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the folder."""
        if stage == "fit":
            self._folder = checkpoint_folder(trainer, self.dirpath)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the checkpoint when it is due."""
        epochs = trainer.current_epoch + 1
        if trainer.should_stop or epochs == trainer.max_epochs or epochs % self.every_n_epochs == 0:
            self.save(trainer, pl_module)

    def save(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the checkpoint now; every rank has to call it."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        datamodule: Any = getattr(trainer, "datamodule", None)
        file = self._folder / f"{self.filename}.ckpt"
        name = None
        if self.save_buffer and hasattr(datamodule, "save_rank_state"):
            name = f"{self.filename}-{pl_module.progress.env_step}"
            datamodule.save_rank_state(self._folder / name / f"rank_{trainer.global_rank}")
            trainer.strategy.barrier("lightning_ding.rank_state")
            datamodule.rank_folder = name
        try:
            save_checkpoint(trainer, file)
        finally:
            if name is not None:
                datamodule.rank_folder = None
        self.last_model_path = str(file)
        if trainer.is_global_zero:
            self._remove_old(keep=name)

    def _remove_old(self, keep: str | None) -> None:
        """Remove the ranks' folders of earlier checkpoints."""
        for folder in self._folder.glob(f"{self.filename}-*"):
            number = folder.name.removeprefix(f"{self.filename}-")
            if folder.is_dir() and number.isdecimal() and folder.name != keep:
                shutil.rmtree(folder)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return what survives a checkpoint."""
        return {"last_model_path": self.last_model_path}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what survives a checkpoint."""
        if not self.last_model_path:  # evaluating an older checkpoint must not forget what this run has written
            self.last_model_path = state_dict["last_model_path"]
