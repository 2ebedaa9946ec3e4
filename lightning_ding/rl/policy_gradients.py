"""Losses of policy gradient methods: REINFORCE, A2C and PPO.

Shapes: B batch. The ratio of a step is pi(a|s) / pi_old(a|s).
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor


def policy_gradient_loss(log_prob: Tensor, weight: Tensor) -> Tensor:
    """Return -mean(log pi(a|s) * weight) (Williams 1992; Sutton and Barto 2018, eq. 13.8).

    Args:
        log_prob: log pi(a|s) of the actions taken, shape (B,).
        weight: Return or advantage of each action, shape (B,); no gradient flows through it.

    Returns:
        The loss, a scalar, whose gradient is minus the policy gradient.
    """
    return -(log_prob * weight.detach()).mean()


class PPOPolicyLoss(NamedTuple):
    """The policy loss, and two detached measures of how far the policy has moved.

    Attributes:
        loss: The loss to minimise, a scalar.
        approx_kl: Estimate of KL(pi_old || pi) in nats, a scalar.
        clip_fraction: Fraction of steps whose ratio is outside the clip range, a scalar.
    """

    loss: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def ppo_policy_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    clip_ratio: float | Tensor,
    dual_clip: float | None = None,
) -> PPOPolicyLoss:
    """Return the negative clipped surrogate objective (Schulman et al. 2017, eq. 7, https://arxiv.org/abs/1707.06347).

    Args:
        log_prob: log pi(a|s) of the trained policy, shape (B,).
        old_log_prob: log pi_old(a|s) of the policy that acted, shape (B,).
        advantage: Advantages, shape (B,).
        clip_ratio: Distance from 1 beyond which the ratio is clipped, > 0. A tensor is not checked, because reading its
            value would synchronise with its device.
        dual_clip: Upper bound, > 1, on the ratio where the advantage is negative (Ye et al. 2020, eq. 5,
            https://arxiv.org/abs/1912.09729); None for no bound.

    Raises:
        ValueError: If ``clip_ratio`` or ``dual_clip`` is out of its range.

    Example:
        >>> ratio, advantage = torch.tensor([1.5, 0.5]), torch.tensor([1.0, 1.0])
        >>> round(ppo_policy_loss(ratio.log(), torch.zeros(2), advantage, 0.2).loss.item(), 4)  # -(1.2 + 0.5) / 2
        -0.85
    """
    if not (isinstance(clip_ratio, Tensor) or clip_ratio > 0):
        raise ValueError(f"clip_ratio must be > 0, got {clip_ratio!r}")
    if not (dual_clip is None or dual_clip > 1):
        raise ValueError(f"dual_clip must be > 1 or None, got {dual_clip!r}")
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    low, high = cast("tuple[float, float]", (1 - clip_ratio, 1 + clip_ratio))  # both may be tensors
    objective = torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
    if dual_clip is not None:
        objective = torch.where(advantage < 0, torch.maximum(objective, dual_clip * advantage), objective)
    with torch.no_grad():
        step = ratio - 1
        kl, clipped = (step - log_ratio).mean(), (step.abs() > clip_ratio).float().mean()
    return PPOPolicyLoss(-objective.mean(), kl, clipped)


def ppo_value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip_ratio: float | None = None) -> Tensor:
    """Return half the mean squared error of values, with clipping the larger error of the value and the clipped value.

    Clipping bounds how far a value moves in an update. Taking the larger error is pessimistic, like the surrogate
    objective (Engstrom et al. 2020, section 3, https://arxiv.org/abs/2005.12729). Both cases have the factor 1/2, so
    clipping does not change the scale of the loss.

    Args:
        value: Values of the trained network, shape (B,).
        old_value: Values of the network that acted, shape (B,); used only with ``clip_ratio``.
        target: Returns, shape (B,).
        clip_ratio: Largest difference of a value from its old one, > 0, in units of the value; None for no clipping.

    Returns:
        The loss, a scalar.

    Raises:
        ValueError: If ``clip_ratio`` is out of its range.
    """
    if clip_ratio is None:
        return 0.5 * F.mse_loss(value, target)
    if not (isinstance(clip_ratio, Tensor) or clip_ratio > 0):
        raise ValueError(f"clip_ratio must be > 0 or None, got {clip_ratio!r}")
    clipped = old_value + (value - old_value).clamp(-clip_ratio, clip_ratio)
    return 0.5 * torch.maximum((value - target).square(), (clipped - target).square()).mean()


@torch.no_grad()
def approx_kl(log_prob: Tensor, old_log_prob: Tensor) -> Tensor:
    """Return an estimate of KL(pi_old || pi) from actions of pi_old: mean(ratio - 1 - log ratio), never negative.

    This is the estimator k3 of Schulman 2020 (http://joschu.net/blog/kl-approx.html).

    Args:
        log_prob: log pi(a|s), shape (B,).
        old_log_prob: log pi_old(a|s), shape (B,).

    Returns:
        The estimate in nats, a scalar, detached.
    """
    log_ratio = log_prob - old_log_prob
    return (log_ratio.expm1() - log_ratio).mean()


def standardise(x: Tensor, eps: float = 1e-8) -> Tensor:
    """Return (x - mean) / (std + eps) with the unbiased standard deviation; a single number stays as it is.

    Example:
        >>> standardise(torch.tensor([1.0, 2.0, 3.0]))
        tensor([-1.,  0.,  1.])
    """
    if x.numel() < 2:
        return x
    std, mean = torch.std_mean(x)
    return (x - mean) / (std + eps)
