"""A datamodule that looks after its Trainer in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningDataModule, Trainer

from lightning_ding.callbacks.bring_checkpoints import bring_checkpoints


class ToldTrainer(LightningDataModule):
    """Sees to its Trainer when Lightning tells it which one it is, before anything else of a run happens.

    It refuses callbacks that cannot work and brings our checkpoint callbacks, so that ``ckpt_path="last"`` finds them.
    """

    if not TYPE_CHECKING:  # for which it stays the attribute that it is in Lightning

        @property
        def trainer(self) -> Trainer | None:
            """The Trainer that it is used in."""
            return self._trainer

        @trainer.setter
        def trainer(self, trainer: Trainer | None) -> None:
            self._trainer = trainer
            if trainer is not None:
                _refuse_prediction(trainer)
                policy: Any = trainer.lightning_module  # known already
                getattr(policy, "check_callbacks", lambda _: None)(trainer)
                bring_checkpoints(trainer)


def _refuse_prediction(trainer: Trainer) -> None:
    if trainer.state.fn == "predict":
        raise ValueError(
            "trainer.predict cannot work with an env, which gives no data set: trainer.test measures the policy, "
            "policy(observations) returns its actions, and predict takes a DataLoader of observations"
        )
