"""Returns and advantages over several steps, cut at the end of an episode.

Shapes: T steps of a rollout, B batch or envs.
"""

from __future__ import annotations

import torch
from torch import Tensor


def discounted_return(
    reward: Tensor, last_value: Tensor, terminated: Tensor, ended: Tensor, discount_factor: float
) -> Tensor:
    """Return the reward-to-go r_t + gamma r_{t+1} + ... (Williams 1992), bootstrapped where a sequence was cut.

    Args:
        reward: Rewards, shape (T, B).
        last_value: Value of the observation after each step, of a shape that broadcasts to (T, B). It is used only
            where a sequence ends without termination; zeros disable bootstrapping.
        terminated: Whether the env ended the episode at this step, shape (T, B).
        ended: Whether this is the last step of a sequence (terminated, truncated or the end of the data), shape (T, B).
        discount_factor: gamma, in [0, 1].

    Returns:
        Returns, shape (T, B), detached.

    Example:
        >>> ended = torch.tensor([[False], [True]])
        >>> discounted_return(torch.ones(2, 1), torch.full((2, 1), 4.0), torch.zeros_like(ended), ended, 0.5).tolist()
        [[2.5], [3.0]]
    """
    terminated, ended = terminated.bool(), ended.bool()
    with torch.no_grad():
        bootstrap = torch.where(ended & ~terminated, last_value, 0.0)
        return sum_backwards(reward + discount_factor * bootstrap, ~(ended | terminated) * discount_factor)


@torch.no_grad()
def sum_backwards(term: Tensor, decay: Tensor) -> Tensor:
    """Return the backward recursion x_t = term_t + decay_t x_{t+1}, which starts with x_{T-1} = term_{T-1}.

    Args:
        term: Terms, shape (T, B).
        decay: Factors of the next step's sum, shape (T, B); the last row is not used.

    Returns:
        The sums, shape (T, B), detached.
    """
    total = term.clone()
    rows, factors = total.unbind(0), decay.unbind(0)
    for t in range(len(rows) - 2, -1, -1):
        rows[t].addcmul_(factors[t], rows[t + 1])
    return total


@torch.no_grad()
def lambda_return(
    reward: Tensor, next_value: Tensor, terminated: Tensor, ended: Tensor, discount_factor: float, lambda_: float
) -> Tensor:
    """Return the returns G_t = r_t + gamma ((1 - lambda) V(s_{t+1}) + lambda G_{t+1}), which mix those of all lengths.

    They are those of TD(lambda) (Sutton and Barto 2018, eq. 12.18). With V(s) = max_a Q(s, a) they are those of
    Q(lambda) of Peng and Williams 1996 (https://doi.org/10.1007/BF00114731), which does not stop at exploring actions,
    and which PQN learns (Gallici et al. 2024, section 4, https://arxiv.org/abs/2407.04811). The last step of a sequence
    has r + gamma V(s'), also at a truncation and at the end of the rollout, and a terminated one r.

    Args:
        reward: Rewards, shape (T, B).
        next_value: Values of the true next observations (at the end of an episode the final one, not the one after the
            reset), shape (T, B); ignored where ``terminated``.
        terminated: Whether the env ended the episode at this step, shape (T, B).
        ended: Whether this is the last step of a sequence (terminated, truncated or the end of the data), shape (T, B).
        discount_factor: gamma, in [0, 1].
        lambda_: Trade-off of bias and variance, in [0, 1]; 0 gives the one-step target, 1 the discounted return.

    Returns:
        Returns, shape (T, B), detached.

    Example:
        >>> truncated = torch.tensor([[False], [True]])
        >>> value = torch.tensor([[2.0], [4.0]])
        >>> lambda_return(torch.ones(2, 1), value, torch.zeros_like(truncated), truncated, 0.5, 0.5).tolist()
        [[2.25], [3.0]]
    """
    terminated = terminated.bool()
    continues = ~(ended.bool() | terminated)
    weight = discount_factor * (1 - lambda_ * continues.to(reward.dtype))  # of the next value
    term = torch.addcmul(reward, weight, next_value.masked_fill(terminated, 0.0))
    return sum_backwards(term, continues * (discount_factor * lambda_))


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

    With the error delta = r + gamma V(s') - V(s), the advantage of a step is delta + gamma lambda times the advantage
    of the next step. After the last step of a sequence the recursion starts again. V(s') counts unless the step
    terminated, so also at a truncation and at the end of the rollout.

    Args:
        reward: Rewards, shape (T, B).
        value: Values of the observations acted on, shape (T, B).
        next_value: Values of the true next observations (at the end of an episode the final one, not the one after the
            reset), shape (T, B); ignored where ``terminated``.
        terminated: Whether the env ended the episode at this step, shape (T, B).
        ended: Whether this is the last step of a sequence (terminated, truncated or the end of the data), shape (T, B).
        discount_factor: gamma, in [0, 1].
        gae_lambda: Trade-off of bias and variance, in [0, 1]; 0 gives the one-step error, 1 the Monte Carlo return
            minus the value.

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
