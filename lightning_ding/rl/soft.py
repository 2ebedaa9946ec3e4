"""Soft values: actions, targets and losses of policies that maximise reward and entropy over discrete actions.

Shapes: B batch, A actions, E critics. ``discount_t`` (B,) is gamma^n times (1 - terminated), as in ``td``. Values of
illegal actions are minus infinity (see ``td.masked``); log probabilities of illegal actions are finite, and their
probabilities exactly 0 (see ``distributions.Categorical``).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_ding.rl.distributions import expectation
from lightning_ding.rl.td import take_action_value


def gumbel_perturbed(q: NDArray[np.float32], temperature: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return numbers whose largest is a sample of softmax(q / temperature) (Gumbel 1954).

    Args:
        q: Action values, illegal actions at minus infinity, shape (B, A).
        temperature: Temperature, > 0.
        rng: Random number generator.
    """
    perturbed: NDArray[np.float64] = q / temperature + rng.gumbel(size=q.shape)
    return perturbed


def soft_value(q: Tensor, temperature: float | Tensor) -> Tensor:
    """Return temperature * log(sum_a exp(Q(s, a) / temperature)), shape (B,) (Haarnoja et al. 2017, eq. 4).

    See https://arxiv.org/abs/1702.08165. It is the expectation of Q - temperature * log pi under the policy pi =
    softmax(Q / temperature), and tends to the maximum as the temperature tends to 0.

    Args:
        q: Action values, illegal actions at minus infinity, shape (B, A).
        temperature: Weight of the entropy, > 0.

    Example:
        >>> soft_value(torch.tensor([[0.0, 0.0], [1.0, -torch.inf]]), 1.0)
        tensor([0.6931, 1.0000])
    """
    return temperature * torch.logsumexp(q / temperature, 1)


def soft_q_target(reward: Tensor, discount_t: Tensor, q_t: Tensor, temperature: float | Tensor) -> Tensor:
    """Return r + discount * soft value of the next observation (Haarnoja et al. 2017, eq. 7).

    Args:
        reward: (n-step) rewards, shape (B,).
        discount_t: gamma^n * (1 - terminated), shape (B,).
        q_t: Target network's values of the next observation, illegal actions at minus infinity, shape (B, A).
        temperature: Weight of the entropy, > 0.

    Returns:
        Targets, shape (B,), detached.
    """
    return (reward + discount_t * soft_value(q_t, temperature)).detach()


def munchausen_bonus(q_tm1: Tensor, action: Tensor, temperature: float, lower_bound: float) -> Tensor:
    """Return temperature * log pi(a|s) of the action taken, clipped to [lower_bound, 0] (Vieillard et al. 2020, eq. 1).

    See https://arxiv.org/abs/2007.14430; section 3.1 introduces the clipping. The policy is softmax(Q / temperature).

    Args:
        q_tm1: Target network's values of the observation, illegal actions at minus infinity, shape (B, A).
        action: Indices of the actions taken, shape (B,).
        temperature: Weight of the entropy, > 0.
        lower_bound: Smallest bonus, < 0.

    Returns:
        Bonuses, shape (B,), detached.
    """
    bonus = take_action_value(q_tm1, action) - soft_value(q_tm1, temperature)
    return bonus.clamp(lower_bound, 0).detach()


def expected_soft_value(log_p: Tensor, q: Tensor, alpha: Tensor) -> Tensor:
    """Return sum_a pi(a|s) (min over critics of Q(s, a) - alpha log pi(a|s)) (Christodoulou 2019, eq. 10).

    See https://arxiv.org/abs/1910.07207.

    Args:
        log_p: Log probabilities of all actions, shape (B, A).
        q: Values of all actions, shape (E, B, A); those of illegal ones do not count.
        alpha: Temperature, >= 0, a scalar.

    Returns:
        Values, shape (B,). Minus their mean is the actor's loss (eq. 12), if ``q`` and ``alpha`` have no gradient.
    """
    return expectation(log_p, q.amin(0) - alpha * log_p)
