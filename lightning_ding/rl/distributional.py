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
    if position.device.type != "cpu":  # a GPU adds up colliding atoms in any order, so runs would not repeat
        return _projected_densely(position, probability_t).detach()
    projected = probability_t.new_zeros(probability_t.shape)
    projected = projected.scatter_add(1, below, probability_t * (1 - share))
    return projected.scatter_add(1, above, probability_t * share).detach()


def _projected_densely(position: Tensor, probability_t: Tensor) -> Tensor:
    """Return the projection of atoms at ``position``, in atoms of the support, as a sum over all pairs of atoms."""
    atoms = torch.arange(position.shape[1], device=position.device, dtype=position.dtype)
    share = (1 - (position[:, :, None] - atoms).abs()).clamp(min=0)  # (B, from, to)
    return (share * probability_t[:, :, None]).sum(1)


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


def truncated_quantiles(quantile_t: Tensor, dropped: int) -> Tensor:
    """Return the smallest quantiles of all critics together (Kuznetsov et al. 2020, section 4.2).

    See https://arxiv.org/abs/2005.04269. The quantiles of an ensemble are pooled and sorted, and the largest ones are
    left out, because they are the most overestimated.

    Args:
        quantile_t: Quantiles that each critic predicts, shape (E, B, N).
        dropped: Number of quantiles that are left out for each critic d, in [0, N).

    Returns:
        The E * (N - d) smallest quantiles in ascending order, shape (B, E * (N - d)).
    """
    critics, _, quantiles = quantile_t.shape
    pool = quantile_t.transpose(0, 1).flatten(1).sort(1).values
    return pool[:, : critics * (quantiles - dropped)]


def ensemble_quantile_huber(prediction: Tensor, target: Tensor, tau: Tensor, kappa: float = 1.0) -> Tensor:
    """Return the mean quantile Huber loss of each critic and item (Kuznetsov et al. 2020, section 4.3).

    This is :func:`quantile_huber` of each critic, divided by the number of predictions, in O(N log K) steps instead of
    O(N K). A prediction splits the sorted targets into four ranges: up to kappa away below and above it, and farther.
    The loss of a range follows from its size and its sums of targets and of their squares. These sums are 64-bit,
    because their differences would lose most digits of 32-bit numbers.

    Args:
        prediction: Quantiles that each critic predicts, shape (E, B, N).
        target: Samples from the target distribution of all critics, ascending, shape (B, K), without gradient.
        tau: Quantile levels of the predictions, in (0, 1), shape (N,).
        kappa: Error up to which the loss is quadratic, > 0.

    Returns:
        Means over predictions and targets, shape (E, B).
    """
    critics, batch_size, quantiles = prediction.shape
    theta = prediction.transpose(0, 1).flatten(1).double().contiguous()  # (B, E * N)
    y = target.double().contiguous()  # (B, K)
    sums = F.pad(torch.stack([torch.ones_like(y), y, y * y]).cumsum(2), (1, 0))  # (3, B, 1 + K), of the first k targets
    edges = [torch.searchsorted(y, theta.detach() + shift) for shift in (-kappa, 0.0, kappa)]
    ends = [*(sums.gather(2, edge.expand(3, -1, -1)) for edge in edges), sums[:, :, -1:]]
    far_below, below, above, far_above = ends[0], ends[1] - ends[0], ends[2] - ends[1], ends[3] - ends[2]

    def linear(sign: int, part: Tensor) -> Tensor:  # of kappa * (abs(theta - y) - kappa / 2)
        return kappa * (sign * (part[0] * theta - part[1]) - part[0] * (kappa / 2))

    def quadratic(part: Tensor) -> Tensor:  # of (theta - y)^2 / 2
        return (part[0] * theta * theta - 2 * theta * part[1] + part[2]) / 2

    level = tau.double().repeat(critics)
    loss = (1 - level) * (linear(1, far_below) + quadratic(below)) + level * (quadratic(above) + linear(-1, far_above))
    return loss.view(batch_size, critics, quantiles).mean(2).T.div(target.shape[1]).to(prediction.dtype)


def weighted_mean(loss: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the weighted mean of the losses of a minibatch.

    Args:
        loss: Losses of the items, shape (B,).
        weight: Importance-sampling weights (Schaul et al. 2016, section 3.4, https://arxiv.org/abs/1511.05952),
            shape (B,); None weights all items equally.
    """
    return loss.mean() if weight is None else (weight * loss).mean()
