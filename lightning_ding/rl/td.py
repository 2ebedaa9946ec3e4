"""Temporal-difference targets and losses of Q-learning.

Shapes: B batch, A actions, N steps of a window. ``discount`` (B,) is gamma^n times (1 - terminated), so termination is
handled in one place, where the discount is computed. Time is in the names: ``tm1`` before the step, ``t`` after it.
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
        q: Action values, shape (..., A).
        action: Action indices, shape (...), integers in [0, A).

    Returns:
        Values, shape (...).

    Example:
        >>> take_action_value(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1, 0]))
        tensor([2., 3.])
    """
    return q.gather(-1, action.unsqueeze(-1)).squeeze(-1)


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


def n_step_return(reward: Tensor, alive: Tensor, discount_factor: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return the discounted reward of up to N steps, and the discount of the value after them.

    The window of an item is shorter than N if its episode ended or later steps are not known yet. It then bootstraps
    from its last step, with the corresponding power of gamma (Sutton and Barto 2018, eq. 7.1; Mnih et al. 2016,
    section 4, https://arxiv.org/abs/1602.01783).

    Args:
        reward: Rewards of the steps, shape (N, B).
        alive: Whether step k belongs to the item's window, shape (N, B). The first row is true; after the first false
            value of an item, all later ones are false.
        discount_factor: gamma, in [0, 1], or that of each item, shape (B,).

    Returns:
        The sums r_0 + gamma r_1 + ..., shape (B,), and gamma^k for windows of k steps, shape (B,). The caller sets this
        discount to 0 where the last step of the window terminated.

    Example:
        >>> reward = torch.tensor([[1.0], [1.0], [1.0]])
        >>> n_step_return(reward, torch.tensor([[True], [True], [False]]), 0.5)
        (tensor([1.5000]), tensor([0.2500]))
    """
    steps = torch.arange(reward.shape[0], dtype=reward.dtype, device=reward.device).unsqueeze(1)
    weight = alive * discount_factor**steps  # (N, B)
    return (weight * reward).sum(0), discount_factor ** alive.sum(0)


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
