"""Logging the episodes of an evaluation.

Shapes: E episodes over all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor


def log_episodes(module: Any, stage: str, episodes: Mapping[str, Tensor]) -> None:
    """Log mean, standard deviation, minimum and maximum of the return, and the mean length, over all ranks.

    Args:
        module: The policy.
        stage: Prefix of the names.
        episodes: ``episode_return`` and ``episode_length`` of all E episodes, shape (E,), zero where another rank
            ran them.
    """
    table = torch.stack([episodes["episode_return"], episodes["episode_length"]]).double()
    returns, lengths = cast(Tensor, module.trainer.strategy.reduce(table, reduce_op="sum"))
    values = {
        "return_mean": returns.mean(),
        "return_std": returns.std(correction=0),
        "return_min": returns.min(),
        "return_max": returns.max(),
        "length_mean": lengths.mean(),
    }
    named = {f"{stage}/{name}": value.float() for name, value in values.items()}
    step = torch.tensor(float(module.progress.env_step))  # a metric of this name is Lightning's x axis
    module.log_dict({**named, "step": step}, batch_size=1, sync_dist=True)
