"""Losses of offline reinforcement learning and imitation.

Shapes: B batch, E critics, N sampled actions of an observation, A dimensions of an action, K discrete actions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_ding.rl.distributions import HALF_LOG_TWO_PI


def expectile_loss(prediction: Tensor, target: Tensor, tau: float) -> Tensor:
    """Return the mean of abs(tau - 1[u < 0]) u^2 with u = target - prediction (Kostrikov et al. 2021, eq. 5).

    https://arxiv.org/abs/2110.06169. The minimum over constant predictions is the tau-expectile of the targets: their
    mean with tau = 0.5, and towards their maximum as tau approaches 1.

    Args:
        prediction: Predicted values, shape (B,).
        target: Values, shape (B,), without gradient.
        tau: Expectile, in (0, 1).

    Example:
        >>> expectile_loss(Tensor([0.0, 0.0]), Tensor([1.0, -1.0]), 0.9)  # (0.9 + 0.1) / 2
        tensor(0.5000)
    """
    error = target - prediction
    weight = (tau - (error < 0).to(error.dtype)).abs()
    return (weight * error.square()).mean()


def advantage_weight(advantage: Tensor, beta: float, largest: float = 100.0) -> Tensor:
    """Return min(exp(beta * advantage), largest), detached (Nair et al. 2020, eq. 13, with beta = 1 / lambda).

    https://arxiv.org/abs/2006.09359. The bound on the weight is that of Kostrikov et al. 2021 (code).

    Args:
        advantage: Q(s, a) - V(s), shape (B,).
        beta: Inverse temperature, >= 0; the larger, the greedier.
        largest: Largest weight, > 0.
    """
    return (beta * advantage.detach()).exp().clamp(max=largest)


def gaussian_log_prob(mean: Tensor, log_sigma: Tensor, action: Tensor) -> Tensor:
    """Return log densities, shape (B,), of actions under independent normal distributions.

    Args:
        mean: Means, shape (B, A).
        log_sigma: Logarithms of the standard deviations, shape (B, A).
        action: Actions, shape (B, A).
    """
    score = (action - mean) * (-log_sigma).exp()
    return -(0.5 * score.square() + log_sigma + HALF_LOG_TWO_PI).sum(1)


def conservative_gap(q_sampled: Tensor, log_density: Tensor, q_data: Tensor) -> Tensor:
    """Return log sum exp over sampled actions of Q minus Q of the data, a mean of each critic (Kumar et al. 2020).

    https://arxiv.org/abs/2006.04779, appendix F: the integral over actions of exp Q is estimated by importance
    sampling, from actions whose log densities are subtracted. As in the authors' code it is the sum over the samples,
    not their mean, which adds a constant without gradient.

    Args:
        q_sampled: Values of N actions sampled for each observation, shape (E, B, N).
        log_density: Log density of each of these actions, shape (B, N), without gradient.
        q_data: Values of the actions in the data, shape (E, B).

    Returns:
        The gap, shape (E,).
    """
    return ((q_sampled - log_density).logsumexp(2) - q_data).mean(1)


def best_candidate_target(reward: Tensor, discount_t: Tensor, q_t: Tensor, lmbda: float) -> Tensor:
    """Return r + discount * max over candidates of (lmbda min + (1 - lmbda) max over critics of Q(s', a')).

    Fujimoto et al. 2019, algorithm 1 (https://arxiv.org/abs/1812.02900).

    Args:
        reward: (n-step) rewards, shape (B,).
        discount_t: gamma^n * (1 - terminated), shape (B,).
        q_t: Target critics' values of N candidates for the next action, shape (E, B, N).
        lmbda: Weight of the smallest value of the critics, in [0, 1].

    Returns:
        Targets, shape (B,), detached.
    """
    value = lmbda * q_t.amin(0) + (1 - lmbda) * q_t.amax(0)
    return torch.addcmul(reward, discount_t, value.amax(1)).detach()


def standard_normal_kl(mu: Tensor, log_sigma: Tensor) -> Tensor:
    """Return the divergence of normal distributions from standard normal ones in nats, shape (B,).

    Args:
        mu: Means, shape (B, L).
        log_sigma: Log standard deviations, shape (B, L).
    """
    return 0.5 * (mu.square() + (2 * log_sigma).exp() - 1 - 2 * log_sigma).sum(1)


def gradient_similarity(gradient: Tensor) -> Tensor:
    """Return the mean cosine similarity of the critics' gradients by the action, times E (An et al. 2021, eq. 4).

    https://arxiv.org/abs/2110.01548. It is the sum over pairs i != j of cosines, divided by E - 1, and the mean over
    the batch; E if all gradients have the same direction, and -E / (E - 1) at least.

    Args:
        gradient: Gradient of the value of each critic by the action, shape (E, B, A), E >= 2.

    Example:
        >>> gradient_similarity(torch.tensor([[[2.0, 0.0]], [[1.0, 1.0]]]))  # 45 degrees, in both orders
        tensor(1.4142)
    """
    unit = F.normalize(gradient, dim=2, eps=1e-10)
    of_pairs = unit.sum(0).square().sum(1) - unit.square().sum((0, 2))  # |sum of u|^2 - sum of |u|^2
    return of_pairs.mean() / (len(gradient) - 1)


def discrete_conservative_gap(q: Tensor, action: Tensor) -> Tensor:
    """Return log sum exp over actions of Q(s, .) minus Q(s, a), shape (B,) (Kumar et al. 2020, eq. 4).

    Args:
        q: Action values, shape (B, K); minus infinity where an action is illegal.
        action: Actions in the data, shape (B,).
    """
    return q.logsumexp(1) - q.gather(1, action.unsqueeze(1)).squeeze(1)


def smoothed_cross_entropy(log_p: Tensor, action: Tensor, smoothing: float) -> Tensor:
    """Return -sum over actions of the smoothed label times the log probability, shape (B,).

    Szegedy et al. 2016, section 7 (https://arxiv.org/abs/1512.00567): the label has 1 - smoothing for the action of the
    data, and smoothing / K in addition for each of the K legal actions.

    Args:
        log_p: Log probabilities, shape (B, A), finite also for illegal actions (see ``distributions.Categorical``).
        action: Actions in the data, shape (B,).
        smoothing: Share that is spread, in [0, 1).
    """
    one_hot = torch.zeros_like(log_p).scatter(1, action.long().unsqueeze(1), 1.0)  # F.one_hot cannot be compiled
    legal = (log_p > 0.1 * torch.finfo(log_p.dtype).min).to(log_p)
    label = one_hot * (1 - smoothing) + legal * (smoothing / legal.sum(1, keepdim=True))
    return -(label * log_p).sum(1)


def large_margin(q: Tensor, action: Tensor, margin: float) -> Tensor:
    """Return max over actions of (Q(s, a) + margin where a is not a_E) minus Q(s, a_E), shape (B,).

    Hester et al. 2018, J_E in section 4 (https://arxiv.org/abs/1704.03732): it is 0 where the value of the
    demonstrated action a_E exceeds all others by the margin.

    Args:
        q: Action values, shape (B, A); minus infinity where an action is illegal.
        action: Demonstrated actions, shape (B,).
        margin: Least distance to the other values, >= 0.

    Example:
        >>> large_margin(torch.tensor([[2.0, 1.5], [2.0, 1.0]]), torch.tensor([0, 0]), margin=0.75)
        tensor([0.2500, 0.0000])
    """
    demonstrated = action.unsqueeze(1)
    raised = (q + margin).scatter(1, demonstrated, q.gather(1, demonstrated))
    return raised.amax(1) - q.gather(1, demonstrated).squeeze(1)
