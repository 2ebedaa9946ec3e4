"""Generalised advantage estimation.

Shapes: T steps of a rollout, B envs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_ding.rl.returns import sum_backwards


@torch.no_grad()
def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    ended: Tensor,
    discount_factor: float,
    gae_lambda: float,
) -> Tensor:
    """Return generalised advantage estimates (Schulman et al. 2016, eq. 11-16, https://arxiv.org/abs/1506.02438).

    The error of a step is delta = r + gamma V(s') - V(s), its advantage delta + gamma lambda times the advantage of the
    step behind it. Nothing is taken over from behind a step that ended its sequence; V(s') counts unless the step
    terminated, thus also at a truncation and where the rollout stops.

    Args:
        reward: Rewards, shape (T, B).
        value: Values of the observations acted on, shape (T, B).
        next_value: Values of the true next observations (at an episode's end the final one, not the one after the
            reset), shape (T, B); not read where ``terminated``.
        terminated: Whether the env ended the episode at this step, shape (T, B).
        ended: Whether this is the last step of a sequence: terminated, truncated or the end of the data, shape (T, B).
        discount_factor: gamma, in [0, 1].
        gae_lambda: Bias-variance mix in [0, 1]; 0 is the one-step error, 1 the Monte Carlo return minus the value.

    Returns:
        Advantages, shape (T, B), detached.

    Example:
        >>> flags = torch.tensor([[False], [True]])
        >>> gae(torch.ones(2, 1), torch.zeros(2, 1), torch.zeros(2, 1), flags, flags, 1.0, 0.5).tolist()
        [[1.5], [1.0]]
    """
    terminated = terminated.bool()
    delta = torch.add(reward - value, next_value.masked_fill(terminated, 0.0), alpha=discount_factor)
    return sum_backwards(delta, ~(ended.bool() | terminated) * (discount_factor * gae_lambda))
