"""Making the optimizer that a config describes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_ding.policy.base.config import OptimizerConfig


def make_optimizer(config: OptimizerConfig, parameters: Iterable[Tensor], lr: float) -> Optimizer:
    """Return the optimizer that a config describes.

    Args:
        config: Its class and arguments.
        parameters: The parameters that it trains.
        lr: Its step size at the start, > 0.
    """
    shared: dict[str, Any] = {"params": parameters, "lr": lr, "weight_decay": config.weight_decay}
    if config.type == "sgd":
        return torch.optim.SGD(**shared, momentum=config.momentum, fused=True)
    if config.type == "rmsprop":  # torch has no fused one
        return torch.optim.RMSprop(**shared, eps=config.eps, momentum=config.momentum)
    kind = torch.optim.AdamW if config.type == "adamw" else torch.optim.Adam
    return kind(**shared, eps=config.eps, fused=True)
