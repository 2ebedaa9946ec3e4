"""The policy-gradient loss.

Shapes: B batch.
"""

from __future__ import annotations

from torch import Tensor


def policy_gradient_loss(log_prob: Tensor, weight: Tensor) -> Tensor:
    """Return -mean(log pi(a|s) * weight) (Williams 1992; Sutton and Barto 2018, eq. 13.8).

    Args:
        log_prob: log pi(a|s) of the actions taken, shape (B,).
        weight: What followed each action, a return or an advantage, shape (B,); no gradient flows into it.

    Returns:
        The loss, a scalar, whose gradient is minus the policy gradient.
    """
    return -(log_prob * weight.detach()).mean()
