"""Say in one line what a run gave."""

from __future__ import annotations

import math
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override


class LastLine(Callback):
    """Logs, when a fit is over, its env steps, the best mean return of its evaluations, and the checkpoint to take."""

    def __init__(self) -> None:
        self._best = -math.inf

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Note the return of an evaluation."""
        mean = trainer.callback_metrics.get("eval/return_mean")
        if trainer.state.fn == "fit" and mean is not None and float(mean) > self._best:
            self._best = float(mean)

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Log the line, on rank zero."""
        best = f"best return {self._best:.1f}" if math.isfinite(self._best) else "no evaluation"
        env_step = pl_module.progress.env_step
        rank_zero_info(f"fit ended: {env_step} env steps, {best}, checkpoint {_checkpoint(trainer) or 'none'}")

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return what survives a checkpoint."""
        return {"best": self._best}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what survives a checkpoint."""
        self._best = max(self._best, state_dict["best"])


def _checkpoint(trainer: Trainer) -> str:
    """Return the path of the best checkpoint, else of the last; empty if there is none."""
    paths = [
        getattr(callback, name, "")
        for name in ("best_model_path", "last_model_path")
        for callback in trainer.checkpoint_callbacks
    ]
    return next((path for path in paths if path), "")
