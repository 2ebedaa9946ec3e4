"""Save a run so that it can go on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, ClassVar, get_args

from lightning.pytorch import LightningModule, Trainer
from typing_extensions import override

from lightning_ding import __version__
from lightning_ding.callbacks.folders import checkpoint_folder, tell_loggers
from lightning_ding.callbacks.last_for_lightning import FoundByLightning
from lightning_ding.callbacks.on_every_rank import on_every_rank, write_lightning_file
from lightning_ding.callbacks.saving_failure import SavingFailure
from lightning_ding.checkpoints import RUN_FILE, RunFolder, SaveBuffer, TornCheckpointError, sync_tree
from lightning_ding.config import require

logger = logging.getLogger(__name__)


class RunCheckpoint(FoundByLightning):
    """Writes a folder with Lightning's checkpoint and what each rank keeps for itself, such as its buffer.

    It is written at the end of an epoch, behind the evaluation, and at the end of the run, under a hidden name that it
    loses when all of it is on the disk; only then older ones go. ``last.ckpt`` is another name of the newest one's
    ``run.ckpt``. With several machines the folder has to be on a disk that they share. ``ckpt_path="last"`` finds the
    newest one that is whole.

    If it cannot be written, an error is logged, the run goes on and tries again at the next interval; a run whose last
    checkpoint could not be written ends with an ``OSError``.

    Args:
        dirpath: Folder; None means ``checkpoints`` in the logger's folder. A new run in the folder of another one
            writes to a subfolder, see :func:`~lightning_ding.callbacks.folders.checkpoint_folder`.
        filename: Of the folders, in front of the env step, and of the file, without ``.ckpt``.
        every_n_epochs: Epochs between two checkpoints, >= 1.
        save_buffer: ``"last"`` keeps buffers in the newest checkpoint only, ``"always"`` in all that are kept,
            ``"never"`` writes none: a resumed run then starts with an empty one.
        keep_last: Checkpoints that are kept, >= 1.
    """

    shares_folder: ClassVar = True
    """With the other checkpoint callbacks of a run, see ``checkpoint_folder``."""

    def __init__(
        self,
        dirpath: str | Path | None = None,
        filename: str = "last",
        every_n_epochs: int = 1,
        save_buffer: SaveBuffer = "last",
        keep_last: int = 1,
    ) -> None:
        require(every_n_epochs >= 1, "every_n_epochs", ">= 1", every_n_epochs)
        require(keep_last >= 1, "keep_last", ">= 1", keep_last)
        known = '"never" (what False was), "last" (what True was) or "always"'
        require(save_buffer in get_args(SaveBuffer), "save_buffer", known, save_buffer)
        super().__init__(dirpath, every_n_epochs)
        self.filename: str = filename
        self.save_buffer: SaveBuffer = save_buffer
        self.keep_last = keep_last
        self._folder: Path | None = None
        self._failure = SavingFailure("last")

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin a run."""
        if stage == "fit":
            self._folder = None
            self._failure.forget()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the checkpoint when it is due."""
        epochs = trainer.current_epoch + 1
        if trainer.should_stop or epochs == trainer.max_epochs or epochs % (self.every_n_epochs or 1) == 0:
            self.save(trainer, pl_module)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Let no run look fine whose last checkpoint could not be written."""
        self._failure.check(left=self.last_model_path)

    def save(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the checkpoint now, if the disk takes it; every rank has to call it."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        self._folder = self._folder or checkpoint_folder(trainer, self.dirpath)
        try:
            self._save(trainer, pl_module, self._folder)
        except OSError as error:
            self._failure.note(trainer, self._folder, pl_module.progress.env_step, error)
        else:
            self._failure.forget()
            tell_loggers(trainer, self)

    def _save(self, trainer: Trainer, pl_module: Any, parent: Path) -> None:
        """Write the checkpoint, or leave nothing of it.

        Raises:
            OSError: On every rank, if one of them could not write.
        """
        progress, datamodule = pl_module.progress, getattr(trainer, "datamodule", None)
        name = trainer.strategy.broadcast(RunFolder.free_name(parent, self.filename, progress.env_step))
        folder = RunFolder(parent, self.filename, name)
        facts = {"version": __version__, "world_size": trainer.world_size}
        facts |= {"env_step": progress.env_step, "train_iter": progress.train_iter}
        try:
            on_every_rank(trainer, folder.begin, only_zero=True)
            self._write(trainer, datamodule, folder)
            on_every_rank(trainer, lambda: folder.publish(facts), only_zero=True)
        except BaseException:
            if trainer.is_global_zero:
                folder.discard()
            raise
        self.last_model_path = str(parent / f"{self.filename}.ckpt")
        if trainer.is_global_zero:
            self._retire_older(folder)

    def _write(self, trainer: Trainer, datamodule: Any, folder: RunFolder) -> None:
        """Write everything but the manifest."""
        if not hasattr(datamodule, "save_rank_state"):
            write_lightning_file(trainer, folder.temporary / RUN_FILE)
            return
        own = folder.temporary / f"rank_{trainer.global_rank}"

        def save_rank() -> None:
            own.mkdir()
            datamodule.save_rank_state(own, self.save_buffer != "never")
            sync_tree(own)

        on_every_rank(trainer, save_rank)
        datamodule.rank_folder = folder.name
        try:
            write_lightning_file(trainer, folder.temporary / RUN_FILE)
        finally:
            datamodule.rank_folder = None

    def _retire_older(self, folder: RunFolder) -> None:
        try:
            folder.retire_older(self.keep_last, self.save_buffer)
        except (OSError, TornCheckpointError) as error:
            logger.warning("older checkpoints could not be removed from %s: %s", folder.parent, error)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return what survives a checkpoint."""
        return {"last_model_path": self.last_model_path}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what survives a checkpoint."""
        if not self.last_model_path:  # evaluating an older checkpoint must not forget what this run has written
            self.last_model_path = state_dict["last_model_path"]
