"""A datamodule that looks after its Trainer's callbacks in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning.pytorch import LightningDataModule, Trainer

from lightning_ding.callbacks.bring_checkpoints import bring_checkpoints


class ToldTrainer(LightningDataModule):
    """Brings our checkpoint callbacks when Lightning tells it its Trainer, so that ``ckpt_path="last"`` finds them."""

    if not TYPE_CHECKING:  # for which it stays the attribute that it is in Lightning

        @property
        def trainer(self) -> Trainer | None:
            """The Trainer that it is used in."""
            return self._trainer

        @trainer.setter
        def trainer(self, trainer: Trainer | None) -> None:
            self._trainer = trainer
            if trainer is not None:
                bring_checkpoints(trainer)
