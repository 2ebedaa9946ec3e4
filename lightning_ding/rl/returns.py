"""Returns over several steps, cut at the end of an episode.

Shapes: N steps of a window, T steps of a rollout, B batch.
"""

from __future__ import annotations

import torch
from torch import Tensor


def n_step_return(reward: Tensor, alive: Tensor, discount_factor: float) -> tuple[Tensor, Tensor]:
    """Return the discounted reward of up to N steps and the discount of the value behind them.

    The window of an item may be shorter than N, because its episode ended or its successors are not known yet; it then
    bootstraps from where it stops, with the power of gamma that belongs there
    (Sutton and Barto 2018, eq. 7.1; Mnih et al. 2016, section 4, https://arxiv.org/abs/1602.01783).

    Args:
        reward: Rewards of the steps, shape (N, B).
        alive: Whether step k belongs to the item's window; the first row is true, and once false it stays false,
            shape (N, B).
        discount_factor: gamma, in [0, 1].

    Returns:
        The sums r_0 + gamma r_1 + ..., shape (B,), and gamma^k for windows of k steps, shape (B,). Whether the value
        behind the window counts at all is for the caller to say: it does unless the last step terminated.

    Example:
        >>> reward = torch.tensor([[1.0], [1.0], [1.0]])
        >>> n_step_return(reward, torch.tensor([[True], [True], [False]]), 0.5)
        (tensor([1.5000]), tensor([0.2500]))
    """
    steps = torch.arange(reward.shape[0], dtype=reward.dtype, device=reward.device).unsqueeze(1)
    weight = alive * discount_factor**steps  # (N, B)
    return (weight * reward).sum(0), discount_factor ** alive.sum(0)


def discounted_return(
    reward: Tensor, last_value: Tensor, terminated: Tensor, ended: Tensor, discount_factor: float
) -> Tensor:
    """Return the reward-to-go of every step, r_t + gamma r_{t+1} + ... (Williams 1992), with the value behind a cut.

    Args:
        reward: Rewards, shape (T, B).
        last_value: Value of the observation behind each step, shape (T, B) or one that broadcasts to it; read only
            where a sequence ends without termination. Zeros leave such a return without what would have followed.
        terminated: Whether the env ended the episode at this step, shape (T, B).
        ended: Whether this is the last step of a sequence: terminated, truncated or the end of the data, shape (T, B).
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
        behind = torch.where(ended & ~terminated, last_value, 0.0)
        return sum_backwards(reward + discount_factor * behind, ~(ended | terminated) * discount_factor)


@torch.no_grad()
def sum_backwards(term: Tensor, decay: Tensor) -> Tensor:
    """Return x_t = term_t + decay_t x_{t+1}, with nothing behind the last step.

    Args:
        term: Shape (T, B).
        decay: Shape (T, B); its last row is not read.

    Returns:
        The sums, shape (T, B), detached.
    """
    total = term.clone()
    rows, factors = total.unbind(0), decay.unbind(0)
    for t in range(len(rows) - 2, -1, -1):
        rows[t].addcmul_(factors[t], rows[t + 1])
    return total
