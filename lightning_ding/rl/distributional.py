"""Targets and losses of distributional Q-learning.

Shapes: B batch, A actions, N atoms of a support, or quantiles. ``discount`` (B,) is gamma^n times (1 - terminated), as
in ``td``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def take_action_distribution(distribution: Tensor, action: Tensor) -> Tensor:
    """Return the atoms or quantiles of the action taken.

    Args:
        distribution: Atoms or quantiles of every action, shape (B, A, N).
        action: Action indices, shape (B,), integers in [0, A).

    Returns:
        Atoms or quantiles of that action, shape (B, N).
    """
    index = action[:, None, None].expand(-1, 1, distribution.shape[2])
    return distribution.gather(1, index).squeeze(1)


def mean_return(distribution: Tensor, support: Tensor) -> Tensor:
    """Return the means, shape (...), of distributions, shape (..., N), over a support, shape (N,).

    Under mixed precision this avoids the matrix product, which autocast would compute in 16 bits.
    """
    if torch.is_autocast_enabled(distribution.device.type):
        return (distribution * support).sum(-1)
    return distribution @ support


def moved_support(reward: Tensor, discount_t: Tensor, support: Tensor) -> Tensor:
    """Return r + discount * z of each atom z, shape (B, N) (Bellemare et al. 2017, algorithm 1).

    Args:
        reward: (n-step) rewards, shape (B,).
        discount_t: gamma^n * (1 - terminated), shape (B,).
        support: Values of the atoms, shape (N,).
    """
    return reward[:, None] + discount_t[:, None] * support


def categorical_projection(moved: Tensor, probability_t: Tensor, support: Tensor) -> Tensor:
    """Return the distribution of r + discount * Z', projected onto the support (Bellemare et al. 2017, algorithm 1).

    See https://arxiv.org/abs/1707.06887. Each moved atom is clipped to the ends of the support and splits its
    probability between the two neighbouring atoms in proportion to proximity. A moved atom that lands exactly on
    another one gives it all of its probability.

    Args:
        moved: Values of the moved atoms, see :func:`moved_support`, shape (B, N).
        probability_t: Probability of each atom in the next state, for the action chosen there, shape (B, N).
        support: Values of the atoms, ascending and evenly spaced, shape (N,), N >= 2.

    Returns:
        Probabilities, shape (B, N), detached; each row has the same sum as in ``probability_t``.
    """
    last = len(support) - 1
    spacing = (support[-1] - support[0]) / last
    position = ((moved - support[0]) / spacing).clamp(0, last)  # in atoms; clamping here keeps rounding inside the ends
    lower = position.floor()
    share = position - lower  # of the upper neighbour; 0 for an exact hit, so no probability is lost or counted twice
    below = lower.nan_to_num().long()  # the share of NaN is NaN; its index must still be valid, or CUDA aborts
    above = (below + 1).clamp(max=last)
    projected = probability_t.new_zeros(probability_t.shape)
    projected = projected.scatter_add(1, below, probability_t * (1 - share))
    return projected.scatter_add(1, above, probability_t * share).detach()


def share_beyond_support(moved: Tensor, probability_t: Tensor, support: Tensor) -> Tensor:
    """Return the probability that r + discount * Z' lies outside the support, where the projection clips it.

    A return at an end of the support counts as inside, with a tolerance of a thousandth of the atom spacing for
    rounding.

    Args:
        moved: Values of the moved atoms, see :func:`moved_support`, shape (B, N).
        probability_t: Probability of each atom in the next state, for the action chosen there, shape (B, N).
        support: Values of the atoms, ascending and evenly spaced, shape (N,), N >= 2.

    Returns:
        Shares, shape (B,), detached.
    """
    rounding = 1e-3 * (support[1] - support[0])
    is_beyond = (moved < support[0] - rounding) | (moved > support[-1] + rounding)
    return (probability_t * is_beyond).sum(1).detach()


def cross_entropy(log_prediction: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy -sum_i target_i log prediction_i, shape (B,) (Bellemare et al. 2017, algorithm 1).

    Args:
        log_prediction: Logarithms of the predicted probabilities, shape (B, N).
        target: Probabilities, shape (B, N).
    """
    return -(target * log_prediction).sum(1)


def quantile_target(reward: Tensor, discount_t: Tensor, quantile_t: Tensor) -> Tensor:
    """Return r + discount * theta', shape (B, N), detached (Dabney et al. 2018, algorithm 1).

    Args:
        reward: (n-step) rewards, shape (B,).
        discount_t: gamma^n * (1 - terminated), shape (B,).
        quantile_t: Quantiles in the next state, for the action chosen there, shape (B, N).
    """
    return (reward[:, None] + discount_t[:, None] * quantile_t).detach()


def quantile_huber(prediction: Tensor, target: Tensor, tau: Tensor, kappa: float = 1.0) -> Tensor:
    """Return the quantile Huber loss of each item (Dabney et al. 2018, eq. 10, https://arxiv.org/abs/1710.10044).

    With u = target - prediction, each pair contributes abs(tau - [u < 0]) * L(u), where L is u^2 / 2 up to kappa and
    kappa * (abs(u) - kappa / 2) beyond. The loss is the sum over predictions of the mean over targets (algorithm 1).

    Args:
        prediction: Predicted quantiles, shape (B, N).
        target: Samples from the target distribution, shape (B, M).
        tau: Quantile levels of the predictions, in (0, 1), shape (N,) or (B, N).
        kappa: Error up to which the loss is quadratic, > 0.

    Returns:
        Losses, shape (B,).
    """
    error = target[:, None, :] - prediction[:, :, None]  # (B, N, M)
    huber = F.huber_loss(error, error.new_zeros(()).expand_as(error), reduction="none", delta=kappa)
    slope = (tau[..., None] - (error.detach() < 0).to(error.dtype)).abs()
    return (slope * huber).mean(2).sum(1)


def fraction_loss(ends: Tensor, q_ends: Tensor, q_middles: Tensor) -> Tensor:
    """Return a loss whose gradient moves quantile levels so that steps approximate the quantile function better.

    The gradient of the 1-Wasserstein error with respect to level tau_i is 2 F(tau_i) - F(middle after it) - F(middle
    before it) (Yang et al. 2019, proposition 1, https://arxiv.org/abs/1911.02140); the loss is its product with tau_i.

    Args:
        ends: Levels that divide [0, 1] into N parts, ascending from 0 to 1, shape (B, N + 1).
        q_ends: Values F at the inner levels, shape (B, N - 1).
        q_middles: Values F at the middles of the parts, shape (B, N).

    Returns:
        Losses, shape (B,). They have no gradient with respect to the values.
    """
    gradient = 2 * q_ends - q_middles[:, :-1] - q_middles[:, 1:]
    return (gradient.detach() * ends[:, 1:-1]).sum(1)


def weighted_mean(loss: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the weighted mean of the losses of a minibatch.

    Args:
        loss: Losses of the items, shape (B,).
        weight: Importance-sampling weights (Schaul et al. 2016, section 3.4, https://arxiv.org/abs/1511.05952),
            shape (B,); None weights all items equally.
    """
    return loss.mean() if weight is None else (weight * loss).mean()
