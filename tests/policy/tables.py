"""For losses that are worked out by hand: a minibatch of two rows, a network that is a table, and the loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class TableNet(nn.Module):
    """Looks up the values of a state."""

    def __init__(self, table: list[list[float]]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.tensor(table))

    def forward(self, obs: Any) -> dict[str, Tensor]:
        return {"logit": self.table[(obs["state"] if isinstance(obs, dict) else obs).long().reshape(-1)]}


def make_batch(**changes: Any) -> dict[str, Any]:
    """Return two steps from state 0 to state 1, with the actions 0 and 1."""
    return {
        "obs": torch.zeros(2, 1),
        "action": torch.tensor([0, 1]),
        "reward": torch.tensor([1.0, -1.0]),
        "next_obs": torch.ones(2, 1),
        "terminated": torch.tensor([False, False]),
        "truncated": torch.tensor([False, False]),
        **changes,
    }


def prepared_loss(policy: Any, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and the report of a policy for a minibatch as a buffer gives it, which it prepares first."""
    found: tuple[Tensor, dict[str, Tensor]] = policy.loss(policy.prepare(batch))
    return found
