"""Checkpoints of policies without a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning import Trainer

from lightning_ding.policy import Policy


def write_checkpoint(policy: Policy[Any], file: Path) -> Path:
    """Write a Lightning checkpoint of a policy, and return its path."""
    trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.strategy.connect(policy)
    trainer.save_checkpoint(file)
    return file
