"""Checkpoints of tiny runs, for the commands that use trained policies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer

from lightning_ding.datamodules import ReplayDataModule
from tests.algorithms.table import make_policy

VECTOR_ENV = "gymnasium.envs.classic_control.cartpole.CartPoleVectorEnv"
"""A class that makes a vector env, for runs with ``mode="native"``."""
VECTOR_WRAPPER = "gymnasium.wrappers.vector.FlattenObservation"


def train(make_trainer: Callable[..., Trainer], folder: Path, name: str = "dqn", **arguments: Any) -> Path:
    """Return the checkpoint of a run of 16 env steps in CartPole."""
    torch.manual_seed(0)
    datamodule = ReplayDataModule(**{"env_id": "CartPole-v1", "num_envs": 2, "max_env_step": 16, **arguments})
    make_trainer(enable_checkpointing=True, limit_val_batches=0).fit(make_policy(name), datamodule)
    return folder / "checkpoints" / "last.ckpt"
