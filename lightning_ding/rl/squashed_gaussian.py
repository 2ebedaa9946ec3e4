"""A normal distribution squashed into [-1, 1] by tanh (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905).

Shapes: B batch, A dimensions of an action.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

LOG_2 = math.log(2)
HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def squashed_gaussian_sample(mu: Tensor, log_sigma: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions tanh(u), u = mu + sigma * noise, and their log density (appendix C, eq. 21).

    log(1 - tanh(u)^2) is computed as 2 (log 2 - u - softplus(-2 u)), which is exact where tanh(u) rounds to 1.

    Args:
        mu: Means before squashing, shape (B, A).
        log_sigma: Logarithms of the standard deviations before squashing, shape (B, A).
        noise: Standard normal noise, shape (B, A).

    Returns:
        Actions in [-1, 1], shape (B, A), and log densities, shape (B,); both differentiable in ``mu`` and
        ``log_sigma``.

    Example:
        >>> action, log_prob = squashed_gaussian_sample(*torch.zeros(3, 1, 1))
        >>> action.item(), round(log_prob.item(), 4)  # that of a standard normal at 0
        (0.0, -0.9189)
    """
    u = torch.addcmul(mu, log_sigma.exp(), noise)
    return u.tanh(), _log_prob(u, log_sigma, noise)


def squashed_gaussian_log_prob(mu: Tensor, log_sigma: Tensor, action: Tensor) -> Tensor:
    """Return log densities, shape (B,), of given actions, shape (B, A), inside (-1, 1); arguments as of the sample."""
    u = action.atanh()
    return _log_prob(u, log_sigma, (u - mu) / log_sigma.exp())


def _log_prob(u: Tensor, log_sigma: Tensor, noise: Tensor) -> Tensor:
    log_slope = 2 * (LOG_2 - u - F.softplus(-2 * u))
    return -(0.5 * noise.square() + log_sigma + log_slope).sum(1) - u.shape[1] * HALF_LOG_TWO_PI
