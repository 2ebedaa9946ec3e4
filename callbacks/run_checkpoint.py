"""Save a run so that it can be resumed, and make ``ckpt_path="last"`` find the newest checkpoint."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from typing_extensions import override

from lightning_ding.callbacks.best_checkpoint import BestCheckpoint
from lightning_ding.callbacks.evaluation_interval import is_passed
from lightning_ding.callbacks.shared_folder import SharedFolder, run_root
from lightning_ding.checkpoints import SaveBuffer, last_checkpoint, save_run
from lightning_ding.config import require
from lightning_ding.utils.protocols import return_text, run_data


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
            raise ValueError(
                f'ckpt_path="last" needs a complete checkpoint, but there is none in {root}: start without ckpt_path, '
                "or pass the path of a checkpoint"
            )
        return found

    @override
    def _find_last_checkpoints(self, trainer: Trainer) -> set[str]:
        return {str(self.find_last(trainer))}


class RunCheckpoint(SharedFolder, LastCheckpointFinder):
    """Write a folder with Lightning's checkpoint and the state of each rank, such as its replay buffer.

    It is written at the end of an epoch, after the evaluation, and at the end of the run; with ``checkpoint_every`` of
    the datamodule, when a multiple of it is passed. It is written by
    :func:`lightning_ding.checkpoints.folder.save_run`: the folder has a hidden name until all of it is on the disk, and
    only then are older ones removed. With several machines the folder must be on a disk that they share.
    ``ckpt_path="last"`` finds the newest complete checkpoint.

    If it cannot be written, an error is logged, and the run continues and tries again at the next interval. A run whose
    last checkpoint could not be written ends with an ``OSError``.

    Args:
        dirpath: Folder; None means ``checkpoints`` in the logger's folder. If the folder holds another run's
            checkpoints, a subfolder is used; see :func:`~lightning_ding.callbacks.shared_folder.checkpoint_folder`.
        filename: Prefix of the folders' names, which end with the env step, and name of the file, without ``.ckpt``.
        every_n_epochs: Epochs between two checkpoints, >= 1; with ``eval_every`` of the datamodule, evaluations. It
            must be 1 with ``checkpoint_every``.
        save_buffer: ``"last"`` keeps replay buffers in the newest checkpoint only, ``"always"`` in all checkpoints that
            are kept, ``"never"`` writes none, so that a resumed run starts with an empty buffer.
        keep_last: Number of checkpoints to keep, >= 1.
    """

    kind = "last"

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
        known = '"never" (formerly False), "last" (formerly True) or "always"'
        require(save_buffer in get_args(SaveBuffer), "save_buffer", known, save_buffer)
        super().__init__(dirpath, every_n_epochs)
        self.filename: str = filename
        self.save_buffer: SaveBuffer = save_buffer
        self.keep_last = keep_last
        self._evaluations = 0
        self._checked = 0  # position at the end of the last epoch

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Find the folder; see :class:`SharedFolder`."""
        every, epochs = run_data(trainer).checkpoint_every, self.every_n_epochs or 1
        require(epochs == 1 or every is None, "every_n_epochs", f"1 with checkpoint_every={every}", epochs)
        super().on_train_start(trainer, pl_module)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write a checkpoint if one is due."""
        is_due = self._is_due(trainer, pl_module.progress.position)
        if trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs or is_due:
            self.save(trainer, pl_module)

    def _is_due(self, trainer: Trainer, position: int) -> bool:
        """Return whether a checkpoint is due at the end of an epoch, and count the epoch."""
        data, (before, self._checked) = run_data(trainer), (self._checked, position)
        if data.checkpoint_every is not None:
            return is_passed(data.checkpoint_every, before, position)
        if data.eval_every is None:
            return (trainer.current_epoch + 1) % (self.every_n_epochs or 1) == 0
        has_evaluated = trainer.check_val_every_n_epoch == 1
        self._evaluations += has_evaluated
        return has_evaluated and self._evaluations % (self.every_n_epochs or 1) == 0

    def save(self, trainer: Trainer, pl_module: Any) -> None:
        """Write a checkpoint now; if that fails, log the error. All ranks must call it."""
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._attempt(trainer, pl_module.progress.position, lambda folder: self._save(trainer, folder))

    def _save(self, trainer: Trainer, folder: Path) -> None:
        self.last_model_path = str(save_run(trainer, folder, self.filename, self.save_buffer, self.keep_last))

    @property
    @override
    def written(self) -> str:
        """Path of the newest checkpoint; empty if there is none."""
        return self.last_model_path

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the path of the newest checkpoint, and where the run is in its interval."""
        return {
            "last_model_path": self.last_model_path,
            "evaluations": self._evaluations,
            "checked": self._checked,
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the path of the newest checkpoint, unless this run has written one, and the place in its interval."""
        self._evaluations = state_dict.get("evaluations", 0)  # older checkpoints lack it
        self._checked = state_dict.get("checked", 0)
        if not self.last_model_path:  # evaluating an older checkpoint must not overwrite it
            self.last_model_path = state_dict["last_model_path"]


def checkpoint_to_use(trainer: Trainer, metric: str, best_value: float) -> str:
    """Return the path of the best checkpoint, or else of the last one, and its own number if that is another one.

    Args:
        trainer: The Trainer, after a fit.
        metric: The metric of the run.
        best_value: Its best value; infinite if there was no evaluation.
    """
    saving = [one for one in trainer.checkpoint_callbacks if isinstance(one, (BestCheckpoint, ModelCheckpoint))]
    best = [one for one in saving if one.monitor is not None and Path(one.best_model_path).is_file()]
    for one in best:
        if one.monitor == metric and _score(one) == best_value:
            return one.best_model_path
    for one in best:
        return f"{one.best_model_path} with {one.monitor} {return_text(_score(one))}"
    last = [one.last_model_path for one in saving if isinstance(one, RunCheckpoint)]
    for path in last:
        if Path(path).is_file():
            return f"{path} with the last policy" if math.isfinite(best_value) else path
    return "none"


def _score(callback: BestCheckpoint | ModelCheckpoint) -> float:
    """Return the score of a callback's best checkpoint."""
    return math.nan if callback.best_model_score is None else float(callback.best_model_score)
