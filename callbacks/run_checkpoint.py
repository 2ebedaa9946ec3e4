"""Save a run so that it can be resumed, and make ``ckpt_path="last"`` find the newest checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from typing_extensions import override

from lightning_ding import __version__
from lightning_ding.callbacks.checkpoint_io import (
    SavingFailure,
    SharedFolder,
    checkpoint_folder,
    notify_loggers,
    on_every_rank,
    run_root,
    write_lightning_file,
)
from lightning_ding.checkpoints import RUN_FILE, RunFolder, SaveBuffer, TornCheckpointError, last_checkpoint, sync_tree
from lightning_ding.config import require
from lightning_ding.protocols import RunData, run_data


class LastCheckpointFinder(ModelCheckpoint):
    """A checkpoint callback that finds the file for ``ckpt_path="last"``, and writes nothing itself.

    Lightning 2.6 searches only with a private method of ``ModelCheckpoint``, and starts from scratch if it finds none.
    This class is therefore a ``ModelCheckpoint`` whose hooks are all disabled.

    Args:
        dirpath: Folder of the checkpoints; None means ``checkpoints`` in the logger's folder.
        every_n_epochs: Epochs between two checkpoints.
    """

    def __init__(self, dirpath: str | Path | None, every_n_epochs: int) -> None:
        super().__init__(dirpath, save_top_k=0, every_n_epochs=every_n_epochs)

    if not TYPE_CHECKING:
        setup = Callback.setup
        on_train_start = Callback.on_train_start
        on_train_batch_end = Callback.on_train_batch_end
        on_train_epoch_end = Callback.on_train_epoch_end
        on_validation_end = Callback.on_validation_end
        on_exception = Callback.on_exception
        on_train_end = Callback.on_train_end
        state_key = Callback.state_key
        state_dict = Callback.state_dict
        load_state_dict = Callback.load_state_dict

    def find_last(self, trainer: Trainer) -> Path:
        """Return the newest complete checkpoint of this run, or of an earlier run in the same folder.

        Raises:
            ValueError: If there is no complete checkpoint.
        """
        root = run_root(trainer, self.dirpath)
        found = last_checkpoint(root)
        if found is None:
            raise ValueError(f'ckpt_path must not be "last" where no run has left a complete checkpoint, got {root}')
        return found

    @override
    def _find_last_checkpoints(self, trainer: Trainer) -> set[str]:
        return {str(self.find_last(trainer))}


logger = logging.getLogger(__name__)


class RunCheckpoint(SharedFolder, LastCheckpointFinder):
    """Write a folder with Lightning's checkpoint and the state of each rank, such as its replay buffer.

    It is written at the end of an epoch, after the evaluation, and at the end of the run. The folder has a hidden name
    until all of it is on the disk; only then are older ones removed. ``last.ckpt`` is a second name of the newest
    folder's ``run.ckpt``. With several machines the folder must be on a disk that they share. ``ckpt_path="last"``
    finds the newest complete checkpoint.

    If it cannot be written, an error is logged, and the run continues and tries again at the next interval. A run whose
    last checkpoint could not be written ends with an ``OSError``.

    Args:
        dirpath: Folder; None means ``checkpoints`` in the logger's folder. If the folder holds another run's
            checkpoints, a subfolder is used; see :func:`~lightning_ding.callbacks.checkpoint_io.checkpoint_folder`.
        filename: Prefix of the folders' names, which end with the env step, and name of the file, without ``.ckpt``.
        every_n_epochs: Epochs between two checkpoints, >= 1.
        save_buffer: ``"last"`` keeps replay buffers in the newest checkpoint only, ``"always"`` in all checkpoints that
            are kept, ``"never"`` writes none, so that a resumed run starts with an empty buffer.
        keep_last: Number of checkpoints to keep, >= 1.
    """

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
        """Reset at the start of a fit."""
        if stage == "fit":
            self._folder = None
            self._failure.clear()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write a checkpoint if one is due."""
        epochs = trainer.current_epoch + 1
        if trainer.should_stop or epochs == trainer.max_epochs or epochs % (self.every_n_epochs or 1) == 0:
            self.save(trainer, pl_module)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Raise if the last checkpoint could not be written.

        Raises:
            OSError: If the newest attempt to write it failed.
        """
        self._failure.check(previous=self.last_model_path)

    def save(self, trainer: Trainer, pl_module: Any) -> None:
        """Write a checkpoint now; if that fails, log the error. All ranks must call it."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        self._folder = self._folder or checkpoint_folder(trainer, self.dirpath)
        try:
            self._save(trainer, pl_module, self._folder)
        except OSError as error:
            self._failure.record(trainer, self._folder, pl_module.progress.env_step, error)
        else:
            self._failure.clear()
            notify_loggers(trainer, self)

    def _save(self, trainer: Trainer, pl_module: Any, parent: Path) -> None:
        """Write the checkpoint; on an error, remove what was written of it.

        Raises:
            OSError: On all ranks, if one of them could not write.
        """
        progress = pl_module.progress
        name = trainer.strategy.broadcast(RunFolder.free_name(parent, self.filename, progress.env_step))
        folder = RunFolder(parent, self.filename, name)
        facts = {"version": __version__, "world_size": trainer.world_size}
        facts |= {"env_step": progress.env_step, "train_iter": progress.train_iter}
        try:
            on_every_rank(trainer, folder.begin, only_zero=True)
            self._write(trainer, run_data(trainer), folder)
            on_every_rank(trainer, lambda: folder.publish(facts), only_zero=True)
        except BaseException:
            if trainer.is_global_zero:
                folder.discard()
            raise
        self.last_model_path = str(parent / f"{self.filename}.ckpt")
        if trainer.is_global_zero:
            self._retire_older(folder)

    def _write(self, trainer: Trainer, data: RunData, folder: RunFolder) -> None:
        """Write everything but the manifest."""
        if not data.has_rank_state:
            write_lightning_file(trainer, folder.temporary / RUN_FILE)
            return
        own = folder.temporary / f"rank_{trainer.global_rank}"

        def save_rank() -> None:
            own.mkdir()
            data.save_rank_state(own, self.save_buffer != "never")
            sync_tree(own)

        on_every_rank(trainer, save_rank)
        data.rank_folder = folder.name
        try:
            write_lightning_file(trainer, folder.temporary / RUN_FILE)
        finally:
            data.rank_folder = None

    def _retire_older(self, folder: RunFolder) -> None:
        try:
            folder.retire_older(self.keep_last, self.save_buffer)
        except (OSError, TornCheckpointError) as error:
            logger.warning("older checkpoints could not be removed from %s: %s", folder.parent, error)

    @property
    @override
    def written(self) -> str:
        """Path of the newest checkpoint; empty if there is none."""
        return self.last_model_path

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the path of the newest checkpoint."""
        return {"last_model_path": self.last_model_path}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the path of the newest checkpoint, unless this run has written one."""
        if not self.last_model_path:  # evaluating an older checkpoint must not overwrite it
            self.last_model_path = state_dict["last_model_path"]
