"""The mathematics of R2D2: rescaled values, n-step targets within sequences, and priorities of sequences.

Paper: Kapturowski et al. 2019 (https://openreview.net/forum?id=r1lyTjAqYX).

Shapes: T steps, B sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_ding.rl.td import n_step_return

SLOPE = 1e-3  # epsilon of h
ETA = 0.9  # weight of the largest error in a sequence's priority


def value_rescale(x: Tensor, slope: float = SLOPE) -> Tensor:
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + slope x, which makes large returns small (Pohlen et al. 2018, eq. 2).

    See https://arxiv.org/abs/1805.11593; the slope of 0.001 is that of R2D2, section 2.3.

    Args:
        x: Values of any shape.
        slope: Slope of the linear part, > 0.

    Example:
        >>> value_rescale(torch.tensor([3.0, -8.0]), slope=0.5)
        tensor([ 2.5000, -6.0000])
    """
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + slope * x


def value_unscale(x: Tensor, slope: float = SLOPE) -> Tensor:
    """Return the x' with ``value_rescale(x') = x`` (Pohlen et al. 2018, proposition A.2).

    With u = sqrt(|x'| + 1), the equation slope u^2 + u - (1 + slope + |x|) = 0 has one positive solution. It is written
    here as a quotient without a difference of nearly equal numbers, which is more exact in 32 bits.

    Args:
        x: Rescaled values of any shape.
        slope: Slope of the linear part, > 0.

    Example:
        >>> value_unscale(torch.tensor([2.5, -6.0]), slope=0.5)
        tensor([ 3., -8.])
    """
    sum_ = x.abs() + 1 + slope
    root = 2 * sum_ / (1 + (1 + 4 * slope * sum_).sqrt())
    return x.sign() * (root.square() - 1)


def sequence_targets(
    reward: Tensor, terminated: Tensor, mask: Tensor, value: Tensor, discount_factor: float | Tensor, n_step: int
) -> Tensor:
    """Return the n-step target of every step of sequences.

    A window ends after n steps, and earlier where the steps of its sequence end. It bootstraps from the value of the
    observation after its last step, unless that step terminated.

    Args:
        reward: Rewards, shape (T, B).
        terminated: Whether the env ended the episode at this step, shape (T, B).
        mask: Whether a step is real, shape (T, B); after the first false one of a sequence, all later ones are false.
        value: Values of the observations before each step and after the last one, shape (T + 1, B). The value of the
            observation after step t is in row t + 1, also where the episode ended at step t.
        discount_factor: gamma, in [0, 1], or that of each sequence, shape (B,).
        n_step: Longest window n, >= 1.

    Returns:
        Targets, shape (T, B), detached; those of steps that are not real mean nothing.

    Example:
        >>> reward, mask = torch.ones(3, 1), torch.tensor([[True], [True], [False]])
        >>> value = torch.tensor([[0.0], [0.0], [4.0], [0.0]])
        >>> sequence_targets(reward, torch.zeros(3, 1), mask, value, discount_factor=0.5, n_step=2)[:2].flatten()
        tensor([2.5000, 3.0000])
    """
    steps, size = reward.shape
    is_real = mask.bool()
    nothing = torch.zeros(n_step - 1, size, device=reward.device, dtype=reward.dtype)
    later = torch.cat([reward, nothing]).unfold(0, n_step, 1)  # (T, B, n): the rewards from each step on
    alive = torch.cat([is_real, nothing.bool()]).unfold(0, n_step, 1).clone()
    alive[..., 0] = True
    rows = later.flatten(0, 1).T, alive.flatten(0, 1).T
    gamma = discount_factor.repeat(steps) if isinstance(discount_factor, Tensor) else discount_factor
    total, discount = (x.view(steps, size) for x in n_step_return(*rows, gamma))
    last = torch.arange(steps, device=reward.device).unsqueeze(1) + alive.sum(2) - 1
    bootstrap = value.gather(0, last + 1) * torch.logical_not(terminated.gather(0, last))
    return (total + discount * bootstrap).detach()


def sequence_priority(error: Tensor, mask: Tensor, eta: float = ETA) -> Tensor:
    """Return eta max_t |error_t| + (1 - eta) mean_t |error_t| over the steps of each sequence (section 2.3).

    Args:
        error: Temporal-difference errors, shape (T, B).
        mask: Steps that count, shape (T, B).
        eta: Weight of the largest one, in [0, 1].

    Returns:
        Priorities, shape (B,), detached; 0 of a sequence without such steps.

    Example:
        >>> sequence_priority(torch.tensor([[1.0], [-3.0], [9.0]]), torch.tensor([[True], [True], [False]]))
        tensor([2.9000])
    """
    size = error.detach().abs() * mask
    return eta * size.amax(0) + (1 - eta) * size.sum(0) / mask.sum(0).clamp(min=1)
