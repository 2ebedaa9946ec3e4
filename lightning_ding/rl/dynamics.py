"""Maths of learned models of an env: their loss, bounds of their variance, and known ends of episodes.

Shapes: E members, B batch, D predicted numbers, O numbers of an observation, A dimensions of an action.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def gaussian_nll(mean: Tensor, log_var: Tensor, target: Tensor) -> Tensor:
    """Return (target - mean)^2 / var + log var (Chua et al. 2018, eq. 1, https://arxiv.org/abs/1805.12114).

    This is twice the negative log likelihood of a diagonal Gaussian, without its constant, and for each number.

    Args:
        mean: Predicted means, shape (E, B, D).
        log_var: Logarithms of the predicted variances, shape (E, B, D).
        target: Numbers to predict, shape (E, B, D), or (B, D) for all members.

    Example:
        >>> gaussian_nll(torch.zeros(1), torch.zeros(1), torch.tensor([3.0]))
        tensor([9.])
    """
    return (target - mean).square() * (-log_var).exp() + log_var


def softly_bounded(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return ``x`` moved smoothly above ``low`` and below about ``high`` (Chua et al. 2018, appendix A.1).

    The result is close to ``x`` between the bounds. The upper bound is applied first, as the authors do, so values near
    ``high`` come out above it by softplus(low - high) at the most.
    """
    x = high - F.softplus(high - x)
    return low + F.softplus(x - low)


def never_terminated(obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
    """Return that no step ends an episode, shape (B,), as in Pendulum and HalfCheetah.

    Args:
        obs: Observations, shape (B, O).
        action: Actions in the env's units, shape (B, A).
        next_obs: Observations after the step, shape (B, O).
    """
    return torch.zeros(len(next_obs), dtype=torch.bool, device=next_obs.device)


def inverted_pendulum_terminated(obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
    """Return which steps of Gymnasium's InvertedPendulum end an episode, shape (B,); see :func:`never_terminated`."""
    return ~next_obs.isfinite().all(1) | (next_obs[:, 1].abs() > 0.2)


def hopper_terminated(obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
    """Return which steps of Gymnasium's Hopper end an episode, shape (B,); see :func:`never_terminated`."""
    is_healthy = (next_obs[:, 1:].abs() < 100).all(1) & (next_obs[:, 0] > 0.7) & (next_obs[:, 1].abs() < 0.2)
    return ~(next_obs.isfinite().all(1) & is_healthy)


def walker2d_terminated(obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
    """Return which steps of Gymnasium's Walker2d end an episode, shape (B,); see :func:`never_terminated`."""
    height, angle = next_obs[:, 0], next_obs[:, 1]
    return ~((height > 0.8) & (height < 2.0) & (angle.abs() < 1.0))
