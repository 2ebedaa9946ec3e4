"""Temporal-difference targets and losses of Q-learning.

Shapes: B batch, A actions. ``discount`` (B,) is gamma^n times (1 - terminated), so termination is handled in
one place, where the discount is computed. Time is in the names: ``tm1`` before the step, ``t`` after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

TDLoss = Literal["huber", "mse"]
TD_LOSSES: dict[TDLoss, Callable[..., Tensor]] = {"huber": F.smooth_l1_loss, "mse": F.mse_loss}
"""The losses of :func:`td_loss`. A new one is added here and to ``TDLoss``."""


def take_action_value(q: Tensor, action: Tensor) -> Tensor:
    """Return the value of the action taken.

    Args:
        q: Action values, shape (B, A).
        action: Action indices, shape (B,), integers in [0, A).

    Returns:
        Values, shape (B,).

    Example:
        >>> take_action_value(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1, 0]))
        tensor([2., 3.])
    """
    return q.gather(1, action.unsqueeze(1)).squeeze(1)


def masked(q: Tensor, action_mask: Tensor | None) -> Tensor:
    """Return action values with those of illegal actions set to minus infinity.

    Args:
        q: Action values, shape (..., A).
        action_mask: Non-zero where an action is legal, shape (..., A); None means that all are.

    Returns:
        Values, shape (..., A). A row without legal actions is returned unchanged: it belongs to a terminal observation,
        whose value has a discount of 0.
    """
    if action_mask is None:
        return q
    legal = action_mask.bool()
    return q.masked_fill(~legal & legal.any(-1, keepdim=True), -torch.inf)


def q_target(reward: Tensor, discount_t: Tensor, q_t: Tensor) -> Tensor:
    """Return the Q-learning target r + discount * max_a Q(s', a) (Mnih et al. 2015, https://arxiv.org/abs/1312.5602).

    Args:
        reward: (n-step) rewards, shape (B,).
        discount_t: gamma^n * (1 - terminated), shape (B,).
        q_t: Target network's values of the next observation, illegal actions at minus infinity, shape (B, A).

    Returns:
        Targets, shape (B,), detached.
    """
    return (reward + discount_t * q_t.amax(1)).detach()


def double_q_target(reward: Tensor, discount_t: Tensor, q_t: Tensor, q_t_selector: Tensor) -> Tensor:
    """Return the double Q-learning target (van Hasselt et al. 2016, eq. 4, https://arxiv.org/abs/1509.06461).

    Args:
        reward: (n-step) rewards, shape (B,).
        discount_t: gamma^n * (1 - terminated), shape (B,).
        q_t: Target network's values of the next observation, shape (B, A).
        q_t_selector: Online network's values, illegal actions at minus infinity, shape (B, A); they choose the action.

    Returns:
        Targets, shape (B,), detached.
    """
    return (reward + discount_t * take_action_value(q_t, q_t_selector.argmax(1))).detach()


def td_loss(prediction: Tensor, target: Tensor, weight: Tensor | None = None, kind: TDLoss = "huber") -> Tensor:
    """Return the mean loss between predictions and targets.

    Args:
        prediction: Predicted values Q(s, a), shape (B,).
        target: Targets, shape (B,).
        weight: Importance-sampling weights (Schaul et al. 2016, section 3.4, https://arxiv.org/abs/1511.05952),
            shape (B,); None weights all items equally.
        kind: ``"mse"`` is the squared error, ``"huber"`` half the squared error up to 1 and linear beyond.

    Returns:
        The loss, a scalar.

    Raises:
        ValueError: If ``kind`` is unknown.

    Example:
        >>> td_loss(torch.tensor([0.0, 0.0]), torch.tensor([2.0, 1.0]), kind="mse").item()
        2.5
    """
    if kind not in TD_LOSSES:
        raise ValueError(f"kind must be one of {get_args(TDLoss)}, got {kind!r}")
    function = TD_LOSSES[kind]
    if weight is None:
        return function(prediction, target)
    return (weight * function(prediction, target, reduction="none")).mean()


def td_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Return abs(target - prediction), shape (B,), detached; used as priorities (Schaul et al. 2016)."""
    return (target - prediction.detach()).abs()
