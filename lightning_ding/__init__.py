"""Reinforcement learning as PyTorch Lightning.

Policies are LightningModules, DataModules collect and replay data, and Callbacks stop, save and log a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_ding.policy import load_policy as load_policy

__version__ = "0.1.0"
__all__ = ["__version__", "load_policy"]


def __getattr__(name: str) -> Any:
    if name != "load_policy":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lightning_ding.policy import load_policy  # later, because it imports torch

    return load_policy
