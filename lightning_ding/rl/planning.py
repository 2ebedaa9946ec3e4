"""Planning by model predictive path integral control (MPPI), for many envs at the same time.

Papers: Williams et al. 2015 (https://arxiv.org/abs/1509.01149); the form with elites and proposals of a policy is that
of Hansen et al. 2022, algorithm 1 (https://arxiv.org/abs/2203.04955).

Shapes: B envs, K candidate plans, P of them proposed by a policy, M elites, H steps of a plan, A dimensions of an
action, I iterations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Plan(NamedTuple):
    """The distribution of plans after the last iteration, and its elites."""

    mean: Tensor
    """Weighted mean of the elites, shape (B, H, A)."""
    std: Tensor
    """Weighted standard deviation of the elites within its bounds, shape (B, H, A)."""
    elites: Tensor
    """The best candidates, the best one first, shape (B, M, H, A)."""
    weight: Tensor
    """Weights of the elites, which sum to 1, shape (B, M)."""


def elite_weights(value: Tensor, number: int, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the places of the best candidates and their weights, softmax(temperature * value), shapes (B, M).

    Args:
        value: Values of the candidates, shape (B, K). NaN is less than all other values.
        number: M, in [1, K].
        temperature: Factor of the values, >= 0; elites of a larger one are weighted more unequally.

    Example:
        >>> place, weight = elite_weights(torch.tensor([[0.0, 2.0, 1.0]]), 2, 0.0)
        >>> place.tolist(), weight.tolist()
        ([[1, 2]], [[0.5, 0.5]])
    """
    best = value.nan_to_num(nan=torch.finfo(value.dtype).min).topk(number, dim=1)
    return best.indices, (temperature * (best.values - best.values[:, :1])).softmax(1)


def weighted_moments(elites: Tensor, weight: Tensor, min_std: float, max_std: float) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of weighted plans, shapes (B, H, A).

    Args:
        elites: Plans, shape (B, M, H, A).
        weight: Their weights, which sum to 1, shape (B, M).
        min_std: Smallest standard deviation that is returned, >= 0.
        max_std: Largest standard deviation that is returned, >= min_std.

    Example:
        >>> elites = torch.tensor([0.0, 1.0]).view(1, 2, 1, 1)
        >>> mean, std = weighted_moments(elites, torch.tensor([[0.5, 0.5]]), 0.1, 2.0)
        >>> mean.item(), std.item()
        (0.5, 0.5)
    """
    share = weight[:, :, None, None]
    mean = (share * elites).sum(1)
    variance = (share * (elites - mean.unsqueeze(1)).square()).sum(1)
    return mean, variance.sqrt().clamp(min_std, max_std)


def mppi(
    value_of: Callable[[Tensor, int], Tensor],
    mean: Tensor,
    proposals: Tensor,
    noise: Tensor,
    *,
    num_elites: int,
    temperature: float,
    min_std: float,
    max_std: float,
) -> Plan:
    """Return plans with actions in [-1, 1] that iterated sampling found to be good.

    Each iteration draws candidates from normal distributions, adds the proposals, and moves the distributions to the
    weighted elites. The first standard deviation is ``max_std``.

    Args:
        value_of: Returns the values, shape (B, K), of candidates, shape (B, K, H, A), in an iteration, from 0.
        mean: Mean of the first distribution, shape (B, H, A).
        proposals: Plans of a policy, which are candidates in every iteration, shape (B, P, H, A); P may be 0.
        noise: Standard normal numbers, shape (I, B, K - P, H, A), or (I, 1, K - P, H, A) for equal ones in all envs.
        num_elites: M, in [1, K].
        temperature: See :func:`elite_weights`.
        min_std: See :func:`weighted_moments`.
        max_std: See :func:`weighted_moments`.
    """
    std = torch.full_like(mean, max_std)
    for iteration, numbers in enumerate(noise):
        drawn = torch.addcmul(mean.unsqueeze(1), std.unsqueeze(1), numbers).clamp(-1, 1)
        candidates = torch.cat([proposals, drawn], 1)
        place, weight = elite_weights(value_of(candidates, iteration), num_elites, temperature)
        elites = candidates.take_along_dim(place[:, :, None, None], 1)
        mean, std = weighted_moments(elites, weight, min_std, max_std)
    return Plan(mean, std, elites, weight)


def first_action(plan: Plan, gumbel: Tensor, noise: Tensor | None = None) -> Tensor:
    """Return the first action of an elite that is drawn with the probabilities of its weights, shape (B, A).

    Args:
        plan: A plan of each env.
        gumbel: Standard Gumbel numbers, shape (B, M) or (1, M), which select the elites.
        noise: Standard normal numbers, shape (B, A), which are added in units of the plan's standard deviation; None
            adds nothing.

    Returns:
        Actions in [-1, 1].
    """
    drawn = (plan.weight.log() + gumbel).argmax(1)
    action = plan.elites[torch.arange(len(drawn), device=drawn.device), drawn, 0]
    return action if noise is None else torch.addcmul(action, plan.std[:, 0], noise).clamp(-1, 1)


def moved_on(mean: Tensor) -> Tensor:
    """Return the mean from which the next step's plan starts: without the first action, and with a last one of 0.

    Args:
        mean: Mean of a plan, shape (B, H, A).

    Example:
        >>> moved_on(torch.tensor([[[0.25], [0.5], [1.0]]])).flatten().tolist()
        [0.5, 1.0, 0.0]
    """
    return torch.cat([mean[:, 1:], torch.zeros_like(mean[:, :1])], 1)
