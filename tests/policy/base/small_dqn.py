"""A small DQN policy and its data."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lightning_ding.policy import DQNPolicy

CFG: dict[str, Any] = {
    "model": {"obs_shape": 4, "action_shape": 3, "encoder_hidden_size_list": [8]},
    "learn": {"batch_size": 6, "learning_rate": 0.01},
    "collect": {"n_sample": 5},
}


def make_policy(seed: int = 0, cfg: Any = None, **kwargs: Any) -> DQNPolicy:
    torch.manual_seed(seed)
    policy = DQNPolicy(cfg or CFG, **kwargs)
    policy.seed(seed)
    return policy


def make_batch(seed: int = 0, size: int = 6) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(size, 4, generator=generator),
        "action": torch.randint(0, 3, (size,), generator=generator),
        "reward": torch.randn(size, generator=generator),
        "next_obs": torch.randn(size, 4, generator=generator),
        "terminated": torch.arange(size) % 3 == 0,
        "truncated": torch.zeros(size, dtype=torch.bool),
    }


def weights(module: nn.Module) -> list[float]:
    """Return all parameters as numbers."""
    return torch.cat([p.detach().flatten() for p in module.parameters()]).tolist()
