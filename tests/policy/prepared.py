"""The loss of a minibatch as a buffer gives it."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def prepared_loss(policy: Any, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and the report of a policy for a minibatch that it prepares first."""
    found: tuple[Tensor, dict[str, Tensor]] = policy.loss(policy.prepare(batch))
    return found
