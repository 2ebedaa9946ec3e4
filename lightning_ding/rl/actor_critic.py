"""Targets and losses of actor-critic methods with continuous actions: DDPG, TD3, SAC and their relatives.

Shapes: B batch, E critics, A dimensions of an action. ``discount_t`` (B,) is gamma^n times (1 - terminated), so
termination is handled in one place, where the discount is computed. Time is in the names: ``t`` is after the step.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def smoothed_action(action: Tensor, noise: Tensor) -> Tensor:
    """Return actions plus clipped noise, clamped to [-1, 1] (Fujimoto et al. 2018, eq. 14).

    See https://arxiv.org/abs/1802.09477.

    Args:
        action: The target actor's actions, in [-1, 1], shape (B, A).
        noise: Noise, already clipped, shape (B, A).
    """
    return (action + noise).clamp(-1, 1)


def pessimistic_target(reward: Tensor, discount_t: Tensor, q_t: Tensor) -> Tensor:
    """Return r + discount * min over critics of Q(s', a') (Fujimoto et al. 2018, eq. 10).

    Args:
        reward: (n-step) rewards, shape (B,).
        discount_t: gamma^n * (1 - terminated), shape (B,).
        q_t: Target critics' values of the next observation and the target actor's action, shape (E, B).

    Returns:
        Targets, shape (B,), detached.
    """
    return torch.addcmul(reward, discount_t, q_t.amin(0)).detach()


def soft_target(reward: Tensor, discount_t: Tensor, q_t: Tensor, log_prob_t: Tensor, alpha: Tensor) -> Tensor:
    """Return r + discount * (min over critics of Q(s', a') - alpha log pi(a'|s')) (Haarnoja et al. 2018, eq. 2 and 3).

    https://arxiv.org/abs/1812.05905; section 5 introduces the minimum. The entropy term counts at the true final
    observation of a truncated episode, and not after termination.

    Args:
        reward: (n-step) rewards, shape (B,).
        discount_t: gamma^n * (1 - terminated), shape (B,).
        q_t: Target critics' values of the next observation and a sampled action, shape (E, B).
        log_prob_t: Log density of that action, shape (B,).
        alpha: Temperature, >= 0, a scalar.

    Returns:
        Targets, shape (B,), detached.
    """
    return torch.addcmul(reward, discount_t, q_t.amin(0) - alpha * log_prob_t).detach()


def critic_loss(q: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the sum over critics of the mean squared error to one target.

    Args:
        q: Values of the actions taken, shape (E, B).
        target: Targets, shape (B,).
        weight: Importance-sampling weights (Schaul et al. 2016, section 3.4, https://arxiv.org/abs/1511.05952),
            shape (B,); None weights all items equally.

    Returns:
        The loss, a scalar.
    """
    squares = (q - target).square()
    return (squares if weight is None else weight * squares).mean(1).sum()


def critic_error(q: Tensor, target: Tensor) -> Tensor:
    """Return abs(target - q) averaged over critics, shape (B,), detached; used as priorities (Schaul et al. 2016)."""
    return (target - q.detach()).abs().mean(0)


def soft_actor_loss(q: Tensor, log_prob: Tensor, alpha: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean of alpha log pi(a|s) - min over critics of Q(s, a) (Haarnoja et al. 2018, eq. 7 and 9).

    Args:
        q: Values of sampled actions, shape (E, B).
        log_prob: Log density of these actions, shape (B,).
        alpha: Temperature, >= 0, a scalar without gradient.
        weight: Importance-sampling weights, shape (B,); None weights all items equally.
    """
    objective = alpha * log_prob - q.amin(0)
    return (objective if weight is None else weight * objective).mean()


def temperature_loss(temperature: Tensor, log_prob: Tensor, target_entropy: float | Tensor) -> Tensor:
    """Return -temperature * mean(log pi + target entropy) (Haarnoja et al. 2018, eq. 18).

    It raises the temperature while the entropy is below the target.

    Args:
        temperature: alpha or, as is common, its logarithm, whose gradient has the same sign; a scalar.
        log_prob: Log density of sampled actions, shape (B,), without gradient.
        target_entropy: Target entropy of the normalised action, in nats, or that of each state, shape (B,).
    """
    target = target_entropy.mean() if isinstance(target_entropy, Tensor) else target_entropy
    return -(temperature * (log_prob.mean() + target))


def spread_bound(values: Tensor, weight: float | Tensor) -> Tensor:
    """Return the mean over critics plus ``weight`` times their spread (Nauman et al. 2024, section 3).

    See https://arxiv.org/abs/2405.16158. The spread is the mean absolute deviation from the mean, which is half of the
    difference for two critics. Unlike the standard deviation, it has a gradient where all critics agree.

    Args:
        values: Values or quantiles of each critic, shape (E, ...).
        weight: Weight of the spread: > 0 for an optimistic value, < 0 for a pessimistic one.

    Returns:
        Shape (...).

    Example:
        >>> spread_bound(torch.tensor([[1.0], [5.0]]), -0.5)
        tensor([2.])
    """
    mean = values.mean(0)
    return mean + weight * (values - mean).abs().mean(0)


def shifted_gaussian_kl(shift: Tensor, sigma: Tensor) -> Tensor:
    """Return the divergence KL(N(mu + shift, sigma) || N(mu, sigma)), shape (B,), of two diagonal normal distributions.

    It is sum_i shift_i^2 / (2 sigma_i^2). Squashing both distributions by the same function does not change it.

    Args:
        shift: Difference of the means, shape (B, A).
        sigma: Standard deviations, > 0, shape (B, A).
    """
    return (shift / sigma).square().sum(-1) / 2


def huber_critic_loss(q: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the sum over critics of the mean Huber error to one target, quadratic up to 1 (Fujimoto et al. 2020).

    See https://arxiv.org/abs/2007.06049. With priorities max(|error|, 1)^alpha, its expected gradient is that of
    another loss under uniform sampling, so that no importance weights are needed.

    Args:
        q: Values of the actions taken, shape (E, B).
        target: Targets, shape (B,).
        weight: Importance-sampling weights, shape (B,); None weights all items equally.

    Returns:
        The loss, a scalar.
    """
    losses = F.huber_loss(q, target.expand_as(q), reduction="none")
    return (losses if weight is None else weight * losses).mean(1).sum()
