"""Reinforcement learning as PyTorch Lightning.

Policies are LightningModules, DataModules collect and replay data, and Callbacks stop, save and log a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_ding.entry.agent import Agent as Agent
    from lightning_ding.policy import load_policy as load_policy

__version__ = "0.1.0"
__all__ = ["Agent", "__version__", "load_policy"]
_HOMES = {"Agent": "entry.agent", "load_policy": "policy"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # the names are found later, because their modules import torch

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
