"""Let Lightning find a run's last checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from typing_extensions import override

from lightning_ding.callbacks.folders import run_root
from lightning_ding.checkpoints import last_checkpoint


class FoundByLightning(ModelCheckpoint):
    """A checkpoint callback that says what ``ckpt_path="last"`` is, and writes nothing by itself.

    Lightning 2.6 asks no callback but a ``ModelCheckpoint``, and that one by a private method; with no answer it starts
    from scratch. So this is one, of which nothing is left but the answer.

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
        """Return the newest checkpoint that is whole, of this run or of an earlier one in the same place.

        Raises:
            ValueError: If there is none.
        """
        root = run_root(trainer, self.dirpath)
        found = last_checkpoint(root)
        if found is None:
            raise ValueError(f'ckpt_path must not be "last" where no run has left a whole checkpoint, got {root}')
        return found

    @override
    def _find_last_checkpoints(self, trainer: Trainer) -> set[str]:
        return {str(self.find_last(trainer))}
