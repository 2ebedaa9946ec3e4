"""A datamodule that looks after its Trainer in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningDataModule, Trainer

from lightning_ding.callbacks import StopAtReturn
from lightning_ding.callbacks.bring_checkpoints import bring_checkpoints
from lightning_ding.callbacks.stopping import StopAt, lift_default_epochs


class ToldTrainer(LightningDataModule):
    """Sees to its Trainer when Lightning tells it which one it is, before anything else of a run happens.

    It refuses callbacks that cannot work, brings our checkpoint callbacks, so that ``ckpt_path="last"`` finds them, and
    lifts the 1000 epochs that Lightning sets by itself if the run has a budget of its own.
    """

    max_env_step: int | None = None
    max_train_iter: int | None = None
    stop_value: float | None = None

    if not TYPE_CHECKING:  # for which it stays the attribute that it is in Lightning

        @property
        def trainer(self) -> Trainer | None:
            """The Trainer that it is used in."""
            return self._trainer

        @trainer.setter
        def trainer(self, trainer: Trainer | None) -> None:
            self._trainer = trainer
            if trainer is not None:
                self._look_after(trainer, trainer.lightning_module)  # the policy is known already

    def _look_after(self, trainer: Trainer, policy: Any) -> None:
        if trainer.state.fn == "predict":
            raise ValueError(
                "trainer.predict cannot work with an env, which gives no data set: trainer.test measures the policy, "
                "policy(observations) returns its actions, and predict takes a DataLoader of observations"
            )
        if hasattr(policy, "check_callbacks"):
            policy.check_callbacks(trainer)
        bring_checkpoints(trainer)
        if self._has_budget(trainer, policy):
            lift_default_epochs(trainer)

    def _has_budget(self, trainer: Trainer, policy: Any) -> bool:
        evaluator = getattr(getattr(getattr(policy, "config", None), "eval", None), "evaluator", None)
        limits = (self.max_env_step, self.max_train_iter, self.stop_value, getattr(evaluator, "stop_value", None))
        ending = [one for one in trainer.callbacks if isinstance(one, (StopAt, StopAtReturn))]  # type: ignore[attr-defined]
        return bool(ending) or any(limit is not None for limit in limits)
