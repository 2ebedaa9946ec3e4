"""Returns over several steps, cut at the end of an episode.

Shapes: N steps, B batch.
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
