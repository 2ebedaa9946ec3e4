"""Load weights at the start of a run, which otherwise starts from the beginning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from typing_extensions import override


class InitialWeights(Callback):
    """Load the weights of a checkpoint into the policy at the start of a fit, a validation or a test.

    Counters, optimizers and replay data start from the beginning; ``ckpt_path`` of the Trainer restores them too.

    Args:
        path: A checkpoint of this package, ``*.ckpt``, or one of DI-engine, ``*.pth.tar``.

    Raises:
        ValueError: If there is no such file.
    """

    def __init__(self, path: str | Path) -> None:
        if not Path(path).is_file():
            raise ValueError(f"path must be a checkpoint, *.ckpt or *.pth.tar, but there is no file {str(path)!r}")
        self.path = str(path)

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Load the weights."""
        self.load(pl_module)

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Load the weights, unless the validation is part of a fit."""
        if trainer.state.fn == "validate":
            self.load(pl_module)

    @override
    def on_test_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Load the weights."""
        self.load(pl_module)

    def load(self, policy: Any) -> None:
        """Load the weights into a policy."""
        policy.has_loaded_weights = True
        if self.path.endswith(".ckpt"):
            policy.load_state_dict(torch.load(self.path, map_location="cpu", weights_only=True)["state_dict"])
        else:
            policy.load_ding_checkpoint(self.path)
